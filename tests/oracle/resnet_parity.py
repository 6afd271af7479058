#!/usr/bin/env python3
"""Lockstep's ResNets against PyTorch's: names, initialisation, logits, gradients and BatchNorm's statistics of a first step.

From the same seed both draw the same parameters, bit for bit. From the same safetensors file, images and targets, the logits, the
gradients of the cross-entropy, the running statistics afterwards and the logits in evaluation mode agree: within 1e-10 in float64,
1e-4 in float32, of each tensor's largest value. Needs torch and safetensors; exit status 77 where they are missing.

    tests/oracle/resnet_parity.py [--program build/release/bin/tests/resnet_parity]
"""
import argparse
import os
import subprocess
import sys
import tempfile

SKIPPED = 77
TOLERANCE = {"float64": 1e-10, "float32": 1e-4}
# depth, stem, classes, side of the images, dtype
CASES = [(18, "imagenet", 1000, 64, "float64"), (18, "imagenet", 1000, 64, "float32"), (18, "cifar", 10, 16, "float64"),
         (18, "cifar", 10, 32, "float32"), (50, "imagenet", 1000, 64, "float64"), (50, "cifar", 10, 16, "float32")]
SEED = 7

try:
    import parity
    import torch
    import torch_resnet
    from safetensors.torch import load_file, save_file
except (ImportError, OSError) as missing:
    print(f"skipped: {sys.executable} cannot import what the oracle needs: {missing}")
    sys.exit(SKIPPED)


def one_case(program, depth, stem, classes, side, dtype):
    torch.manual_seed(SEED)
    model = torch_resnet.ResNet(depth, stem, classes)
    drawn = {name: value.clone() for name, value in model.state_dict().items()}
    model.to(getattr(torch, dtype))
    generator = torch.Generator().manual_seed(SEED)
    images = torch.randn(8, 3, side, side, generator=generator, dtype=torch.float64).to(getattr(torch, dtype))
    targets = torch.randint(0, classes, (8,), generator=generator)
    with tempfile.TemporaryDirectory() as folder:
        save_file(model.state_dict(), os.path.join(folder, "model.safetensors"))
        save_file({"images": images, "targets": targets}, os.path.join(folder, "batch.safetensors"))
        subprocess.run([program, str(depth), stem, str(classes), str(SEED), folder], check=True)
        found = {part: load_file(os.path.join(folder, f"{part}.safetensors"))
                 for part in ("drawn", "gradients", "state", "logits")}
    if parity.compare("initialisation", found["drawn"], drawn, 0.0) != 0:
        sys.exit("initialisation differs")
    logits = {"train": model(images)}
    torch.nn.functional.cross_entropy(logits["train"], targets).backward()
    model.eval()
    with torch.no_grad():
        logits["eval"] = model(images)
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    worst = {what: parity.compare(what, found[what], {name: value.detach() for name, value in expected.items()}, TOLERANCE[dtype])
             for what, expected in (("logits", logits), ("gradients", gradients), ("state", model.state_dict()))}
    count = sum(parameter.numel() for parameter in model.parameters())
    print(f"ResNet-{depth}, {stem} stem, {count:,} parameters, {dtype}: " +
          ", ".join(f"{what} {difference:.1e}" for what, difference in worst.items()), flush=True)


def main():
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default=os.path.join(root, "build/release/bin/tests/resnet_parity"))
    options = parser.parse_args()
    for case in CASES:
        one_case(options.program, *case)
    return 0


if __name__ == "__main__":
    sys.exit(main())
