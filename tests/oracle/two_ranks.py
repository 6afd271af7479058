"""What the oracles of divided models share: a small Llama with batches in a folder, and PyTorch's job of two ranks over gloo beside it.

A folder has what transformers writes of a model, batches.safetensors (ids and targets, [steps, rows, tokens]) and, of each run, losses.safetensors,
gradients.safetensors (of the first step) and trained.safetensors (after the last one), with a prefix where PyTorch has written them."""
import os
import subprocess
import sys

import parity
import torch
import torch.distributed as dist
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.models.llama.modeling_llama import LlamaRMSNorm

RANKS = 2
ROWS, TOKENS = 8, 24
RATE, MOMENTUM = 0.05, 0.9


def norm_as_is(self, x):
    """transformers computes it in float32, whatever the type."""
    return self.weight * x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.variance_epsilon)


def write_cases(folder, dtypes, steps, layers):
    """A folder a dtype: the same weights, drawn in float32, and the same batches."""
    config = LlamaConfig(vocab_size=97, hidden_size=48, num_hidden_layers=layers, num_attention_heads=4, num_key_value_heads=2, intermediate_size=80,
                         max_position_embeddings=64, tie_word_embeddings=False, initializer_range=0.2)
    model = LlamaForCausalLM(config).to(torch.float32)
    ids = torch.randint(0, config.vocab_size, (steps, ROWS, TOKENS))
    for dtype in sorted(dtypes):  # float32 is widened, not the other way
        case = os.path.join(folder, dtype)
        model.to(getattr(torch, dtype)).save_pretrained(case)
        save_file({"ids": ids, "targets": ids.roll(-1, -1)}, os.path.join(case, "batches.safetensors"))


def model_of(folder):
    return LlamaForCausalLM.from_pretrained(folder, dtype="auto").train()


def batches_of(folder):
    batches = load_file(os.path.join(folder, "batches.safetensors"))
    return list(zip(batches["ids"], batches["targets"]))


def loss_of(logits, targets):
    return torch.nn.functional.cross_entropy(logits.flatten(0, -2), targets.flatten())


def optimizer_of(parameters):
    """One whose steps are as far apart as the gradients are: AdamW makes steps of one size from gradients that are rounding."""
    return torch.optim.SGD(parameters, lr=RATE, momentum=MOMENTUM)


def begin(rank, rendezvous):
    LlamaRMSNorm.forward = norm_as_is
    torch.set_num_threads(1)
    # Through a file: a port that was free a moment ago may be another test's now.
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=RANKS)


def end():
    """Of the process: PyTorch's threads sometimes abort it where the interpreter ends ("terminate called without an active exception")."""
    dist.barrier()
    dist.destroy_process_group()
    sys.stdout.flush()
    os._exit(0)


def run(script, *arguments):
    """The script once a rank, with --rank."""
    environment = dict(os.environ, GLOO_SOCKET_IFNAME="lo")
    ranks = [subprocess.Popen([sys.executable, script, "--rank", str(rank), *arguments], env=environment) for rank in range(RANKS)]
    try:
        if any([rank.wait(timeout=240) for rank in ranks]):
            sys.exit("PyTorch's job failed")
    finally:
        for rank in ranks:
            rank.kill()


def write(folder, prefix, losses, gradients, trained):
    save_file({"losses": torch.tensor(losses, dtype=torch.float64)}, os.path.join(folder, prefix + "losses.safetensors"))
    save_file(gradients, os.path.join(folder, prefix + "gradients.safetensors"))
    save_file(trained, os.path.join(folder, prefix + "trained.safetensors"))


def compare(what, folder, dtype, prefix, tolerance):
    """Ends the program with one line where ours, of that dtype, are not what theirs are in float64."""
    def of(name, before="", of_dtype=dtype):
        return load_file(os.path.join(folder, of_dtype, before + name + ".safetensors"))

    losses = of("losses", prefix)["losses"]
    if not losses[-3:].mean() < losses[:3].mean():
        sys.exit(f"{what}: PyTorch learned nothing: {losses.tolist()}")
    found = {name: parity.compare(f"{what}: {name}", of(name), of(name, prefix, "float64"), tolerance, of(name, prefix))
             for name in ("losses", "gradients", "trained")}
    print(f"{what}: losses within {found['losses']:.1e}, gradients {found['gradients']:.1e}, parameters {found['trained']:.1e}", flush=True)
