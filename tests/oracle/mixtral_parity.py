#!/usr/bin/env python3
"""Lockstep's TransformerLm with experts against transformers' MixtralForCausalLM and, with a shared expert, Qwen2MoeForCausalLM.

From the same weights and ids: logits, the loss with load balancing and every gradient, in float32, are those that transformers has in
float64 within 2e-5 of each tensor's largest value, for random configurations, in batches and packed; the likeliest tokens behind a prompt are
the same; the model that Lockstep saves opens in transformers and gives the same logits; and 50 training steps with AdamW follow
transformers' losses in float64 within 1e-4, or not much farther than transformers itself in float32. Runs the program of llama_parity.py. Needs torch, transformers and safetensors; exit status 77 where they are
missing. With --time instead: a step of one process, forward and backward, of both from the same weights, in turns.

    tests/oracle/mixtral_parity.py [--program build/release/bin/tests/llama_parity] [--time ROUNDS]
"""
import argparse
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time

SKIPPED = 77
TOLERANCE = 2e-5
SEED = 13
STEPS, RATE, LOSS_TOLERANCE = 50, 1e-4, 1e-4
NEW_TOKENS = 6  # as llama_parity.cpp

try:
    import parity
    import torch
    from safetensors.torch import load_file, save_file
    from transformers import MixtralConfig, MixtralForCausalLM, Qwen2MoeConfig, Qwen2MoeForCausalLM
    from transformers.models.mixtral.modeling_mixtral import load_balancing_loss_func
except (ImportError, OSError) as missing:
    print(f"skipped: {sys.executable} cannot import what the oracle needs: {missing}")
    sys.exit(SKIPPED)


def random_model(generator, kind, **fields):
    keys = generator.choice([1, 2])
    heads = keys * generator.choice([1, 2])
    experts = generator.choice([2, 4, 8])
    common = {**dict(vocab_size=generator.randint(50, 300), hidden_size=heads * generator.choice([8, 16]),
                     num_hidden_layers=generator.randint(1, 3), num_attention_heads=heads, num_key_value_heads=keys,
                     max_position_embeddings=64, tie_word_embeddings=generator.random() < 0.5, initializer_range=0.2,
                     num_experts_per_tok=generator.randint(1, min(3, experts)), router_aux_loss_coef=generator.choice([0.02, 0.5]),
                     output_router_logits=True), **fields}
    inner = common.pop("inner", None) or generator.choice([24, 40])
    experts = common.pop("experts", experts)
    if kind == "mixtral":
        model = MixtralForCausalLM(MixtralConfig(num_local_experts=experts, intermediate_size=inner, **common))
    else:
        model = Qwen2MoeForCausalLM(Qwen2MoeConfig(num_experts=experts, moe_intermediate_size=inner, norm_topk_prob=True, qkv_bias=False,
                                                   shared_expert_intermediate_size=generator.choice([16, 56]), **common))
    with torch.no_grad():
        for name, value in model.named_parameters():
            if "norm" in name:
                value.add_(0.2 * torch.randn_like(value))
            elif "gate.weight" in name:  # transformers' Qwen2-MoE begins with zeros, where all experts are equal
                value.normal_(0, 0.2)
    return model.train()


def random_batch(config, generator, packed):
    def ids(*shape):
        return torch.randint(0, config.vocab_size, shape)

    prompt = ids(2, 7)
    if not packed:
        rows, length = generator.randint(1, 4), generator.randint(8, 60)
        return {"ids": ids(rows, length), "targets": ids(rows, length), "prompt": prompt}
    lengths = [generator.randint(1, 60) for _ in range(generator.randint(2, 6))]
    return {"ids": ids(sum(lengths)), "targets": ids(sum(lengths)), "lengths": torch.tensor(lengths), "prompt": prompt}


