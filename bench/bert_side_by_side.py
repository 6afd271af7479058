#!/usr/bin/env python3
"""Tutorial 003's methods against the Python programs that users would run instead, in alternating rounds.

Each round runs every contender once: BERT from a random start, 32 texts a step over all ranks, 128 tokens, AdamW 3e-5, one thread a
rank. Seconds a step are the median of a run's steps after the first two. Written are each contender's median over the rounds, and the
ratio of each pair with the range over the rounds; likewise the seconds from the command to the first step's start, and the memory of
all processes together (the greatest sum of proportional set sizes seen).

    bench/bert_side_by_side.py --baselines DIR --data DIR --vocab FILE [--size mini] [--rounds 3] [--steps 12]
        [--pairs single,distributed,...] [--bin build/release/bin] [--json FILE]

DIR holds common.py, single.py, ddp_torchrun.py and their like: scripts that take --size, --steps, --warmup and --threads and end
with a line of JSON with s_per_step and ready_s.
"""
import argparse
import glob
import json
import os
import re
import statistics
import subprocess
import sys
import threading
import time

# how their script is started: a module of their Python with its options, or nothing
TORCHRUN = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", "29611"]
HOROVODRUN = ["-m", "horovod.runner.launch", "-np", "2", "--gloo", sys.executable]
DEEPSPEED = ["-m", "deepspeed.launcher.runner", "--num_accelerators", "2"]
# our method, our further options, their launcher and script, their options
PAIRS = {
    "single": ("single", ["--batch-size", "32"], [], "single.py", []),
    "data_parallel": ("data_parallel", ["--batch-size", "32"], [], "single.py", ["--threads", "2"]),
    "distributed": ("distributed", [], TORCHRUN, "ddp_torchrun.py", []),
    "distributed_spawn": ("distributed_spawn", [], [], "ddp_spawn.py", []),
    "distributed_amp": ("distributed_amp", [], TORCHRUN, "ddp_torchrun.py", ["--amp"]),
    "horovod": ("horovod", [], HOROVODRUN, "horovod_train.py", []),
    "zero_engine": ("zero_engine", [], DEEPSPEED, "deepspeed_train.py", ["--stage", "1"]),
    "accelerator": ("accelerator", [], TORCHRUN, "accelerate_train.py", []),
    "trainer": ("trainer", [], TORCHRUN, "trainer_train.py", []),
    "packed": ("distributed_amp", ["--padding", "packed"], TORCHRUN, "ddp_torchrun.py", ["--amp"]),
}
ON_RANKS = {"distributed", "distributed_amp", "horovod", "zero_engine", "accelerator", "trainer"}
WARMUP = 2


def children_of(pid):
    """The process and all below it; a launcher may start some from a thread."""
    found = [pid]
    for place in found:
        for path in glob.glob(f"/proc/{place}/task/*/children"):
            try:
                with open(path) as file:
                    found += [int(child) for child in file.read().split()]
            except OSError:
                pass
    return found


def proportional_bytes(pid):
    total = 0
    for process in children_of(pid):
        try:
            with open(f"/proc/{process}/smaps_rollup") as file:
                total += 1024 * int(re.search(r"^Pss:\s+(\d+)", file.read(), re.MULTILINE).group(1))
        except (OSError, AttributeError):
            pass
    return total


def run(command, environment, enough=None):
    """The lines of stdout and of stderr with their seconds since the start, and the greatest memory. Where `enough` of these lines are
    about training steps, the run is ended."""
    start = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                               env={**os.environ, "OMP_NUM_THREADS": "1", **environment})
    most = [0]

    def watch():
        while process.poll() is None:
            looked = time.monotonic()
            most[0] = max(most[0], proportional_bytes(process.pid))
            time.sleep(max(0.5, 50 * (time.monotonic() - looked)))  # looking slows down who is looked at

    errors = []
    watchers = [threading.Thread(target=watch),
                threading.Thread(target=lambda: errors.extend((time.monotonic() - start, line) for line in process.stderr))]
    for watcher in watchers:
        watcher.start()
    lines, steps = [], 0
    for line in process.stdout:
        lines.append((time.monotonic() - start, line))
        steps += line.startswith("【train】")
        if enough and steps == enough:
            process.terminate()
            break
    ended = process.wait()
    for watcher in watchers:
        watcher.join()
    if ended != 0 and (not enough or steps < enough):
        sys.exit(f"{' '.join(command)} ended with {process.returncode}\n{''.join(line for _, line in errors)[-2000:]}")
    return lines, errors, most[0]


