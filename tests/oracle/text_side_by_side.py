#!/usr/bin/env python3
"""Trains tutorial 003's task from scratch with transformers and with Lockstep, and compares what they reach on the dev set.

The default recipe: BERT of the size `mini` drawn at random, 3 epochs, rate 5e-4 with a warm-up of a tenth and a linear decay, AdamW with
decay 0.01 but for biases and norms, padded to the longest; the best of the epochs' dev accuracies counts. `single` takes 32 texts a
step, `distributed` 32 on each of two ranks; for PyTorch one process takes the same texts in the same order. The weights that both start
from differ, so seeds are averaged: the means must be within 1.5 points. Needs torch, transformers and tokenizers.

    tests/oracle/text_side_by_side.py --data DIR --vocab FILE [--seeds 123,124,125] [--methods single,distributed] [--epochs 3]
"""
import argparse
import json
import math
import os
import statistics
import sys
import tempfile

import torch
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data.distributed import DistributedSampler
from transformers import BertConfig, BertForSequenceClassification, BertTokenizer, get_linear_schedule_with_warmup

import command

MINI = dict(hidden_size=256, num_hidden_layers=4, num_attention_heads=4, intermediate_size=1024)
RANKS = {"single": 1, "distributed": 2}
RATE, DECAY, WARMUP, BATCH = 5e-4, 0.01, 0.1, 32


def read(folder):
    """Token-ready texts and labels of the training and the dev rows, in the split's order."""
    with open(os.path.join(folder, "train.json"), encoding="utf-8") as file:
        rows = [(text.replace(" ", "").strip(), label) for text, label in json.load(file)]
    with open(os.path.join(folder, "split_seed123.txt")) as file:
        order = [int(line) for line in file]
    rows = [rows[row] for row in order]
    return rows[:9200], rows[9200:]


def batches(rows, ranks, seed, epoch):
    """The rows of every step: those of all ranks together."""
    samplers = [DistributedSampler(rows, ranks, rank, shuffle=True, seed=seed) for rank in range(ranks)]
    for sampler in samplers:
        sampler.set_epoch(epoch)
    orders = [list(sampler) for sampler in samplers]
    for start in range(0, len(orders[0]), BATCH):
        yield [rows[i] for order in orders for i in order[start:start + BATCH]]


def collate(rows):
    ids = [torch.tensor(ids) for ids, _ in rows]
    return {"input_ids": pad_sequence(ids, batch_first=True), "labels": torch.tensor([label for _, label in rows]),
            "attention_mask": pad_sequence([torch.ones_like(one) for one in ids], batch_first=True)}


def accuracy(model, rows):
    model.eval()
    right = 0
    with torch.no_grad():
        for start in range(0, len(rows), BATCH):
            batch = collate(rows[start:start + BATCH])
            labels = batch.pop("labels")
            right += int((model(**batch).logits.argmax(1) == labels).sum())
    model.train()
    return right / len(rows)


def train_pytorch(data, vocab, ranks, seed, epochs):
    tokenizer = BertTokenizer(vocab)
    train, dev = ([(tokenizer(text, truncation=True, max_length=128)["input_ids"], label) for text, label in rows]
                  for rows in read(data))
    torch.manual_seed(seed)
    model = BertForSequenceClassification(BertConfig(vocab_size=len(tokenizer), num_labels=6, **MINI)).train()
    plain = [p for name, p in model.named_parameters() if name.endswith("bias") or "LayerNorm" in name]
    decayed = [p for name, p in model.named_parameters() if not (name.endswith("bias") or "LayerNorm" in name)]
    optimizer = torch.optim.AdamW([{"params": decayed}, {"params": plain, "weight_decay": 0.0}], lr=RATE, weight_decay=DECAY)
    steps = epochs * len(list(batches(train, ranks, seed, 0)))
    schedule = get_linear_schedule_with_warmup(optimizer, math.ceil(WARMUP * steps), steps)
    found = []
    for epoch in range(epochs):
        for rows in batches(train, ranks, seed, epoch):
            optimizer.zero_grad()
            model(**collate(rows)).loss.backward()
            optimizer.step()
            schedule.step()
        found.append(accuracy(model, dev))
        print(f"  PyTorch, {ranks} x {BATCH}, seed {seed}, epoch {epoch + 1}: {100 * found[-1]:.2f} %", file=sys.stderr, flush=True)
    return max(found)


def train_here(options, method, seed):
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "result.json")
        command.run(options, ["compare", "--programs", options.programs, "--methods", method, "--remove-spaces", "--data", options.data, "--vocab", options.vocab, "--seed", str(seed),
                              "--epochs", str(options.epochs), "--output", os.path.join(folder, "run"), "--json", path])
        with open(path) as file:
            return json.load(file)["methods"][0]["dev_accuracy"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    command.add_options(parser)
    parser.add_argument("--vocab", required=True)
    parser.add_argument("--programs", default=os.path.join(command.ROOT, "build/release/bin/examples/text_classification"),
                        help="the directory of tutorial 003's programs")
    parser.add_argument("--seeds", default="123,124,125")
    parser.add_argument("--methods", default=",".join(RANKS))
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--tolerance", type=float, default=0.015, help="of the mean accuracies")
    options = parser.parse_args()
    seeds = [int(seed) for seed in options.seeds.split(",")]
    failed = False
    for method in options.methods.split(","):
        here = [train_here(options, method, seed) for seed in seeds]
        theirs = [train_pytorch(options.data, options.vocab, RANKS[method], seed, options.epochs) for seed in seeds]
        difference = statistics.mean(here) - statistics.mean(theirs)
        for name, found in (("Lockstep", here), ("PyTorch", theirs)):
            print(f"{method:12} {name:9} {100 * statistics.mean(found):.2f} %, of seeds "
                  + ", ".join(f"{100 * one:.2f}" for one in found), flush=True)
        print(f"{method:12} difference {100 * difference:+.2f} points", flush=True)
        failed |= abs(difference) > options.tolerance
    if failed:
        sys.exit(f"more than {100 * options.tolerance:.1f} points")


if __name__ == "__main__":
    main()