def theirs(model, batch):
    parts = [batch["ids"]] if "lengths" not in batch else [part[None] for part in batch["ids"].split(batch["lengths"].tolist())]
    results = [model(input_ids=part, output_router_logits=True) for part in parts]
    size = model.config.vocab_size
    logits = torch.cat([one.logits.reshape(-1, size) for one in results])
    # Of a packed batch the routers' logits, one after another.
    routers = tuple(torch.cat([logits.reshape(-1, logits.shape[-1]) for logits in layer])
                    for layer in zip(*(one.router_logits for one in results)))
    balance = load_balancing_loss_func(routers, routers[0].shape[-1], model.config.num_experts_per_tok)
    loss = torch.nn.functional.cross_entropy(logits, batch["targets"].reshape(-1)) + model.config.router_aux_loss_coef * balance
    return logits.reshape(*batch["ids"].shape, size), loss


def by_expert(tensors, kind):
    """Of transformers' tensors of a layer's experts, the matrices that files have."""
    found = {}
    for name, value in tensors.items():
        if kind == "mixtral":
            name = name.replace(".mlp.", ".block_sparse_moe.")
        gate, up, down = ("w1", "w3", "w2") if kind == "mixtral" else ("gate_proj", "up_proj", "down_proj")
        if name.endswith("experts.gate_up_proj"):
            for expert, both in enumerate(value):
                found[name.replace("gate_up_proj", f"{expert}.{gate}.weight")] = both.chunk(2)[0]
                found[name.replace("gate_up_proj", f"{expert}.{up}.weight")] = both.chunk(2)[1]
        elif name.endswith("experts.down_proj"):
            for expert, matrix in enumerate(value):
                found[name.replace("down_proj", f"{expert}.{down}.weight")] = matrix
        else:
            found[name] = value
    return found


def results(model, batch, kind):
    logits, loss = theirs(model, batch)
    loss.backward()
    gradients = {name: torch.zeros_like(value) if value.grad is None else value.grad for name, value in model.named_parameters()}
    model.zero_grad()
    return {"logits": logits.detach(), "loss": loss.detach().reshape(())}, by_expert(gradients, kind)


def write_case(folder, model, batch):
    model.save_pretrained(folder)
    save_file({name: value.contiguous() for name, value in batch.items()}, os.path.join(folder, "batch.safetensors"))


def has_ties(model, batch):
    """Whether a token's last choice and the next one are so near each other that rounding decides."""
    chosen = model.config.num_experts_per_tok
    with torch.no_grad():
        for logits in model(input_ids=batch["ids"].reshape(1, -1), output_router_logits=True).router_logits:
            shares = logits.softmax(-1).sort(-1, descending=True).values
            if chosen < shares.shape[-1] and (shares[:, chosen - 1] - shares[:, chosen]).min() < 1e-4:
                return True
    return False


def one_case(program, generator, kind, packed):
    while True:
        model = random_model(generator, kind)
        batch = random_batch(model.config, generator, packed)
        if not any(has_ties(model, {"ids": part}) for part in batch["ids"].split(batch["lengths"].tolist() if packed else 1)):
            break
    with tempfile.TemporaryDirectory() as folder:
        write_case(folder, model, batch)
        subprocess.run([program, folder], check=True)
        found = load_file(os.path.join(folder, "logits.safetensors"))
        gradients = load_file(os.path.join(folder, "gradients.safetensors"))
        tokens = load_file(os.path.join(folder, "tokens.safetensors"))["tokens"]
        again = type(model).from_pretrained(os.path.join(folder, "again")).train()
    what = f"{kind}, {'packed' if packed else 'batch'}"
    with torch.no_grad():
        if not torch.equal(theirs(again, batch)[0], theirs(model, batch)[0]):
            sys.exit(f"{what}: the model that was saved gives other logits")
        if not torch.equal(theirs(again, batch)[1], theirs(model, batch)[1]):
            sys.exit(f"{what}: the model that was saved gives another loss")
        expected = model.generate(batch["prompt"], attention_mask=torch.ones_like(batch["prompt"]), max_new_tokens=NEW_TOKENS,
                                  do_sample=False, eos_token_id=None, pad_token_id=0)
    if not torch.equal(tokens, expected[:, batch["prompt"].shape[1]:]):
        sys.exit(f"{what}: the likeliest tokens are {tokens.tolist()}, transformers' {expected.tolist()}")
    values, expected = results(model, batch, kind)
    model.set_experts_implementation("eager")  # the others have no float64
    true_values, truth = results(model.double(), batch, kind)
    # transformers computes shares in float32 always: what all but cancels, as the gradient of a router of one choice, is rounding there too.
    largest = max(value.abs().max().item() for value in truth.values())
    truth = {name: torch.zeros_like(value) if value.abs().max().item() < 1e-7 * largest else value for name, value in truth.items()}
    return max(parity.compare(f"{what}: values", found, true_values, TOLERANCE, values),
               parity.compare(f"{what}: gradients", gradients, truth, TOLERANCE, expected))


