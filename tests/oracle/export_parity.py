#!/usr/bin/env python3
"""What goes from Lockstep to PyTorch: twins of modules, and the state of optimizers.

The twins that module_to_python() writes load what save() wrote, compute what the modules compute within 1e-5 (float32) or 1e-10 (float64), and
`lockstep export --twin` makes files of them. Models and optimizers that were trained some steps in C++ go on in PyTorch and end, after as many
steps more on the same data, where C++ ends: within 1e-6 in float32 and 1e-10 in float64, for SGD, Adam, AdamW, RMSprop, Adagrad and the fused
ones. Needs torch; exit status 77 where it is missing.

    tests/oracle/export_parity.py [--program build/release/bin/tests/export_parity] [--lockstep build/release/bin/lockstep]
"""
import argparse
import os
import subprocess
import sys
import tempfile

SKIPPED = 77
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

try:
    import torch
except (ImportError, OSError) as missing:
    print(f"skipped: {sys.executable} cannot import what the oracle needs: {missing}")
    sys.exit(SKIPPED)

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(ROOT, "python", "lockstep_export"))
import lockstep_checkpoint  # noqa: E402

STEPS = 6  # as export_parity.cpp
OPTIMIZERS = 21
AXES = {"pictures": "x=float32:batch,3,12,12", "tokens": "x=int64:batch,5", "doubles": "x=float64:batch,4"}


def largest_difference(found, expected):
    return (found - expected).abs().max().item()


def twin_of(folder):
    names = {}
    with open(os.path.join(folder, "model.py"), encoding="utf-8") as file:
        exec(compile(file.read(), "model.py", "exec"), names)
    tensors = lockstep_checkpoint.read_model(os.path.join(folder, "model.safetensors"))
    model = names["make"]().to(next(t.dtype for t in tensors.values() if t.is_floating_point()))
    model.load_state_dict(tensors)
    return model.eval()


def check_twin(folder, name, options):
    batch, _ = lockstep_checkpoint.read_safetensors(os.path.join(folder, "batch.safetensors"))
    with torch.no_grad():
        difference = largest_difference(twin_of(folder)(batch["x"]), batch["y"])
    if not difference <= (1e-10 if batch["y"].dtype == torch.float64 else 1e-5):
        sys.exit(f"{name}: the twin's outputs differ by {difference:.1e}")
    output = os.path.join(folder, name + ".pt2")
    ended = subprocess.run([options.lockstep, "export", os.path.join(folder, "model.safetensors"), "--twin", os.path.join(folder, "model.py"), "--input", AXES[name],
                            "--to", "pt2", "--check", "--output", output, "--python", sys.executable], capture_output=True, text=True)
    if ended.returncode != 0:
        sys.exit(f"{name}: lockstep export ended with {ended.returncode}: {ended.stderr}")
    with torch.no_grad():
        exported = largest_difference(torch.export.load(output).module()(batch["x"]), batch["y"])
    if not exported <= 1e-5:
        sys.exit(f"{name}: the exported model's outputs differ by {exported:.1e}")
    print(f"{name}: the twin differs by {difference:.1e}, the exported one by {exported:.1e}")


def go_on(folder):
    """The parameters after the other half of the steps."""
    checkpoint = os.path.join(folder, "checkpoint")
    tensors = lockstep_checkpoint.read_model(checkpoint)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3)).to(tensors["0.weight"].dtype)
    model.load_state_dict(tensors)
    optimizer = lockstep_checkpoint.make_optimizer(model, checkpoint)
    batches, _ = lockstep_checkpoint.read_safetensors(os.path.join(folder, "batches.safetensors"))
    for step in range(STEPS, 2 * STEPS):
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(batches["x"][step]), batches["y"][step]).backward()
        optimizer.step()
    return model.state_dict(), tensors


def check_optimizer(folder, name):
    found, begun = go_on(folder)
    trained = lockstep_checkpoint.read_model(os.path.join(folder, "trained.safetensors"))
    tolerance = 1e-10 if name.endswith("float64") else 1e-6
    worst = max(largest_difference(found[key], trained[key]) for key in trained)
    moved = max(largest_difference(begun[key], trained[key]) for key in trained)
    if not worst <= tolerance:
        sys.exit(f"{name}: parameters differ by {worst:.1e} after {STEPS} further steps")
    if moved < 1e-3:
        sys.exit(f"{name}: the steps moved nothing")
    return worst


def check_fresh_state_fails(folder):
    """Without the state the same steps lead elsewhere: the comparison above would see that."""
    original = lockstep_checkpoint.state_dict_of
    lockstep_checkpoint.state_dict_of = lambda *given: (lambda kind, saved, groups: (kind, {**saved, "state": {}}, groups))(*original(*given))
    try:
        found, _ = go_on(folder)
    finally:
        lockstep_checkpoint.state_dict_of = original
    trained = lockstep_checkpoint.read_model(os.path.join(folder, "trained.safetensors"))
    if max(largest_difference(found[key], trained[key]) for key in trained) < 1e-4:
        sys.exit("an optimizer without its state goes the same way: the test cannot fail")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--program", default=os.path.join(ROOT, "build/release/bin/tests/export_parity"))
    parser.add_argument("--lockstep", help="the command [bin/lockstep of the build that has the program]")
    options = parser.parse_args()
    options.lockstep = options.lockstep or os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(options.program))), "lockstep")
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([options.program, folder], check=True)
        optimizers = os.path.join(folder, "optimizers")
        names = sorted(os.listdir(optimizers))
        if len(names) != OPTIMIZERS:
            sys.exit(f"there are {len(names)} optimizers, expected {OPTIMIZERS}")
        for name in names:
            print(f"{name}: parameters within {check_optimizer(os.path.join(optimizers, name), name):.1e} after {STEPS} further steps")
        check_fresh_state_fails(os.path.join(optimizers, "adam_float64"))
        for name in AXES:
            check_twin(os.path.join(folder, name), name, options)


if __name__ == "__main__":
    main()
