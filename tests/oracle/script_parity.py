#!/usr/bin/env python3
"""TorchScript from Python, trained by Lockstep's ranks: the same parameters as in one process of PyTorch.

A scripted and a traced module are written by torch.jit.save, trained on three ranks by DistributedDataParallel, by
average_gradients() and by GradientAverager, and compared after ten steps, within 1e-10 in float64. A tied parameter stays one. A
module that torch.jit.freeze() has emptied is refused by a line that says so. Needs torch and safetensors; exit status 77 where they
are missing.

    tests/oracle/script_parity.py [--program build/release/bin/tests/script_parity]
"""
import argparse
import os
import subprocess
import sys
import tempfile

SKIPPED = 77
TOLERANCE = 1e-10
RANKS, STEPS, ROWS = 3, 10, 12

try:
    import parity
    import torch
    from safetensors.torch import load_file, save_file
except (ImportError, OSError) as missing:
    print(f"skipped: {sys.executable} cannot import what the oracle needs: {missing}")
    sys.exit(SKIPPED)


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.wide = torch.nn.Linear(6, 16)
        self.norm = torch.nn.LayerNorm(16)
        self.square = torch.nn.Linear(16, 16)
        self.again = torch.nn.Linear(16, 16)
        self.again.weight = self.square.weight  # tied
        self.narrow = torch.nn.Linear(16, 3)
        self.narrow.bias.requires_grad_(False)

    def forward(self, x):
        x = torch.tanh(self.norm(self.wide(x)))
        return self.narrow(torch.tanh(self.again(torch.tanh(self.square(x)))))


def trained_in_python(model, inputs, targets):
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.05, momentum=0.9)
    for _ in range(STEPS):
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
    # Both names of the tied parameter are in the file.
    return {name: value.detach() for name, value in model.state_dict().items()}


def run(program, folder, way):
    return subprocess.run([program, folder, way, str(RANKS), str(STEPS)], capture_output=True, text=True, timeout=240)


def main():
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default=os.path.join(root, "build/release/bin/tests/script_parity"))
    options = parser.parse_args()
    generator = torch.Generator().manual_seed(5)
    inputs = torch.randn(ROWS, 6, generator=generator, dtype=torch.float64)
    targets = torch.randn(ROWS, 3, generator=generator, dtype=torch.float64)
    for form in ("scripted", "traced"):
        torch.manual_seed(7)
        model = Net().double()
        with tempfile.TemporaryDirectory() as folder:
            written = torch.jit.script(model) if form == "scripted" else torch.jit.trace(model, inputs[:2])
            written.save(os.path.join(folder, "model.pt"))
            save_file({"inputs": inputs, "targets": targets}, os.path.join(folder, "batch.safetensors"))
            expected = trained_in_python(model, inputs, targets)
            for way in ("ddp", "average", "averager"):
                done = run(options.program, folder, way)
                if done.returncode != 0:
                    sys.exit(f"{form}, {way}: exit status {done.returncode}\n{done.stdout}{done.stderr}")
                found = load_file(os.path.join(folder, "trained.safetensors"))
                worst = parity.compare("parameters", found, expected, TOLERANCE)
                print(f"{form}, {way}: {len(found)} tensors on {RANKS} ranks within {worst:.1e}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        torch.jit.freeze(torch.jit.script(Net().double().eval())).save(os.path.join(folder, "model.pt"))
        save_file({"inputs": inputs, "targets": targets}, os.path.join(folder, "batch.safetensors"))
        done = run(options.program, folder, "ddp")
        if done.returncode != 1 or "torch.jit.freeze" not in done.stderr or done.stderr.count("\n") != 1:
            sys.exit(f"a frozen module: exit status {done.returncode}, said:\n{done.stderr}")
        print(f"frozen: {done.stderr.strip()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
