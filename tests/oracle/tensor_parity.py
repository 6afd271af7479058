#!/usr/bin/env python3
"""Lockstep's tensor parallelism against PyTorch's (torch.distributed.tensor.parallel) over gloo.

From the same weights and batches of a small Llama whose matrices two ranks divide: every loss of ten steps with SGD, every gradient of the first step
and every parameter after the last one are those that PyTorch has in float64: within 1e-5 of each tensor's largest value in float32, or not much
farther than PyTorch itself in float32, and within 1e-9 in float64. PyTorch divides attention
and MLP by ColwiseParallel and RowwiseParallel, embeddings by RowwiseParallel, the head by ColwiseParallel. Needs torch, transformers and
safetensors; exit status 77 where they are missing.

    tests/oracle/tensor_parity.py [--program build/release/bin/tests/tensor_parity]
"""
import argparse
import os
import subprocess
import sys
import tempfile

SKIPPED = 77
STEPS, LAYERS = 10, 3
TOLERANCE = {"float64": 1e-9, "float32": 1e-5}

try:
    import torch
    import torch.distributed as dist
    import two_ranks
    from torch.distributed.tensor import DTensor, Replicate
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
except (ImportError, OSError) as missing:
    print(f"skipped: {sys.executable} cannot import what the oracle needs: {missing}")
    sys.exit(SKIPPED)


def divide(model, mesh):
    plan = {"model.embed_tokens": RowwiseParallel(input_layouts=Replicate()), "lm_head": ColwiseParallel(output_layouts=Replicate())}
    for column in ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "mlp.gate_proj", "mlp.up_proj"):
        plan["model.layers.*." + column] = ColwiseParallel()
    for row in ("self_attn.o_proj", "mlp.down_proj"):
        plan["model.layers.*." + row] = RowwiseParallel()
    return parallelize_module(model, mesh, plan)


def whole(tensor):
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach().clone().contiguous()


def train(folder, mesh):
    """-> losses, gradients of the first step, parameters, whole ones."""
    model = divide(two_ranks.model_of(folder), mesh)
    optimizer = two_ranks.optimizer_of(model.parameters())
    losses, gradients = [], None
    for ids, targets in two_ranks.batches_of(folder):
        optimizer.zero_grad()
        loss = two_ranks.loss_of(model(input_ids=ids).logits, targets)
        loss.backward()
        if gradients is None:
            gradients = {name: whole(parameter.grad) for name, parameter in model.named_parameters()}
        optimizer.step()
        losses.append(loss.item())
    return losses, gradients, {name: whole(parameter) for name, parameter in model.named_parameters()}


def theirs(folder, rank):
    """One rank of PyTorch's job."""
    two_ranks.begin(rank, os.path.join(folder, "rendezvous"))
    mesh = dist.device_mesh.init_device_mesh("cpu", (two_ranks.RANKS,))
    for dtype in TOLERANCE:
        results = train(os.path.join(folder, dtype), mesh)
        if rank == 0:
            two_ranks.write(os.path.join(folder, dtype), "their_", *results)
    two_ranks.end()


def main():
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default=os.path.join(root, "build/release/bin/tests/tensor_parity"))
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
            case = os.path.join(folder, dtype)
            subprocess.run([options.program, case, str(two_ranks.RATE), str(two_ranks.MOMENTUM)], check=True)
            two_ranks.compare(f"{dtype}, beside PyTorch's", folder, dtype, "their_", tolerance)


if __name__ == "__main__":
    main()
