#!/usr/bin/env python3
"""Lockstep's exponential average of a model against torch.optim.swa_utils.AveragedModel with get_ema_multi_avg_fn.

A small network with BatchNorm trains in PyTorch; after each step both take its parameters and buffers. The averaged models have the same
bits after every step, in float32 and float64: with buffers of the last step (use_buffers=False, the default of both), and with averaged
ones. Only BatchNorm's count of batches is another where buffers are averaged: torch rounds the average of whole numbers down, here it is
the last count. Needs torch and safetensors; exit status 77 where they are missing.

    tests/oracle/ema_parity.py [--program build/release/bin/tests/ema_parity]
"""
import argparse
import itertools
import os
import subprocess
import sys
import tempfile

SKIPPED = 77
STEPS = 25
CASES = list(itertools.product((0.5, 0.9, 0.999), ("float32", "float64"), (False, True)))

try:
    import torch
    from safetensors.torch import load_file, save_file
    from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
except (ImportError, OSError) as missing:
    print(f"skipped: {sys.executable} cannot import what the oracle needs: {missing}")
    sys.exit(SKIPPED)


def copied(named):
    return {name: tensor.detach().clone() for name, tensor in named}


def one_case(program, decay, dtype, use_buffers):
    case = f"decay {decay}, {dtype}, buffers {'averaged' if use_buffers else 'of the last step'}"
    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(7, 33), torch.nn.BatchNorm1d(33), torch.nn.Tanh(), torch.nn.Linear(33, 5)).to(getattr(torch, dtype))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    averaged = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(decay), use_buffers=use_buffers)
    with tempfile.TemporaryDirectory() as folder:
        expected = []
        for step in range(STEPS):
            optimizer.zero_grad()
            model(torch.randn(16, 7, dtype=getattr(torch, dtype))).square().mean().backward()
            optimizer.step()
            averaged.update_parameters(model)
            save_file(copied(model.named_parameters()), os.path.join(folder, f"parameters-{step}.safetensors"))
            save_file(copied(model.named_buffers()), os.path.join(folder, f"buffers-{step}.safetensors"))
            expected.append(copied(averaged.module.state_dict().items()))
            if use_buffers:
                expected[step]["1.num_batches_tracked"] = model[1].num_batches_tracked.clone()
        subprocess.run([program, str(decay), str(STEPS), folder, "buffers" if use_buffers else "parameters"], check=True)
        for step in range(STEPS):
            found = load_file(os.path.join(folder, f"averaged-{step}.safetensors"))
            if sorted(found) != sorted(expected[step]):
                sys.exit(f"names differ: {sorted(found)}, expected {sorted(expected[step])}")
            for name, value in expected[step].items():
                if not torch.equal(found[name], value):
                    sys.exit(f"{case}: {name} differs after step {step}, by {(found[name] - value).abs().max().item():.2e}")
    last = copied(model.state_dict().items())
    moved = {name: (value - last[name]).abs().max().item() for name, value in expected[-1].items()}
    for name in ("0.weight", "1.running_mean", "1.running_var"):
        if (moved[name] == 0) != (name.startswith("1.") and not use_buffers):
            sys.exit(f"{case}: {name} is {moved[name]} from the last step's, so that nothing was compared")
    print(f"{case}: the averages of {STEPS} steps have the same bits, up to {max(moved.values()):.1e} from the last step's", flush=True)


def main():
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default=os.path.join(root, "build/release/bin/tests/ema_parity"))
    program = parser.parse_args().program
    for case in CASES:
        one_case(program, *case)


if __name__ == "__main__":
    main()
