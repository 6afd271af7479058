#!/usr/bin/env python3
"""Pipeline and tensor parallelism of two ranks, one thread each: against one rank, and against PyTorch's over gloo, in alternating rounds.

Each round gives every contender one turn of some steps (forward and backward) of a Llama-shaped model; all of them run all the time, and who is not at
its turn sleeps. Written are the median and the range over the rounds of seconds a step, and of these ratios:
  1f1b, zb-h1   one rank's time / 2 * (1 + the bubble that the formula gives for the measured times) / the pipeline's
  tensor        one rank's time / two parts'
  both          twice one rank's time / that of both ranks that do the whole at once, each for itself: what two ranks can reach on this machine
  PyTorch       its time / ours: torch.distributed.pipelining (Schedule1F1B), torch.distributed.tensor.parallel
The model of the pipeline: hidden 512, 7 layers and a head as dear as one, 8 micro-batches of 128 tokens. Of tensor parallelism: hidden 1024, 2 layers,
256 tokens. Needs torch and transformers for PyTorch's; without them, or with --ours, only ours run.

    bench/model_parallel.py [--build build/release] [--rounds 7] [--steps 2] [--ours]
"""
import argparse
import os
import select
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
RANKS, MICRO_BATCHES, TOKENS, TENSOR_TOKENS = 2, 8, 128, 256
OURS = ["pipeline-one", "pipeline-both", "1f1b", "zb-h1", "tensor-one", "tensor-both", "tensor"]
THEIRS = ["1f1b", "tensor"]


class Turns:
    """The turns of one job, through two FIFOs."""

    def __init__(self, folder, name, commands, environment):
        self.go, self.back = (os.path.join(folder, name + end) for end in ("-go", "-back"))
        os.mkfifo(self.go)
        os.mkfifo(self.back)
        self.processes = [subprocess.Popen(command + [self.go, self.back], env=environment) for command in commands]
        # Both ways, so that opening waits for nobody, and a job that dies is seen by its process.
        self.giver = os.fdopen(os.open(self.go, os.O_RDWR), "w")
        self.answers = os.open(self.back, os.O_RDWR)

    def give(self, what, steps):
        print(what, steps, file=self.giver, flush=True)
        deadline = time.monotonic() + 300
        while not select.select([self.answers], [], [], 0.5)[0]:
            if any(process.poll() is not None for process in self.processes) or time.monotonic() > deadline:
                sys.exit(f"no answer to '{what}' from {self.processes[0].args}")
        return [float(word) for word in os.read(self.answers, 1000).split()]

    def end(self):
        """Whatever has happened, nobody is left."""
        print("none 0", file=self.giver, flush=True)
        for process in self.processes:
            try:
                process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                process.terminate()  # lockstep run ends its ranks
                process.wait()


# ---- PyTorch's ranks ----

def llama(hidden, inner, layers, heads, vocabulary, tokens):
    from transformers import LlamaConfig, LlamaForCausalLM
    return LlamaForCausalLM(LlamaConfig(vocab_size=vocabulary, hidden_size=hidden, intermediate_size=inner, num_hidden_layers=layers,
                                        num_attention_heads=heads, num_key_value_heads=heads, max_position_embeddings=tokens,
                                        tie_word_embeddings=False, use_cache=False)).train()


def their_steps(rank):
    """What each name runs once."""
    import torch
    import torch.distributed as dist
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    import pipeline_parity
    import tensor_parity
    import two_ranks
    torch.manual_seed(1)
    whole = llama(512, 1376, 7, 8, 7168, TOKENS)
    ids = torch.randint(0, 7168, (MICRO_BATCHES, TOKENS))
    part = pipeline_parity.Part(whole, *((0, 4) if rank == 0 else (4, 7)))
    schedule = Schedule1F1B(PipelineStage(part, rank, RANKS, torch.device("cpu")), MICRO_BATCHES, loss_fn=two_ranks.loss_of)
    divided = tensor_parity.divide(llama(1024, 2816, 2, 16, 4096, TENSOR_TOKENS), dist.device_mesh.init_device_mesh("cpu", (RANKS,)))
    tensor_ids = torch.randint(0, 4096, (1, TENSOR_TOKENS))

    def pipeline_step():
        schedule.step(*([ids] if rank == 0 else []), **({} if rank == 0 else {"target": ids.roll(-1, -1)}))

    def tensor_step():
        two_ranks.loss_of(divided(input_ids=tensor_ids).logits, tensor_ids.roll(-1, -1)).backward()

    return {"1f1b": pipeline_step, "tensor": tensor_step}


