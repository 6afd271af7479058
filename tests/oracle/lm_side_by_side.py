#!/usr/bin/env python3
"""Trains the recipe lm with transformers and with Lockstep on one text, and compares the losses on its dev set.

The model `tiny`, characters as tokens, windows of 64, 12 windows on each of two ranks, AdamW with a rate of 3e-3, a warm-up of 2 % and a
cosine to 0, decay 0.1 but of norms, gradients clipped to a norm of 1; for PyTorch one process takes the same windows in the same order.
The weights that both start from differ, so seeds are averaged: the means of the losses must be within 0.02 nats. Needs torch and
transformers.

    tests/oracle/lm_side_by_side.py --data DIR [--seeds 1,2,3] [--epochs 1] [--strategy ddp]
"""
import argparse
import json
import math
import os
import statistics
import sys
import tempfile
import time

import torch
from torch.utils.data.distributed import DistributedSampler
from transformers import LlamaConfig, LlamaForCausalLM, get_cosine_schedule_with_warmup

import command

TINY = dict(hidden_size=128, intermediate_size=384, num_hidden_layers=4, num_attention_heads=4, tie_word_embeddings=True,
            rms_norm_eps=1e-6, bos_token_id=None, eos_token_id=None)
CONTEXT, BATCH, RATE, DECAY, WARMUP, CLIP = 64, 12, 3e-3, 0.1, 0.02, 1.0


def read(folder):
    """The tokens of the training text and of the dev text, and the size of the vocabulary."""
    [name] = os.listdir(folder)
    with open(os.path.join(folder, name), encoding="utf-8", newline="") as file:
        text = file.read()
    ids = {character: i for i, character in enumerate(sorted(set(text)))}
    tokens = torch.tensor([ids[character] for character in text])
    cut = len(text) * 9 // 10
    return tokens[:cut], tokens[cut:], len(ids)


def loss_of(model, windows, targets, **options):
    logits = model(input_ids=windows).logits
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), **options)


def dev_loss(model, tokens):
    model.eval()
    nats = count = 0
    with torch.no_grad():
        for start in range(0, len(tokens), CONTEXT):
            inputs, targets = tokens[start:start + CONTEXT], tokens[start + 1:start + CONTEXT + 1]
            inputs = inputs[:len(targets)]
            if len(inputs) == 0:
                continue
            nats += loss_of(model, inputs[None], targets[None], reduction="sum").item()
            count += len(targets)
    model.train()
    return nats / count


def pytorch(data, seed, epochs, ranks):
    train, dev, vocabulary = data
    torch.manual_seed(seed)
    model = LlamaForCausalLM(LlamaConfig(vocab_size=vocabulary, max_position_embeddings=CONTEXT, **TINY))
    norms = [p for name, p in model.named_parameters() if "norm" in name]
    others = [p for name, p in model.named_parameters() if "norm" not in name]
    optimizer = torch.optim.AdamW([{"params": others, "weight_decay": DECAY}, {"params": norms, "weight_decay": 0.0}], lr=RATE)
    windows = [(train[i * CONTEXT:(i + 1) * CONTEXT], train[i * CONTEXT + 1:(i + 1) * CONTEXT + 1])
               for i in range((len(train) - 1) // CONTEXT)]
    samplers = [DistributedSampler(windows, ranks, rank, shuffle=True, seed=seed) for rank in range(ranks)]
    steps = math.ceil(len(samplers[0]) / BATCH)
    schedule = get_cosine_schedule_with_warmup(optimizer, math.ceil(WARMUP * steps * epochs), steps * epochs)
    for epoch in range(epochs):
        for sampler in samplers:
            sampler.set_epoch(epoch)
        orders = [list(sampler) for sampler in samplers]
        for start in range(0, len(orders[0]), BATCH):
            rows = [windows[i] for order in orders for i in order[start:start + BATCH]]
            loss = loss_of(model, torch.stack([a for a, _ in rows]), torch.stack([b for _, b in rows]))
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
            optimizer.step()
            schedule.step()
    return dev_loss(model, dev)


def lockstep(options, seed):
    with tempfile.TemporaryDirectory() as folder:
        result = os.path.join(folder, "result.json")
        command.run(options, ["train", "lm", "--data", options.data, "--nproc", str(options.nproc), "--epochs", str(options.epochs),
                              "--context", str(CONTEXT), "--batch-size", str(BATCH), "--lr", str(RATE), "--seed", str(seed),
                              "--strategy", options.strategy, "--output", os.path.join(folder, "run"), "--json", result, "--quiet"])
        with open(result) as file:
            return json.load(file)["test_loss"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    command.add_options(parser)
    parser.add_argument("--seeds", default="1,2,3")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--strategy", default="ddp")
    parser.add_argument("--tolerance", type=float, default=0.02, help="nats, of the means")
    options = parser.parse_args()
    data = read(options.data)
    losses = {"PyTorch": [], "Lockstep": []}
    seconds = dict.fromkeys(losses, 0.0)
    for seed in map(int, options.seeds.split(",")):
        for name, run in (("PyTorch", lambda: pytorch(data, seed, options.epochs, options.nproc)),
                          ("Lockstep", lambda: lockstep(options, seed))):
            start = time.time()
            losses[name].append(run())
            seconds[name] += time.time() - start
            print(f"seed {seed}: {name} {losses[name][-1]:.4f} nats", flush=True)
    means = {name: statistics.mean(values) for name, values in losses.items()}
    for name, mean in means.items():
        print(f"{name:9} {mean:.4f} nats in {seconds[name]:.0f} s")
    difference = means["Lockstep"] - means["PyTorch"]
    print(f"difference {difference:+.4f} nats after {options.epochs} epochs on {options.nproc} ranks")
    if abs(difference) > options.tolerance:
        sys.exit(f"more than {options.tolerance} nats")


if __name__ == "__main__":
    main()
