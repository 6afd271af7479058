#!/usr/bin/env python3
"""What ranks wrote that divide a model, opened by transformers.

A Llama and a Mixtral of transformers are trained a few steps by `lockstep train lm` on meshes of tensor, pipe, data and expert, whose checkpoints
are slices, or, of pipe or expert alone, whole tensors in several files. `lockstep checkpoint consolidate` puts the last one together. The
tensors then are, bit for bit, what model.slices.json says when numpy puts the slices together; transformers opens the directory (of whole
tensors also the one that the ranks wrote) without a word of missing or further tensors; and the logits that TransformerLm computes
from it are those that transformers has in float64, within 1e-5, or not much farther than transformers itself in float32. Needs torch, transformers and safetensors; exit status 77 where they are missing.

    tests/oracle/divided_checkpoint.py [--program build/release/bin/tests/llama_parity] [--lockstep build/release/bin/lockstep]
"""
import argparse
import collections
import json
import os
import shutil
import subprocess
import sys
import tempfile

SKIPPED = 77
TOLERANCE = 1e-5
SENTENCES = ["the quick brown fox jumps over the lazy dog", "pack my box with five dozen jugs", "how vexingly quick daft zebras jump"]
CASES = (("llama", "pipe=2,tensor=2", True), ("llama", "data=2,tensor=2", True), ("llama", "pipe=2", False), ("mixtral", "expert=2,tensor=2", True),
         ("mixtral", "expert=2", False))

try:
    import numpy
    import parity
    import torch
    from safetensors import safe_open
    from safetensors.torch import load_file, save_file
    from transformers import LlamaConfig, LlamaForCausalLM, MixtralConfig, MixtralForCausalLM
    from transformers.utils.logging import disable_progress_bar
except (ImportError, OSError) as missing:
    print(f"skipped: {sys.executable} cannot import what the oracle needs: {missing}")
    sys.exit(SKIPPED)


def write_model(kind, folder):
    torch.manual_seed(5)
    common = dict(vocab_size=len({*"".join(SENTENCES)}) + 8, hidden_size=32, intermediate_size=48, num_hidden_layers=3, num_attention_heads=4,
                  num_key_value_heads=2, max_position_embeddings=32, initializer_range=0.2, tie_word_embeddings=False)
    if kind == "llama":
        model = LlamaForCausalLM(LlamaConfig(**common))
    else:
        model = MixtralForCausalLM(MixtralConfig(num_local_experts=4, num_experts_per_tok=2, **common))
    model.save_pretrained(folder)
    return common["vocab_size"]


def run(*command):
    ended = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    if ended.returncode != 0:
        sys.exit(f"{' '.join(command)} ended with {ended.returncode}: {ended.stdout[-1000:]}{ended.stderr[-2000:]}")


def from_slices(folder):
    """The model as its index describes it, by numpy; and how many tensors are in more than one piece."""
    with open(os.path.join(folder, "model.slices.json"), encoding="utf-8") as f:
        index = json.load(f)["tensors"]
    pieces = collections.defaultdict(dict)  # of a tensor's boxes
    for name, tensor in index.items():
        for one in tensor["slices"]:
            with safe_open(os.path.join(folder, one["file"]), "np") as file:
                values = file.get_tensor(name).reshape(-1)
            bounds = one.get("box") or ",".join(f"0:{size}" for size in tensor["shape"])
            box = tuple(slice(*map(int, span.split(":"))) for span in bounds.split(","))
            shape = [span.stop - span.start for span in box]
            key = tuple((span.start, span.stop) for span in box)
            whole = pieces[name].setdefault(key, (box, shape, numpy.full(numpy.prod(shape), numpy.nan, values.dtype)))[2]
            whole[one["begin"]:one["end"]] = values
    found = {}
    for name, boxes in pieces.items():
        tensor = numpy.full(index[name]["shape"], numpy.nan, numpy.float32)
        for box, shape, values in boxes.values():
            tensor[box] = values.reshape(shape)
        found[name] = torch.from_numpy(tensor)
    return found, sum(len(tensor["slices"]) > 1 for tensor in index.values())


def from_files(folder):
    with open(os.path.join(folder, "model.safetensors.index.json"), encoding="utf-8") as f:
        files = json.load(f)["weight_map"]
    if len(set(files.values())) < 2:
        sys.exit(f"{folder} has one file")
    return {name: load_file(os.path.join(folder, file))[name] for name, file in files.items()}


def opened(kind, folder):
    model, told = (LlamaForCausalLM if kind == "llama" else MixtralForCausalLM).from_pretrained(folder, output_loading_info=True)
    if any(told[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys")):
        sys.exit(f"{kind}: transformers says {told}")
    return model.eval()


def one_case(options, kind, mesh, in_slices):
    with tempfile.TemporaryDirectory() as folder:
        def path(*names):
            return os.path.join(folder, *names)

        words = write_model(kind, path("start"))
        with open(path("train.txt"), "w", encoding="utf-8") as f:
            f.write("\n".join(SENTENCES * 20))
        ranks = numpy.prod([int(axis.split("=")[1]) for axis in mesh.split(",")])
        run(options.lockstep, "train", "lm", "--data", path("train.txt"), "--model", path("start"), "--tokenizer", "characters", "--context", "16",
            "--batch-size", "4", "--mesh", mesh, "--nproc", str(ranks), "--max-steps", "3", "--output", path("run"), "--quiet")
        last = os.path.realpath(path("run", "checkpoints", "last"))
        expected, divided = from_slices(last) if in_slices else (from_files(last), 0)
        if in_slices and divided == 0:
            sys.exit(f"{kind}, {mesh}: no tensor is divided")
        run(options.lockstep, "checkpoint", "consolidate", last, path("whole"))
        found = load_file(path("whole", "model.safetensors"))
        for name in found.keys() | expected.keys():
            if name not in found or name not in expected or not torch.equal(found[name], expected[name]):
                sys.exit(f"{kind}, {mesh}: {name} is not what the slices say")
        before = load_file(path("start", "model.safetensors"))
        if all(torch.equal(before[name], found[name]) for name in before if name in found):
            sys.exit(f"{kind}, {mesh}: nothing was trained")
        models = [opened(kind, path("whole"))] + ([] if in_slices else [opened(kind, last)])
        shutil.copytree(path("whole"), path("case"))
        ids = torch.randint(0, words, (2, 16))
        save_file({"ids": ids, "targets": ids.roll(-1, 1).contiguous(), "prompt": ids[:, :4].contiguous()}, path("case", "batch.safetensors"))
        run(options.program, path("case"))
        ours = load_file(path("case", "logits.safetensors"))["logits"]
        for model in models:
            with torch.no_grad():
                theirs = model(ids).logits
                if kind != "llama":
                    model.set_experts_implementation("eager")  # the others have no float64
                truth = model.double()(ids).logits
            apart = parity.compare(f"{kind}, {mesh}", {"logits": ours}, {"logits": truth}, TOLERANCE, {"logits": theirs})
        print(f"{kind}, {mesh}: {divided} of {len(found)} tensors were divided; logits {apart:.1e} apart", flush=True)


def main():
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default=os.path.join(root, "build/release/bin/tests/llama_parity"))
    parser.add_argument("--lockstep", default=os.path.join(root, "build/release/bin/lockstep"))
    options = parser.parse_args()
    disable_progress_bar()
    for case in CASES:
        one_case(options, *case)
    return 0


if __name__ == "__main__":
    sys.exit(main())
