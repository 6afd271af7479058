#!/usr/bin/env python3
"""`lockstep train` whose ranks are killed with SIGKILL at random moments, from the first step on: the checkpoint of the end has the
same bytes as that of a run that nothing happened to, metrics.jsonl the same lines, and with --on-failure replace no process of a rank
goes but those killed. The same where all ranks are restarted, where all of a job is killed and somebody resumes it, and where the others
go on without the dead, with logical ranks (means of losses, which are added up in another order, to rounding).

    tests/recovery/kills_test.py --bin build/release/bin [--kills N] [--seed N] [CASE...]
"""
import argparse
import contextlib
import glob
import hashlib
import itertools
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time

# Steps for a kill, so that there is time for all of them; and what a case trains.
MNIST = ["mnist", "--data", "digits", "--batch-size", "16"]
CASES = {
    "mnist": (40, MNIST),
    # With a spare, which is killed as well now and then while it waits; there is none again before a second has gone.
    "mnist-spare": (120, MNIST),
    # Nobody takes the place of the dead. Half of the ranks die at a time, since four logical ones are equally many for 4, 2 and 1.
    "mnist-shrink": (40, MNIST + ["--strategy", "logical4"]),
    "bert-ddp": (16, ["text", "--data", "sentences", "--batch-size", "8", "--max-length", "24"]),
    "bert-zero3": (24, ["text", "--data", "sentences", "--batch-size", "8", "--max-length", "24", "--strategy", "zero3"]),
    "lm-fsdp": (24, ["lm", "--data", "sentences", "--batch-size", "4", "--context", "32", "--strategy", "fsdp"]),
    # Models that are divided among ranks.
    "lm-data-tensor": (24, ["lm", "--data", "sentences", "--batch-size", "4", "--context", "32", "--mesh", "data=2,tensor=2"]),
    "lm-pipe-data": (24, ["lm", "--data", "sentences", "--batch-size", "4", "--context", "32", "--mesh", "pipe=2,data=2"]),
}
# Cases in which each rank has a part of the state, of which its neighbour has a copy.
DIVIDED = ("zero3", "fsdp", "tensor", "pipe")
# All ranks end with one: --max-restarts alone; or with the launcher, too.
RESTARTED = {"mnist-restart": "mnist", "mnist-resume": "mnist"}
# What every run of the tests has: whole states with a spare, fewer ranks, divided states. The others with LOCKSTEP_LONG_TESTS=1.
ALWAYS = ["mnist-spare", "mnist-shrink", "bert-zero3"]
LONG = os.environ.get("LOCKSTEP_LONG_TESTS") == "1"
OF_THE_CLOCK = ("seconds", "samples_per_s", "checkpoint_s")


def fail(message, log=None):
    if log and os.path.exists(log):
        with open(log) as file:
            print(file.read()[-6000:])
    sys.exit(f"kills_test: {message}")


def ranks_of(pid):
    """The agent's children that are ranks or spares, as {pid: rank}; a spare has none, nor has a rank that was one."""
    found = {}
    for task in glob.glob(f"/proc/{pid}/task/*/children"):
        try:
            with open(task) as file:
                children = file.read().split()
            for child in children:
                with open(f"/proc/{child}/environ", "rb") as file:
                    names = dict(v.split(b"=", 1) for v in file.read().split(b"\0") if b"=" in v)
                if b"LOCAL_RANK" in names or b"LOCKSTEP_SPARE_FD" in names:
                    found[int(child)] = int(names.get(b"RANK", -1))
        except OSError:  # it went meanwhile
            pass
    return found


def ranks_in(case):
    return 4 if case in ("lm-data-tensor", "lm-pipe-data", "mnist-shrink") else 3


def steps_done(output):
    try:
        with open(os.path.join(output, "metrics.jsonl")) as file:
            lines = file.read().splitlines()
        return json.loads(lines[-1])["step"] if lines else 0
    except (OSError, ValueError, KeyError):
        return 0


