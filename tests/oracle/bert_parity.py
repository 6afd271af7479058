#!/usr/bin/env python3
"""Lockstep's BertClassifier against transformers' BertForSequenceClassification.

From the same weights and ids, without dropout: logits, loss and every gradient, in float32, are those that transformers has in float64
within 1e-5 of each tensor's largest value, for random configurations, with padding, pairs, masks with holes and packed sequences, and
where one of the layers' Linears was replaced from outside; and 100 training steps with AdamW follow transformers' losses in float64 within 1e-4,
or not much farther than transformers itself in float32. Needs torch, transformers and safetensors; exit status 77 where they are missing.

    tests/oracle/bert_parity.py [--program build/release/bin/tests/bert_parity]
"""
import argparse
import os
import random
import subprocess
import sys
import tempfile

SKIPPED = 77
TOLERANCE = 1e-5
SEED = 11
STEPS, RATE, LOSS_TOLERANCE = 100, 1e-4, 1e-4

try:
    import parity
    import torch
    from safetensors.torch import load_file, save_file
    from transformers import BertConfig, BertForSequenceClassification
except (ImportError, OSError) as missing:
    print(f"skipped: {sys.executable} cannot import what the oracle needs: {missing}")
    sys.exit(SKIPPED)


def random_config(generator):
    heads = generator.choice([1, 2, 4])
    return BertConfig(vocab_size=generator.randint(50, 300), hidden_size=heads * generator.choice([8, 12, 16]),
                      num_hidden_layers=generator.randint(1, 4), num_attention_heads=heads,
                      intermediate_size=generator.choice([24, 64, 100]), max_position_embeddings=generator.choice([40, 64]),
                      type_vocab_size=generator.choice([1, 2, 3]), hidden_act=generator.choice(["gelu", "gelu_new", "relu"]),
                      hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, num_labels=generator.randint(2, 7),
                      initializer_range=0.2)


def random_batch(config, generator, kind):
    rows = generator.randint(1, 6)
    lengths = [generator.randint(1, config.max_position_embeddings) for _ in range(rows)]
    width = max(lengths)
    ids = torch.zeros(rows, width, dtype=torch.long)
    mask, types = torch.zeros_like(ids), torch.zeros_like(ids)
    for row, length in enumerate(lengths):
        ids[row, :length] = torch.randint(1, config.vocab_size, (length,))
        mask[row, :length] = 1
        types[row, length // 2:length] = config.type_vocab_size - 1  # the second of a pair
        if kind == "holes" and length > 2:
            mask[row, length // 2] = 0
    labels = torch.randint(0, config.num_labels, (rows,))
    return {"ids": ids, "mask": mask, "types": types, "labels": labels}, lengths


def as_given(batch, lengths, kind):
    if kind == "plain":  # neither mask nor types
        return {name: batch[name] for name in ("ids", "labels")}
    if kind != "packed":
        return batch
    ends = [(row, length) for row, length in enumerate(lengths)]
    return {"ids": torch.cat([batch["ids"][row, :length] for row, length in ends]),
            "types": torch.cat([batch["types"][row, :length] for row, length in ends]),
            "lengths": torch.tensor(lengths), "labels": batch["labels"]}


def theirs(model, batch, kind):
    if kind == "plain":
        return model(input_ids=batch["ids"], labels=batch["labels"])
    return model(input_ids=batch["ids"], attention_mask=batch["mask"], token_type_ids=batch["types"], labels=batch["labels"])


def results(model, batch, kind):
    """Logits and loss, and the gradients."""
    result = theirs(model, batch, kind)
    result.loss.backward()
    gradients = {name: torch.zeros_like(value) if value.grad is None else value.grad for name, value in model.named_parameters()}
    model.zero_grad()
    return {"logits": result.logits.detach(), "loss": result.loss.detach()}, gradients


def write_case(folder, model, given):
    model.config.to_json_file(os.path.join(folder, "config.json"), use_diff=False)
    save_file({name: value.contiguous().clone() for name, value in model.state_dict().items()},
              os.path.join(folder, "model.safetensors"))
    save_file({name: value.contiguous() for name, value in given.items()}, os.path.join(folder, "batch.safetensors"))


def one_case(program, generator, kind, replaced=None):
    config = random_config(generator)
    model = BertForSequenceClassification(config)
    batch, lengths = random_batch(config, generator, kind)
    with tempfile.TemporaryDirectory() as folder:
        write_case(folder, model, as_given(batch, lengths, kind))
        subprocess.run([program, os.path.join(folder, "config.json"), folder, *([replaced] if replaced else [])], check=True)
        found = load_file(os.path.join(folder, "logits.safetensors"))
        gradients = load_file(os.path.join(folder, "gradients.safetensors"))
    if replaced:
        model.get_submodule(replaced).weight.data.mul_(0.5)
    values, expected = results(model, batch, kind)
    true_values, truth = results(model.double(), batch, kind)
    return max(parity.compare(f"{kind}: values", found, true_values, TOLERANCE, values),
               parity.compare(f"{kind}: gradients", gradients, truth, TOLERANCE, expected))


def training(program, generator):
    config = random_config(generator)
    model = BertForSequenceClassification(config)
    batch, lengths = random_batch(config, generator, "padded")
    with tempfile.TemporaryDirectory() as folder:
        write_case(folder, model, as_given(batch, lengths, "padded"))
        subprocess.run([program, os.path.join(folder, "config.json"), folder, str(STEPS), str(RATE)], check=True)
        found = load_file(os.path.join(folder, "losses.safetensors"))["losses"]
    parity.follow_training(model, lambda model: theirs(model, batch, "padded").loss, found, RATE, LOSS_TOLERANCE)


def main():
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default=os.path.join(root, "build/release/bin/tests/bert_parity"))
    options = parser.parse_args()
    torch.manual_seed(SEED)
    generator = random.Random(SEED)
    for kind in ("padded", "holes", "plain", "packed"):
        worst = max(one_case(options.program, generator, kind) for _ in range(6))
        print(f"{kind}: 6 random models and batches, logits, loss and gradients within {worst:.1e}", flush=True)
    for name in ("attention.self.query", "attention.output.dense", "intermediate.dense", "output.dense"):
        worst = max(one_case(options.program, generator, kind, f"bert.encoder.layer.0.{name}") for kind in ("holes", "packed"))
        print(f"{name} replaced: logits, loss and gradients within {worst:.1e}", flush=True)
    training(options.program, generator)
    return 0


if __name__ == "__main__":
    sys.exit(main())
