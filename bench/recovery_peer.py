"""What bench/recovery.py's peers share: flags, the model of examples/recovery, batches, and a line for every step."""

import argparse
import os
import pathlib
import signal
import sys
import time

import torch

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "tests/oracle"))
from torch_mnist import SimpleCNN  # noqa: E402,F401  the model of examples/recovery

BATCH = 32


def flags(description):
    """The parser of examples/recovery's own flags."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--kill-rank", type=int, default=-1)
    parser.add_argument("--kill-step", type=int, default=20)
    parser.add_argument("--times", required=True)
    return parser


def note(path, rank, step):
    """Appends "rank step seconds": so many steps the rank has done; -1: it dies."""
    with open(path, "a") as file:
        file.write(f"{rank} {step} {time.time():.6f}\n")


def die_if_told(arguments, rank, step, first_life):
    """Between forward and backward: the others cannot complete the step without this rank."""
    if first_life and rank == arguments.kill_rank and step == arguments.kill_step:
        note(arguments.times, rank, -1)
        os.kill(os.getpid(), signal.SIGKILL)


def batch(rank, ranks, step):
    """Made as fast as a loader that is ahead gives it."""
    generator = torch.Generator().manual_seed(step * ranks + rank)
    return torch.randn(BATCH, 1, 28, 28, generator=generator), torch.randint(0, 10, (BATCH,), generator=generator)