def recovered(log, kills):
    """Whether the ranks have gone on since the latest kill: the launcher speaks of the death first, then a rank of the recovery."""
    if kills == 0:
        return True
    with open(log) as file:
        text = file.read()
    return text.count("is started again") >= kills and text.rfind(" goes on ") > text.rfind("is started again")


def train(command, output, kills, steps, chance, deadline, divided=0, restarts=False, spares=False, halves=False):
    """Runs it; returns (processes seen, kills done). `divided`: the number of ranks, where each has a part of the state, a copy of it
    being its neighbour's: two neighbours do not die at once. 0: all have the whole. `halves`: half of the ranks die together."""
    log = output + ".log"
    seen, killed = {}, set()
    last, in_a_row = None, 0
    with open(log, "w") as file:
        job = subprocess.Popen(command, stdout=file, stderr=file)
    end = time.monotonic() + deadline
    next_kill = None
    try:
        while job.poll() is None:
            if time.monotonic() > end:
                fail(f"'{' '.join(command)}' does not end within {deadline} s", log)
            there = ranks_of(job.pid)
            seen.update(there)
            done = len(killed)
            # Not in the last steps: what comes after training is no part of it.
            begun = steps_done(output)
            if next_kill is None and begun > 0:
                next_kill = time.monotonic() + chance.uniform(0, 0.3)
            # One that is restarted as a whole, from a checkpoint.
            ready = not restarts or os.path.exists(os.path.join(output, "checkpoints", "last"))
            if done < kills and ready and next_kill and time.monotonic() >= next_kill and begun < steps * 0.9 and there:
                able = sorted(there.keys() - killed)  # one that was killed may still be there for a moment
                if divided and (len(there) < divided or not recovered(log, done)):
                    # Its successor, in the midst of recovery; but some time there is to be an end to that.
                    able = [pid for pid in able if there[pid] == last and in_a_row < 3]
                else:
                    in_a_row = 0
                if spares and not killed:  # whatever is drawn afterwards, one spare takes a rank's place
                    able = [pid for pid in able if there[pid] >= 0] if -1 in there.values() else []
                if not able:  # nor is it to be killed as soon as it comes
                    next_kill = time.monotonic() + chance.uniform(0, 0.5)
                    continue
                victims = chance.sample(able, len(able) // 2) if halves else [chance.choice(able)]
                try:
                    for victim in victims[1:]:  # while the first is being killed, none of them meets the others
                        os.kill(victim, signal.SIGSTOP)
                    for victim in victims:
                        os.kill(victim, signal.SIGKILL)
                        killed.add(victim)
                    in_a_row += 1
                    last = there[victims[0]]
                except ProcessLookupError:
                    pass
                # Now and then while the others still recover from the one before. Where a death costs some steps, not so often that
                # training stands still.
                usual = (1.5, 3) if spares else (0.5, 2.5) if divided else (0.2, 0.9)
                next_kill = time.monotonic() + chance.uniform(*((0, 0.2) if not spares and chance.random() < 0.2 else usual))
            time.sleep(0.02)
    finally:
        if job.poll() is None:
            job.kill()
            job.wait()
    if job.returncode != 0:
        fail(f"'{' '.join(command)}' ended with {job.returncode}", log)
    return seen, len(killed)


def result_of(output):
    files = {}
    for path in sorted(glob.glob(os.path.join(output, "checkpoints", "last", "*"))):
        if path.endswith((".safetensors", "trainer.json")):
            with open(path, "rb") as file:
                content = file.read()
            if path.endswith(".json"):
                state = json.loads(content)
                state.pop("seconds")
                state.pop("metrics_bytes")  # lines have times in them
                content = json.dumps(state).encode()
            files[os.path.basename(path)] = hashlib.sha256(content).hexdigest()
    lines = []
    with open(os.path.join(output, "metrics.jsonl")) as file:
        for line in file:
            entry = json.loads(line)
            lines.append({k: v for k, v in entry.items() if k not in OF_THE_CLOCK and not k.startswith("straggler_")})
    return files, lines


def command_of(lockstep, case, steps):
    arguments = CASES[RESTARTED.get(case, case)][1]
    return [lockstep, "train", *arguments, "--nproc", str(ranks_in(case)), "--max-steps", str(steps), "--epochs", "1000", "--log-every", "2",
            "--save-every", str(max(3, steps // 20)), "--quiet", "--timeout", "60"]


def alike(found, expected):
    """Whether the lines are the same but for rounding."""
    if isinstance(expected, float) and isinstance(found, float):
        return abs(found - expected) <= 1e-6 * abs(expected)
    if isinstance(expected, list) and isinstance(found, list):
        return len(found) == len(expected) and all(map(alike, found, expected))
    if isinstance(expected, dict) and isinstance(found, dict):
        return found.keys() == expected.keys() and all(alike(found[key], expected[key]) for key in expected)
    return found == expected


def expect_same(case, killed, quiet, done, seed, same=lambda found, expected: found == expected):
    log = killed + ".log"
    expected, found = result_of(quiet), result_of(killed)
    if same is alike:  # its sums are of each rank, of which there are others
        for files in (expected[0], found[0]):
            files.pop("ranks.safetensors")
    with open(log) as file:
        if "[W" in file.read():
            fail(f"{case}: libtorch warns of something; seed {seed}", log)
    if found[0] != expected[0]:
        fail(f"{case}: after {done} kills the last checkpoint differs: {found[0]} instead of {expected[0]}; seed {seed}", log)
    if not same(found[1], expected[1]):
        first = next(pair for pair in itertools.zip_longest(found[1], expected[1]) if not same(*pair))
        fail(f"{case}: metrics.jsonl differs after {done} kills, of {len(found[1])} lines instead of {len(expected[1])}:\n"
             f"{first[0]}\ninstead of\n{first[1]}\nseed {seed}", log)
    left = [name for name in os.listdir(os.path.join(killed, "checkpoints")) if "partial" in name]
    if left:
        fail(f"{case}: {left} is left over; seed {seed}", log)


def check_restarts(lockstep, case, seed, folder):
    kills, steps = 2, 240
    chance = random.Random(f"{case} {seed}")
    command = command_of(lockstep, case, steps)
    quiet, killed = os.path.join(folder, case), os.path.join(folder, case + "-killed")
    train(command + ["--output", quiet], quiet, 0, steps, chance, 200)
    if case.endswith("restart"):
        done = train(command + ["--output", killed, "--max-restarts", "9"], killed, kills, steps, chance, 300, restarts=True)[1]
        if done < 1:
            fail(f"{case}: the machine was too quick, nobody was killed", killed + ".log")
        if os.path.exists(os.path.join(killed, "previous")):
            fail(f"{case}: it began anew instead of going on from its checkpoint", killed + ".log")
    else:
        done = kill_all(command + ["--output", killed], killed)
        train(command + ["--output", killed, "--resume"], killed, 0, steps, chance, 200)
    expect_same(case, killed, quiet, done, seed)
    print(f"{case}: {done} kills in {steps} steps, every bit as without them", flush=True)


def kill_all(command, output):
    """The launcher and every rank at once, when there is a checkpoint; nothing of them is left."""
    with open(output + ".log", "w") as file:
        job = subprocess.Popen(command, stdout=file, stderr=file, start_new_session=True)
    end = time.monotonic() + 100
    while not os.path.exists(os.path.join(output, "checkpoints", "last")):
        if job.poll() is not None or time.monotonic() > end:
            fail("it has written no checkpoint", output + ".log")
        time.sleep(0.02)
    ranks = ranks_of(job.pid)
    for pid in (job.pid, *ranks):
        with contextlib.suppress(ProcessLookupError):  # ranks go with their launcher
            os.kill(pid, signal.SIGKILL)
    job.wait()
    for pid in ranks:
        while os.path.exists(f"/proc/{pid}") and time.monotonic() < end:
            time.sleep(0.01)
        if os.path.exists(f"/proc/{pid}"):
            fail(f"rank {ranks[pid]} is still there", output + ".log")
    return 1 + len(ranks)


def check_shrinking(lockstep, case, seed, folder):
    ranks = ranks_in(case)
    kills = ranks - 1
    steps = CASES[case][0] * kills
    chance = random.Random(f"{case} {seed}")
    command = command_of(lockstep, case, steps)
    quiet, killed = os.path.join(folder, case), os.path.join(folder, case + "-killed")
    train(command + ["--output", quiet], quiet, 0, steps, chance, 60 + steps)
    seen, done = train(command + ["--output", killed, "--on-failure", "shrink"], killed, kills, steps, chance, 120 + 2 * steps,
                       halves=True)
    if done < kills:
        fail(f"{case}: the machine was too quick for {kills} kills, only {done} were done; seed {seed}", killed + ".log")
    if len(seen) > ranks:
        fail(f"{case}: {len(seen)} processes of {ranks} ranks, of which none is replaced; seed {seed}", killed + ".log")
    expect_same(case, killed, quiet, done, seed, same=alike)
    print(f"{case}: {done} of {ranks} ranks killed in {steps} steps, every bit as without that", flush=True)


def check(lockstep, case, kills, seed, folder):
    if case in RESTARTED:
        return check_restarts(lockstep, case, seed, folder)
    if "shrink" in case:
        return check_shrinking(lockstep, case, seed, folder)
    ranks = ranks_in(case)
    steps = CASES[case][0] * (kills + 2)
    chance = random.Random(f"{case} {seed}")
    command = command_of(lockstep, case, steps)
    quiet, killed = os.path.join(folder, case), os.path.join(folder, case + "-killed")
    train(command + ["--output", quiet], quiet, 0, steps, chance, 60 + steps)
    divided, spares = ranks if any(way in case for way in DIVIDED) else 0, int("spare" in case)
    if spares:
        command += ["--spare-ranks", str(spares)]
    begin = time.monotonic()
    seen, done = train(command + ["--output", killed, "--on-failure", "replace", "--max-restarts", str(10 * kills + 10)], killed, kills,
                       steps, chance, 120 + 2 * steps + 10 * kills, divided=divided, spares=spares > 0)
    seconds = time.monotonic() - begin
    log = killed + ".log"
    if done < min(kills, 2):
        fail(f"{case}: the machine was too quick for {kills} kills, only {done} were done; seed {seed}", log)
    expect_same(case, killed, quiet, done, seed)
    with open(log) as file:
        text = file.read()
    if spares and "which was a spare" not in text:
        fail(f"{case}: {done} kills, and no spare took a rank's place; seed {seed}", log)
    # The log does not say when all have recovered, so that a rank and the keeper of its copy may be killed within one recovery.
    lost = text.count("which kept a copy of it; start again from the last checkpoint") if divided else 0
    if len(seen) > ranks + done + spares + ranks * lost:
        fail(f"{case}: {len(seen)} processes of ranks after {done} kills: a rank that nobody killed has gone; seed {seed}", log)
    print(f"{case}: {done} kills in {steps} steps and {seconds:.0f} s, every bit as without them" +
          (f"; a rank died with its keeper, and all went on from a checkpoint: {lost}" if lost else ""), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", required=True, help="where lockstep is")
    parser.add_argument("--kills", type=int, default=100 if LONG else 2, help="a case")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("cases", nargs="*", metavar="CASE", default=[*CASES, *RESTARTED] if LONG else ALWAYS)
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    folder = tempfile.mkdtemp(prefix="lockstep-kills-")
    try:
        for case in options.cases:
            check(os.path.join(options.bin, "lockstep"), case, options.kills, options.seed, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