def training(program, generator):
    # All experts are chosen: of fewer, rounding decides sooner or later, and the runs part there.
    model = random_model(generator, "mixtral", num_experts_per_tok=4, experts=4)
    batch = random_batch(model.config, generator, False)
    with tempfile.TemporaryDirectory() as folder:
        write_case(folder, model, batch)
        subprocess.run([program, folder, str(STEPS), str(RATE)], check=True)
        found = load_file(os.path.join(folder, "losses.safetensors"))["losses"]
    model.set_experts_implementation("eager")  # the others have no float64
    parity.follow_training(model, lambda model: theirs(model, batch)[1], found, RATE, LOSS_TOLERANCE)


def their_seconds(model, batch, steps):
    """Of a training step, the median."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, fused=True)
    seconds = []
    for _ in range(steps):
        start = time.perf_counter()
        optimizer.zero_grad()
        theirs(model, batch)[1].backward()
        optimizer.step()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds[2:])


def our_seconds(program, model, batch, steps):
    """Of a training step: of a run of twice as many, less the run that starts the program."""
    with tempfile.TemporaryDirectory() as folder:
        write_case(folder, model, batch)

        def seconds(count):
            start = time.perf_counter()
            subprocess.run([program, folder, str(count), str(RATE)], check=True, env={**os.environ, "OMP_NUM_THREADS": str(torch.get_num_threads())})
            return time.perf_counter() - start

        few = seconds(steps)
        return (seconds(3 * steps) - few) / (2 * steps)


def side_by_side(program, rounds):
    torch.set_num_threads(1)
    generator = random.Random(SEED)
    model = random_model(generator, "mixtral", vocab_size=8192, hidden_size=256, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=4,
                         inner=512, experts=8, num_experts_per_tok=2, max_position_embeddings=256, initializer_range=0.02,
                         tie_word_embeddings=True, router_aux_loss_coef=0.02)
    batch = {"ids": torch.randint(0, 8192, (4, 256)), "targets": torch.randint(0, 8192, (4, 256))}
    ratios = []
    for _ in range(rounds):
        theirs_now, ours = their_seconds(model, batch, 12), our_seconds(program, model, batch, 10)
        ratios.append(theirs_now / ours)
        print(f"a step on one core: transformers {1000 * theirs_now:.0f} ms, Lockstep {1000 * ours:.0f} ms: {ratios[-1]:.2f} times faster", flush=True)
    print(f"{statistics.median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f}) times faster")
    return 0 if statistics.median(ratios) >= 1 else 1


def main():
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default=os.path.join(root, "build/release/bin/tests/llama_parity"))
    parser.add_argument("--time", type=int, default=0, metavar="ROUNDS")
    options = parser.parse_args()
    torch.manual_seed(SEED)
    generator = random.Random(SEED)
    if options.time:
        return side_by_side(options.program, options.time)
    for kind in ("mixtral", "qwen2_moe"):
        for packed in (False, True):
            worst = max(one_case(options.program, generator, kind, packed) for _ in range(4))
            print(f"{kind}, {'packed' if packed else 'batches'}: 4 random models, logits, loss and gradients within {worst:.1e}", flush=True)
    training(options.program, generator)
    return 0


if __name__ == "__main__":
    sys.exit(main())
