#!/usr/bin/env python3
"""Lockstep's pipeline against PyTorch's (torch.distributed.pipelining) over gloo.

From the same weights and batches of a small Llama, cut along its depth among two ranks, four micro-batches a step: every loss of ten steps with SGD,
every gradient of the first step and every parameter after the last one are those that PyTorch has in float64: within 1e-5 of each tensor's largest
value in float32, or not much farther than PyTorch itself in float32, and within 1e-9 in float64: GPipe, 1F1B, interleaved, V-shaped zero bubble each against PyTorch's own, and ZB-H1, which PyTorch has not, against its 1F1B. Needs torch,
transformers and safetensors; exit status 77 where they are missing.

    tests/oracle/pipeline_parity.py [--program build/release/bin/tests/pipeline_parity]
"""
import argparse
import os
import subprocess
import sys
import tempfile

SKIPPED = 77
STEPS, LAYERS, MICRO_BATCHES = 10, 4, 4
TOLERANCE = {"float64": 1e-9, "float32": 1e-5}

try:
    import torch
    import torch.distributed as dist
    import two_ranks
    from torch.distributed.pipelining import (PipelineStage, Schedule1F1B, ScheduleGPipe, ScheduleInterleaved1F1B,
                                              ScheduleZBVZeroBubble)
except (ImportError, OSError) as missing:
    print(f"skipped: {sys.executable} cannot import what the oracle needs: {missing}")
    sys.exit(SKIPPED)

# Theirs: its class, and the parts that a rank has, of so many.
THEIRS = {
    "gpipe": (ScheduleGPipe, 2, lambda rank: [rank]),
    "1f1b": (Schedule1F1B, 2, lambda rank: [rank]),
    "interleaved": (ScheduleInterleaved1F1B, 4, lambda rank: [rank, rank + 2]),
    "zb-v": (ScheduleZBVZeroBubble, 4, lambda rank: [rank, 3 - rank]),
}
# Ours -> theirs.
PAIRS = {"gpipe": "gpipe", "1f1b": "1f1b", "interleaved": "interleaved", "zb-h1": "1f1b", "zb-v": "zb-v"}


class Part(torch.nn.Module):
    """The layers [begin, end) of a Llama, with what stands before the first one or behind the last one."""

    def __init__(self, llama, begin, end):
        super().__init__()
        self.embeddings = llama.model.embed_tokens if begin == 0 else None
        self.layers = torch.nn.ModuleList(llama.model.layers[begin:end])
        self.rotary = llama.model.rotary_emb
        self.norm, self.head = (llama.model.norm, llama.lm_head) if end == len(llama.model.layers) else (None, None)

    def forward(self, x):
        if self.embeddings is not None:
            x = self.embeddings(x)
        positions = self.rotary(x, torch.arange(x.shape[1])[None])
        for layer in self.layers:
            x = layer(x, position_embeddings=positions)
        return x if self.head is None else self.head(self.norm(x))


def train(folder, name, rank):
    """-> losses, gradients of the first step, parameters, of all parts on rank 0."""
    kind, parts, mine = THEIRS[name]
    llama = two_ranks.model_of(folder)
    count = LAYERS // parts
    stages = [PipelineStage(Part(llama, part * count, (part + 1) * count), part, parts, torch.device("cpu")) for part in mine(rank)]
    schedule = kind(stages if parts > 2 else stages[0], MICRO_BATCHES, loss_fn=two_ranks.loss_of)
    names = {parameter: name for name, parameter in llama.named_parameters()}
    own = {names[parameter]: parameter for stage in stages for parameter in stage.submod.parameters()}
    optimizer = two_ranks.optimizer_of(own.values())
    has_last = parts - 1 in mine(rank)
    losses, gradients = [], None
    for ids, targets in two_ranks.batches_of(folder):
        optimizer.zero_grad()
        of_step = []
        schedule.step(*([ids] if rank == 0 else []), **({"target": targets, "losses": of_step} if has_last else {}))
        if gradients is None:
            gradients = {name: parameter.grad.clone() for name, parameter in own.items()}
        optimizer.step()
        losses.append(sum(loss.item() for loss in of_step) / MICRO_BATCHES)
    gathered = [None, None] if rank == 0 else None
    trained = {name: parameter.detach() for name, parameter in own.items()}
    dist.gather_object((losses, gradients, trained), gathered)
    if rank == 0:
        last = max(gathered, key=lambda of_rank: sum(of_rank[0]))
        return last[0], {**gathered[0][1], **gathered[1][1]}, {**gathered[0][2], **gathered[1][2]}
    return None


def theirs(folder, rank):
    """One rank of PyTorch's job."""
    two_ranks.begin(rank, os.path.join(folder, "rendezvous"))
    for dtype in TOLERANCE:
        for name in THEIRS:
            results = train(os.path.join(folder, dtype), name, rank)
            if results:
                two_ranks.write(os.path.join(folder, dtype), name + "_", *results)
    two_ranks.end()


def main():
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default=os.path.join(root, "build/release/bin/tests/pipeline_parity"))
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("folder", nargs="?", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank is not None:
        theirs(options.folder, options.rank)
        return
    torch.manual_seed(5)
    with tempfile.TemporaryDirectory() as folder:
        two_ranks.write_cases(folder, TOLERANCE, STEPS, LAYERS)
        two_ranks.run(os.path.abspath(__file__), folder)
        for dtype, tolerance in TOLERANCE.items():
            for ours, beside in PAIRS.items():
                case = os.path.join(folder, dtype)
                subprocess.run([options.program, case, ours, str(MICRO_BATCHES), str(two_ranks.RATE), str(two_ranks.MOMENTUM)], check=True)
                two_ranks.compare(f"{dtype}, {ours} beside PyTorch's {THEIRS[beside][0].__name__}", folder, dtype, beside + "_", tolerance)


if __name__ == "__main__":
    main()
