#!/usr/bin/env python3
"""Lockstep's ZeRO stages against PyTorch's FSDP2 (fully_shard) over gloo.

From the same weights and batches of a small Llama: 50 steps with AdamW and clipping on two ranks, each with its half of a batch. In float64 the
losses and the parameters that come out agree within 1e-9 of the largest value, in float32 the losses within 1e-5: for stages 1, 2 and 3, and for
stage 3 with layers that hosts divide. Needs torch, transformers and safetensors; exit status 77 where they are missing.

    tests/oracle/fsdp_parity.py [--program build/release/bin/tests/fsdp_parity]
"""
import argparse
import os
import subprocess
import sys
import tempfile

SKIPPED = 77
STEPS, ROWS, TOKENS, RANKS = 50, 8, 24, 2
RATE, DECAY, CLIP = 1e-3, 0.1, 0.5
LOSS_TOLERANCE = {"float64": 1e-9, "float32": 1e-5}
PARAMETER_TOLERANCE = {"float64": 1e-8}

try:
    import torch
    import torch.distributed as dist
    import two_ranks
    from safetensors.torch import load_file, save_file
    from torch.distributed.fsdp import fully_shard
    from transformers import LlamaConfig, LlamaForCausalLM
except (ImportError, OSError) as missing:
    print(f"skipped: {sys.executable} cannot import what the oracle needs: {missing}")
    sys.exit(SKIPPED)


def theirs(folder, rank):
    """One rank of PyTorch's job."""
    two_ranks.begin(rank, os.path.join(folder, "rendezvous"))
    model = LlamaForCausalLM.from_pretrained(folder, dtype="auto").train()
    mesh = dist.device_mesh.init_device_mesh("cpu", (RANKS,))
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=DECAY)
    batches = load_file(os.path.join(folder, "batches.safetensors"))
    losses = []
    for ids, targets in zip(batches["ids"], batches["targets"]):
        own = slice(rank * ROWS // RANKS, (rank + 1) * ROWS // RANKS)
        optimizer.zero_grad()
        logits = model(input_ids=ids[own]).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets[own].flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        losses.append(loss.item())
    losses = torch.tensor(losses, dtype=torch.float64)
    dist.all_reduce(losses)
    trained = {name: value.full_tensor().contiguous() for name, value in model.state_dict().items()}
    if rank == 0:
        save_file({"losses": losses / RANKS}, os.path.join(folder, "their_losses.safetensors"))
        save_file(trained, os.path.join(folder, "their_trained.safetensors"))
    two_ranks.end()


def distance(found, expected):
    return ((found.double() - expected.double()).abs().max() / expected.double().abs().max()).item()


def compare(program, dtype):
    torch.manual_seed(5)
    config = LlamaConfig(vocab_size=97, hidden_size=48, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2, intermediate_size=80,
                         max_position_embeddings=64, tie_word_embeddings=False, initializer_range=0.2)
    model = LlamaForCausalLM(config).to(getattr(torch, dtype))
    ids = torch.randint(0, config.vocab_size, (STEPS, ROWS, TOKENS))
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        save_file({"ids": ids, "targets": ids.roll(-1, -1)}, os.path.join(folder, "batches.safetensors"))
        two_ranks.run(os.path.abspath(__file__), folder)
        losses = load_file(os.path.join(folder, "their_losses.safetensors"))["losses"]
        trained = load_file(os.path.join(folder, "their_trained.safetensors"))
        if not losses[-5:].mean() < losses[:5].mean():
            sys.exit(f"FSDP2 learned nothing: {losses.tolist()}")
        for stage in ("1", "2", "3", "units"):
            subprocess.run([program, folder, stage], check=True)
            of_losses = distance(load_file(os.path.join(folder, "losses.safetensors"))["losses"], losses)
            found = load_file(os.path.join(folder, "trained.safetensors"))
            if set(found) != set(trained):
                sys.exit(f"other parameters: {sorted(set(found) ^ set(trained))}")
            of_parameters, worst = max((distance(found[name], trained[name]), name) for name in trained)
            print(f"{dtype}, stage {stage}: losses {of_losses:.1e}, parameters {of_parameters:.1e} ({worst})")
            if of_losses > LOSS_TOLERANCE[dtype] or of_parameters > PARAMETER_TOLERANCE.get(dtype, 1e9):
                sys.exit("that is too much")


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
    for dtype in LOSS_TOLERANCE:
        compare(options.program, dtype)


if __name__ == "__main__":
    main()
