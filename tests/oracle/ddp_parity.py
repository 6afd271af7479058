#!/usr/bin/env python3
"""From the same parameters and the same samples, Lockstep's ranks follow PyTorch's DistributedDataParallel step by step.

Dropout is off. The parameters are drawn by PyTorch and written by Python's safetensors; the samples are those of DistributedSampler.
The losses of every step, averaged over ranks, must agree within 1e-5 of their size. The last checkpoint is then read back by
Python's safetensors. Needs: torch, numpy, safetensors.

    tests/oracle/ddp_parity.py --data DIR [--nproc 2] [--steps 50] [--strategy ddp]
"""
import argparse
import json
import os
import sys
import tempfile

import command
import torch
import torch_mnist
from safetensors.torch import load_file, save_file


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    command.add_options(parser)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--strategy", default="ddp")
    parser.add_argument("--tolerance", type=float, default=1e-5, help="relative")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        start = os.path.join(folder, "start.safetensors")
        torch.manual_seed(7)
        save_file(torch_mnist.SimpleCNN().state_dict(), start)
        expected, _ = torch_mnist.train(options.data, options.nproc, max_steps=options.steps, dropout=(0, 0), init_from=start)
        output = os.path.join(folder, "run")
        command.run(options, ["train", "mnist", "--data", options.data, "--nproc", str(options.nproc), "--strategy",
                              options.strategy, "--dropout", "0", "--init-from", start, "--max-steps", str(options.steps),
                              "--log-every", "1", "--output", output, "--quiet"])
        with open(os.path.join(output, "metrics.jsonl")) as file:
            found = [line["loss"] for line in map(json.loads, file) if line["type"] == "train"]
        state = load_file(os.path.join(output, "checkpoints/last/model.safetensors"))
        torch_mnist.SimpleCNN().load_state_dict(state)  # the same names and shapes
    if len(found) != len(expected):
        sys.exit(f"{len(found)} steps were logged, {len(expected)} expected")
    worst = max(range(len(found)), key=lambda i: abs(found[i] - expected[i]) / abs(expected[i]))
    difference = abs(found[worst] - expected[worst]) / abs(expected[worst])
    print(f"{len(found)} steps on {options.nproc} ranks, {options.strategy}: loss {expected[0]:.6f} to {expected[-1]:.6f}; "
          f"greatest relative difference {difference:.2e}, at step {worst + 1}")
    if not difference <= options.tolerance:
        sys.exit(f"more than {options.tolerance:.0e}: PyTorch {expected[worst]!r}, Lockstep {found[worst]!r}")


if __name__ == "__main__":
    main()
