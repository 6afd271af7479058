#!/usr/bin/env python3
"""Lockstep's exponential average of parameters against torch.optim.swa_utils.AveragedModel with get_ema_multi_avg_fn.

A small network trains in PyTorch; after each step both take its parameters. The averages have the same bits after every step, in
float32 and float64. Needs torch and safetensors; exit status 77 where they are missing.

    tests/oracle/ema_parity.py [--program build/release/bin/tests/ema_parity]
"""
import argparse
import os
import subprocess
import sys
import tempfile

SKIPPED = 77
STEPS = 25
CASES = [(decay, dtype) for decay in (0.5, 0.9, 0.999) for dtype in ("float32", "float64")]

try:
    import torch
    from safetensors.torch import load_file, save_file
    from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
except (ImportError, OSError) as missing:
    print(f"skipped: {sys.executable} cannot import what the oracle needs: {missing}")
    sys.exit(SKIPPED)


def parameters_of(model):
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def one_case(program, decay, dtype):
    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(7, 33), torch.nn.Tanh(), torch.nn.Linear(33, 5)).to(getattr(torch, dtype))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    averaged = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(decay))
    with tempfile.TemporaryDirectory() as folder:
        expected = []
        for step in range(STEPS):
            optimizer.zero_grad()
            model(torch.randn(16, 7, dtype=getattr(torch, dtype))).square().mean().backward()
            optimizer.step()
            averaged.update_parameters(model)
            save_file(parameters_of(model), os.path.join(folder, f"step-{step}.safetensors"))
            expected.append(parameters_of(averaged.module))
        subprocess.run([program, str(decay), str(STEPS), folder], check=True)
        for step in range(STEPS):
            found = load_file(os.path.join(folder, f"average-{step}.safetensors"))
            if sorted(found) != sorted(expected[step]):
                sys.exit(f"names differ: {sorted(found)}, expected {sorted(expected[step])}")
            for name, value in expected[step].items():
                if not torch.equal(found[name], value):
                    sys.exit(f"decay {decay}, {dtype}: {name} differs after step {step}, by {(found[name] - value).abs().max().item():.2e}")
        moved = max((value - parameters_of(model)[name]).abs().max().item() for name, value in expected[-1].items())
        if moved == 0:
            sys.exit(f"decay {decay}, {dtype}: the average is the parameters themselves, so that nothing was compared")
    print(f"decay {decay}, {dtype}: the averages of {STEPS} steps have the same bits, up to {moved:.1e} from the parameters", flush=True)


def main():
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default=os.path.join(root, "build/release/bin/tests/ema_parity"))
    program = parser.parse_args().program
    for decay, dtype in CASES:
        one_case(program, decay, dtype)


if __name__ == "__main__":
    main()
