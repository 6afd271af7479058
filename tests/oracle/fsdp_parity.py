#!/usr/bin/env python3
"""Lockstep's ZeRO stages against PyTorch's FSDP2 (fully_shard) over gloo.

From the same weights and batches of a small Llama: 50 steps with AdamW and clipping on two ranks, each with its half of a batch. The losses are
those that PyTorch has in float64: within 1e-9 of the largest in float64, and in float32 within 1e-5, or not much farther than PyTorch itself in
float32; the parameters that come out agree in float64 within 1e-8 of each tensor's largest value (in float32 AdamW makes steps of one size from
gradients that are rounding). For stages 1, 2 and 3, and for stage 3 with layers that hosts divide. Needs torch, transformers and safetensors;
exit status 77 where they are missing.

    tests/oracle/fsdp_parity.py [--program build/release/bin/tests/fsdp_parity]
"""
import argparse
import os
import subprocess
import sys
import tempfile

SKIPPED = 77
STEPS, LAYERS = 50, 3
RATE, DECAY, CLIP = 1e-3, 0.1, 0.5
LOSS_TOLERANCE = {"float64": 1e-9, "float32": 1e-5}
PARAMETER_TOLERANCE = 1e-8  # in float64

try:
    import parity
    import torch
    import torch.distributed as dist
    import two_ranks
    from safetensors.torch import load_file, save_file
    from torch.distributed.fsdp import fully_shard
except (ImportError, OSError) as missing:
    print(f"skipped: {sys.executable} cannot import what the oracle needs: {missing}")
    sys.exit(SKIPPED)


def train(folder, rank):
    """-> losses, averaged over the ranks, and parameters, both on every rank."""
    model = two_ranks.model_of(folder)
    mesh = dist.device_mesh.init_device_mesh("cpu", (two_ranks.RANKS,))
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=DECAY)
    rows = two_ranks.ROWS // two_ranks.RANKS
    own = slice(rank * rows, (rank + 1) * rows)
    losses = []
    for ids, targets in two_ranks.batches_of(folder):
        optimizer.zero_grad()
        loss = two_ranks.loss_of(model(input_ids=ids[own]).logits, targets[own])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        losses.append(loss.item())
    losses = torch.tensor(losses, dtype=torch.float64)
    dist.all_reduce(losses)
    return losses / two_ranks.RANKS, {name: value.full_tensor().contiguous() for name, value in model.state_dict().items()}


def theirs(folder, rank):
    """One rank of PyTorch's job."""
    two_ranks.begin(rank, os.path.join(folder, "rendezvous"))
    for dtype in LOSS_TOLERANCE:
        losses, trained = train(os.path.join(folder, dtype), rank)
        if rank == 0:
            save_file({"losses": losses}, os.path.join(folder, dtype, "their_losses.safetensors"))
            save_file(trained, os.path.join(folder, dtype, "their_trained.safetensors"))
    two_ranks.end()


def compare(program, folder, dtype):
    def of(name, of_dtype=dtype):
        return load_file(os.path.join(folder, of_dtype, name + ".safetensors"))

    truth, beside = of("their_losses", "float64"), of("their_losses")
    if not truth["losses"][-5:].mean() < truth["losses"][:5].mean():
        sys.exit(f"FSDP2 learned nothing: {truth['losses'].tolist()}")
    for stage in ("1", "2", "3", "units"):
        subprocess.run([program, os.path.join(folder, dtype), stage], check=True)
        what = f"{dtype}, stage {stage}"
        said = f"losses within {parity.compare(what, of('losses'), truth, LOSS_TOLERANCE[dtype], beside):.1e}"
        if dtype == "float64":
            said += f", parameters {parity.compare(what, of('trained'), of('their_trained'), PARAMETER_TOLERANCE):.1e}"
        print(f"{what}: {said}", flush=True)


def main():
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default=os.path.join(root, "build/release/bin/tests/fsdp_parity"))
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("folder", nargs="?", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank is not None:
        theirs(options.folder, options.rank)
        return
    torch.manual_seed(5)
    with tempfile.TemporaryDirectory() as folder:
        two_ranks.write_cases(folder, LOSS_TOLERANCE, STEPS, LAYERS)
        two_ranks.run(os.path.abspath(__file__), folder)
        for dtype in LOSS_TOLERANCE:
            compare(options.program, folder, dtype)


if __name__ == "__main__":
    main()
