#!/usr/bin/env python3
"""Lockstep's TransformerLm against transformers' LlamaForCausalLM.

From the same weights and ids: logits, loss and every gradient, in float32, are those that transformers has in float64 within 1e-5 of
each tensor's largest value, for random configurations (shared heads of keys, tied embeddings, biases, all three rotations), in batches and
packed; the likeliest tokens behind a prompt are the same; the model that Lockstep saves opens in transformers and gives the same logits;
and 100 training steps with AdamW follow transformers' losses in float64 within 1e-4,
or not much farther than transformers itself in float32. Needs torch, transformers and safetensors; exit status 77 where
they are missing.

    tests/oracle/llama_parity.py [--program build/release/bin/tests/llama_parity]
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
NEW_TOKENS = 6  # as llama_parity.cpp

try:
    import parity
    import torch
    from safetensors.torch import load_file, save_file
    from transformers import LlamaConfig, LlamaForCausalLM
except (ImportError, OSError) as missing:
    print(f"skipped: {sys.executable} cannot import what the oracle needs: {missing}")
    sys.exit(SKIPPED)

ROTATIONS = {
    "default": {"rope_type": "default", "rope_theta": 10000.0},
    "linear": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0},
    "llama3": {"rope_type": "llama3", "rope_theta": 500.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
               "original_max_position_embeddings": 16},
}


def random_config(generator, rotation):
    keys = generator.choice([1, 2, 3])
    heads = keys * generator.choice([1, 2, 4])
    width = generator.choice([8, 12, 16])
    return LlamaConfig(vocab_size=generator.randint(50, 300), hidden_size=heads * generator.choice([4, 6, 8]), head_dim=width,
                       num_hidden_layers=generator.randint(1, 4), num_attention_heads=heads, num_key_value_heads=keys,
                       intermediate_size=generator.choice([24, 64, 100]), max_position_embeddings=64,
                       tie_word_embeddings=generator.random() < 0.5, attention_bias=generator.random() < 0.3,
                       mlp_bias=generator.random() < 0.3, rms_norm_eps=generator.choice([1e-5, 1e-6]),
                       rope_parameters=ROTATIONS[rotation], initializer_range=0.2)


def random_batch(config, generator, packed):
    def ids(*shape):
        return torch.randint(0, config.vocab_size, shape)

    prompt = ids(2, 7)
    if not packed:
        rows, length = generator.randint(1, 4), generator.randint(2, 60)
        return {"ids": ids(rows, length), "targets": ids(rows, length), "prompt": prompt}
    lengths = [generator.randint(1, 60) for _ in range(generator.randint(1, 6))]
    lengths += lengths[-1:]  # two of one length side by side
    return {"ids": ids(sum(lengths)), "targets": ids(sum(lengths)), "lengths": torch.tensor(lengths), "prompt": prompt}


def theirs(model, batch):
    if "lengths" not in batch:
        logits = model(input_ids=batch["ids"]).logits
    else:
        logits = torch.cat([model(input_ids=part[None]).logits[0] for part in batch["ids"].split(batch["lengths"].tolist())])
    loss = torch.nn.functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), batch["targets"].reshape(-1))
    return logits, loss


def results(model, batch):
    logits, loss = theirs(model, batch)
    loss.backward()
    gradients = {name: torch.zeros_like(value) if value.grad is None else value.grad for name, value in model.named_parameters()}
    model.zero_grad()
    return {"logits": logits.detach(), "loss": loss.detach()}, gradients


def random_model(generator, rotation):
    model = LlamaForCausalLM(random_config(generator, rotation))
    with torch.no_grad():
        for name, value in model.named_parameters():
            if "norm" in name or name.endswith("bias"):
                value.add_(0.2 * torch.randn_like(value))
    return model.eval()


def write_case(folder, model, batch):
    model.save_pretrained(folder)
    save_file({name: value.contiguous() for name, value in batch.items()}, os.path.join(folder, "batch.safetensors"))


def one_case(program, generator, rotation, packed):
    model = random_model(generator, rotation)
    batch = random_batch(model.config, generator, packed)
    with tempfile.TemporaryDirectory() as folder:
        write_case(folder, model, batch)
        subprocess.run([program, folder], check=True)
        found = load_file(os.path.join(folder, "logits.safetensors"))
        gradients = load_file(os.path.join(folder, "gradients.safetensors"))
        tokens = load_file(os.path.join(folder, "tokens.safetensors"))["tokens"]
        again = LlamaForCausalLM.from_pretrained(os.path.join(folder, "again")).eval()
    what = f"{rotation}, {'packed' if packed else 'batch'}"
    with torch.no_grad():
        if not torch.equal(theirs(again, batch)[0], theirs(model, batch)[0]):
            sys.exit(f"{what}: the model that was saved gives other logits")
        expected = model.generate(batch["prompt"], attention_mask=torch.ones_like(batch["prompt"]), max_new_tokens=NEW_TOKENS, do_sample=False, eos_token_id=None, pad_token_id=0)
    if not torch.equal(tokens, expected[:, batch["prompt"].shape[1]:]):
        sys.exit(f"{what}: the likeliest tokens are {tokens.tolist()}, transformers' {expected.tolist()}")
    values, expected = results(model, batch)
    true_values, truth = results(model.double(), batch)
    return max(parity.compare(f"{what}: values", found, true_values, TOLERANCE, values),
               parity.compare(f"{what}: gradients", gradients, truth, TOLERANCE, expected))


def training(program, generator):
    model = random_model(generator, "default")
    batch = random_batch(model.config, generator, False)
    with tempfile.TemporaryDirectory() as folder:
        write_case(folder, model, batch)
        subprocess.run([program, folder, str(STEPS), str(RATE)], check=True)
        found = load_file(os.path.join(folder, "losses.safetensors"))["losses"]
    parity.follow_training(model, lambda model: theirs(model, batch)[1], found, RATE, LOSS_TOLERANCE)


def main():
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default=os.path.join(root, "build/release/bin/tests/llama_parity"))
    options = parser.parse_args()
    torch.manual_seed(SEED)
    generator = random.Random(SEED)
    for rotation in ROTATIONS:
        for packed in (False, True):
            worst = max(one_case(options.program, generator, rotation, packed) for _ in range(4))
            print(f"{rotation} positions, {'packed' if packed else 'batches'}: 4 random models, logits, loss and gradients within "
                  f"{worst:.1e}", flush=True)
    training(options.program, generator)
    return 0


if __name__ == "__main__":
    sys.exit(main())