def ours(options, pair):
    method, further, *_ = PAIRS[pair]
    start = [os.path.join(options.bin, "lockstep"), "run", "--nproc-per-node", "2"] if method in ON_RANKS else []
    batch = further if "--batch-size" in further else ["--batch-size", "16"] + further
    command = start + [os.path.join(options.bin, "examples/text_classification", method), "--remove-spaces", "--data", options.data, "--vocab",
                       options.vocab, "--model", options.size, "--recipe", "tutorial", "--max-steps",
                       str(options.steps + WARMUP), "--output", options.output] + batch
    lines, progress, memory = run(command, {}, options.steps + WARMUP)
    ready = next(at for at, line in progress if "training starts" in line)
    ends = [at for at, line in lines if line.startswith("【train】")]
    steps = [b - a for a, b in zip(ends, ends[1:])]
    step = statistics.median(steps[WARMUP - 1:])
    return {"s_per_step": step, "ready_s": ready, "memory": memory}


def theirs(options, pair):
    _, _, launcher, script, further = PAIRS[pair]
    command = [sys.executable] + launcher + [
        os.path.join(options.baselines, script), "--size", options.size, "--steps", str(options.steps), "--warmup", str(WARMUP),
        "--no-checkpoint"] + further
    lines, _, memory = run(command, {"BENCH_T0": str(time.time())})
    found = next(match for _, line in lines if (match := re.search(r'\{".*\}', line)))  # a launcher may write its rank before
    result = json.loads(found.group())
    return {"s_per_step": result["s_per_step"], "ready_s": result["ready_s"], "memory": memory}


def show(pair, mine, others):
    median = lambda runs, field: statistics.median(one[field] for one in runs)
    line = {"pair": pair, "rounds": len(mine)}
    for field in ("s_per_step", "ready_s", "memory"):
        ratios = [b[field] / a[field] for a, b in zip(mine, others)]
        line[field] = {"lockstep": median(mine, field), "python": median(others, field), "ratio": statistics.median(ratios),
                       "least": min(ratios), "most": max(ratios)}
    step, ready, memory = line["s_per_step"], line["ready_s"], line["memory"]
    print(f"{pair:18} {step['lockstep']:8.3f} {step['python']:8.3f} {step['ratio']:6.2f} {step['least']:5.2f}-{step['most']:.2f}"
          f" {ready['lockstep']:7.2f} {ready['python']:7.2f} {ready['ratio']:6.1f}"
          f" {memory['lockstep'] / 2**20:8.0f} {memory['python'] / 2**20:8.0f}", flush=True)
    return line


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    parser.add_argument("--baselines", required=True)
    parser.add_argument("--data", required=True)
    parser.add_argument("--vocab", required=True)
    parser.add_argument("--size", choices=["mini", "base"], default="mini")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--pairs", default="single,data_parallel,distributed,distributed_amp")
    parser.add_argument("--bin", default=os.path.join(root, "build/release/bin"))
    parser.add_argument("--output", default="runs/bert_side_by_side")
    parser.add_argument("--json")
    options = parser.parse_args()
    pairs = options.pairs.split(",")
    unknown = [pair for pair in pairs if pair not in PAIRS]
    if unknown:
        parser.error(f"there is no pair {unknown[0]}; choose from {', '.join(PAIRS)}")
    mine, others = {pair: [] for pair in pairs}, {pair: [] for pair in pairs}
    for number in range(options.rounds):
        for pair in pairs:
            order = [(ours, mine), (theirs, others)]
            for contender, results in order if number % 2 == 0 else reversed(order):
                results[pair].append(contender(options, pair))
    print(f"{options.size:18} {'s/step':>8} {'Python':>8} {'times':>6} {'range':>10} {'start s':>7} {'Python':>7} {'times':>6}"
          f" {'MiB':>8} {'Python':>8}")
    lines = [show(pair, mine[pair], others[pair]) for pair in pairs]
    if options.json:
        with open(options.json, "w") as file:
            json.dump(lines, file, indent=2)


if __name__ == "__main__":
    main()