def theirs(rank, folder, go, back):
    """One rank of PyTorch's job."""
    sys.path.insert(0, os.path.join(ROOT, "tests/oracle"))
    import torch
    import torch.distributed as dist

    import two_ranks
    two_ranks.begin(rank, os.path.join(folder, "rendezvous"))
    steps_of = their_steps(rank)
    turns, answers = (open(go), open(back, "w")) if rank == 0 else (None, None)
    while True:
        turn = [turns.readline().split() if rank == 0 else None]
        dist.broadcast_object_list(turn, 0)
        what, steps = turn[0][0], int(turn[0][1])
        if steps == 0:
            break
        dist.barrier()
        start = time.monotonic()
        for _ in range(steps):
            steps_of[what]()
        spent = torch.tensor([(time.monotonic() - start) / steps], dtype=torch.float64)
        dist.all_reduce(spent, dist.ReduceOp.MAX)
        if rank == 0:
            print(spent.item(), 0, 0, 0, file=answers, flush=True)
    two_ranks.end()


# ---- the comparison ----

def spread(values, digits=2):
    return f"{statistics.median(values):.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f})"


def report(seconds, pipelines):
    for (side, name), values in seconds.items():
        print(f"{side:<8} {name:<14} {spread([value * 1e3 for value in values], 1)} ms a step")

    def ratios(above, below):
        return [a / b for a, b in zip(seconds[above], seconds[below])]

    for name in ("1f1b", "zb-h1"):
        bubbles, planned, measured = zip(*pipelines[name])
        reached = [ratio / RANKS * (1 + own) for ratio, own in zip(ratios(("ours", "pipeline-one"), ("ours", name)), bubbles)]
        print(f"{name}: of one rank's time with the formula's bubble of {100 * statistics.median(bubbles):.1f} %, reached "
              f"{spread([100 * one for one in reached], 1)} %; of the plan with the mean times of its actions "
              f"{spread([100 * a / b for a, b in zip(planned, measured)], 1)} %")
    print(f"tensor: times as fast as one rank {spread(ratios(('ours', 'tensor-one'), ('ours', 'tensor')))}")
    for kind in ("pipeline", "tensor"):
        print(f"{kind}, both ranks: times as fast as one rank {spread([2 * one for one in ratios(('ours', kind + '-one'), ('ours', kind + '-both'))])}")
    for name in THEIRS:
        if ("PyTorch", name) in seconds:
            print(f"{name}: times as fast as PyTorch {spread(ratios(('PyTorch', name), ('ours', name)))}")


def take_turns(options, jobs):
    """-> seconds a step of each contender, a number a round, and of our pipelines the formula's bubble and the last step as planned and measured."""
    contenders = [("ours", name) for name in OURS] + [("PyTorch", name) for name in THEIRS if "PyTorch" in jobs]
    seconds, pipelines = {one: [] for one in contenders}, {name: [] for name in OURS}
    for turn in range(options.rounds + 1):
        for side, name in contenders:
            spent, *of_pipeline = jobs[side].give(name, 1 if turn == 0 else options.steps)
            if turn == 0:
                continue  # memory is touched, code is loaded
            seconds[side, name].append(spent)
            if side == "ours":
                pipelines[name].append(of_pipeline)
    return seconds, pipelines


def measure(options, folder):
    environment = dict(os.environ, OMP_NUM_THREADS="1", GLOO_SOCKET_IFNAME="lo")
    program = [os.path.join(options.build, "bin/lockstep"), "run", "--nproc", str(RANKS), os.path.join(options.build, "bin/bench/model_parallel")]
    jobs = {"ours": Turns(folder, "ours", [program], environment)}
    try:
        if not options.ours:
            commands = [[sys.executable, os.path.abspath(__file__), "--rank", str(rank), folder] for rank in range(RANKS)]
            jobs["PyTorch"] = Turns(folder, "theirs", commands, environment)
        report(*take_turns(options, jobs))
    finally:
        for job in jobs.values():
            job.end()


def has_torch():
    try:
        import transformers  # noqa: F401
        return True
    except (ImportError, OSError):
        return False


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default=os.path.join(ROOT, "build/release"))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=2, help="of a turn")
    parser.add_argument("--ours", action="store_true", help="without PyTorch")
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("job", nargs="*", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank is not None:
        theirs(options.rank, *options.job)
        return
    options.ours = options.ours or not has_torch()
    with tempfile.TemporaryDirectory() as folder:
        measure(options, folder)


if __name__ == "__main__":
    main()
