#!/usr/bin/env python3
"""Files of tensors between Lockstep and Python, both ways.

What torch.save writes (every dtype, views, tied weights, parameters, an OrderedDict with attributes, random strides) is converted by
`lockstep checkpoint convert` and read back by safetensors, bit for bit; what safetensors writes is converted and read back likewise;
a model in several files of either kind is read as one; objects of other kinds are refused by name, and their code does not run.
Needs torch and safetensors; exit status 77 where they are missing.

    tests/oracle/checkpoint_files.py [--program build/release/bin/lockstep]
"""
import argparse
import collections
import json
import os
import random
import subprocess
import sys
import tempfile

SKIPPED = 77

try:
    import torch
    from safetensors.torch import load_file, save_file
except (ImportError, OSError) as missing:
    print(f"skipped: {sys.executable} cannot import what the oracle needs: {missing}")
    sys.exit(SKIPPED)

DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8,
          torch.uint8, torch.uint16, torch.uint32, torch.uint64, torch.bool, torch.complex64, torch.float8_e4m3fn,
          torch.float8_e5m2]


class Files:
    def __init__(self, program, folder):
        self.program = program
        self.folder = folder
        self.count = 0

    def path(self, name):
        self.count += 1
        return os.path.join(self.folder, f"{self.count}-{name}")

    def convert(self, path, *options):
        out = self.path("out.safetensors")
        result = subprocess.run([self.program, "checkpoint", "convert", path, out, *options], capture_output=True, text=True)
        return (load_file(out) if result.returncode == 0 else None), result

    def expect_of(self, what, path, expected):
        found, result = self.convert(path)
        if found is None:
            sys.exit(f"{what}: {result.stderr}")
        compare(what, found, expected)

    def expect(self, what, value, expected, **save_options):
        path = self.path("in.pt")
        torch.save(value, path, **save_options)
        self.expect_of(what, path, expected)

    def refuse(self, what, value, says, **save_options):
        path = self.path("bad.pt")
        torch.save(value, path, **save_options)
        found, result = self.convert(path)
        if found is not None or result.returncode != 2 or says not in result.stderr or result.stderr.count("\n") != 1:
            sys.exit(f"{what}: expected one line with {says}, got {result.returncode}: {result.stderr}")


def same_bits(a, b):
    # Not contiguous(): that keeps the odd strides of dimensions of length 1.
    as_bytes = [torch.empty(t.shape, dtype=t.dtype).copy_(t).flatten().view(torch.uint8) if t.numel() else None for t in (a, b)]
    return a.dtype == b.dtype and a.shape == b.shape and (a.numel() == 0 or torch.equal(*as_bytes))


def compare(what, found, expected):
    if sorted(found) != sorted(expected):
        sys.exit(f"{what}: names differ: {sorted(set(found) ^ set(expected))}")
    for name, value in expected.items():
        if not same_bits(found[name], value.detach()):
            sys.exit(f"{what}: {name} is {found[name].dtype} {tuple(found[name].shape)} with other values or form than "
                     f"{value.dtype} {tuple(value.shape)}")
    print(f"{what}: {len(expected)} tensors, the same bits")


def random_view(generator):
    """A tensor that is some part of a storage, in some order of dimensions, at some stride."""
    shape = [generator.randint(1, 6) for _ in range(generator.randint(0, 4))]
    view = torch.randn(shape).to(generator.choice([torch.float32, torch.float64, torch.bfloat16, torch.float16]))
    for dim in range(view.dim()):
        first = generator.randint(0, view.size(dim) - 1)
        view = view.narrow(dim, first, generator.randint(1, view.size(dim) - first))
        if generator.random() < 0.3:
            view = view[(slice(None),) * dim + (slice(None, None, 2),)]
    if view.dim() > 1:
        view = view.permute(generator.sample(range(view.dim()), view.dim()))
    if generator.random() < 0.2:
        view = view.unsqueeze(0).expand(3, *view.shape)
    return view


def save_several(tensors, folder, stem, ending, save):
    """As transformers' save_pretrained() does with a model larger than max_shard_size; returns the index."""
    names = sorted(tensors)
    weight_map = {}
    for i, members in enumerate((names[:7], names[7:])):
        shard = f"{stem}-{i + 1:05}-of-00002{ending}"
        save({name: tensors[name] for name in members}, os.path.join(folder, shard))
        weight_map.update(dict.fromkeys(members, shard))
    index = os.path.join(folder, f"{stem}{ending}.index.json")
    with open(index, "w", encoding="utf-8") as f:
        size = sum(tensor.nbytes for tensor in tensors.values())
        json.dump({"metadata": {"total_size": size}, "weight_map": weight_map}, f, indent=2, sort_keys=True)
    return index


class Command:
    def __reduce__(self):
        return os.system, ("echo PWNED >&2",)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    root = os.path.normpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../.."))
    parser.add_argument("--program", default=os.path.join(root, "build/release/bin/lockstep"))
    program = parser.parse_args().program
    torch.manual_seed(1)
    with tempfile.TemporaryDirectory() as folder:
        files = Files(program, folder)
        by_dtype = {str(dtype): torch.randn(5, 3).mul(3).abs().to(dtype) for dtype in DTYPES}
        files.expect("dtypes", by_dtype, by_dtype)
        generator = random.Random(6)
        views = {f"view{i}": random_view(generator) for i in range(200)}
        files.expect("views", views, views)
        module = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.LSTM(4, 5))
        state = module.state_dict()
        files.expect("a module with attributes", state, state)
        wrapped = torch.nn.DataParallel(module).state_dict()
        files.expect("a wrapped module", wrapped, state)
        tied = collections.OrderedDict(a=torch.nn.Parameter(torch.randn(4, 4)))
        tied["b"] = tied["a"]
        tied["c"] = tied["a"].t()
        files.expect("tied parameters", tied, tied)
        optimizer = torch.optim.AdamW(module.parameters())
        sum(p.sum() for p in module.parameters()).backward()
        optimizer.step()
        files.expect("a training checkpoint", {"model": module.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 3,
                                               "rng": torch.get_rng_state()}, module.state_dict())
        empty = {"a": torch.empty(0, 3), "b": torch.tensor(1.5), "c": torch.empty(3)[3:]}
        files.expect("empty and scalar", empty, empty)

        path = files.path("python.safetensors")
        save_file(by_dtype, path, metadata={"format": "pt"})
        compare("a safetensors file", files.convert(path)[0], by_dtype)
        half = files.convert(path, "--dtype", "bfloat16")[0]
        floating = {name: value.to(torch.bfloat16) if value.is_floating_point() else value for name, value in by_dtype.items()}
        compare("to bfloat16", half, floating)
        for stem, ending, save in (("model", ".safetensors", save_file), ("pytorch_model", ".bin", torch.save)):
            several = files.path(stem)
            os.mkdir(several)
            index = save_several(by_dtype, several, stem, ending, save)
            files.expect_of(f"several {ending} files", index, by_dtype)
            files.expect_of("their directory", several, by_dtype)

        files.refuse("a command", {"w": torch.zeros(1), "x": Command()}, "'posix.system'")
        files.refuse("a whole module", module, "'torch.nn.modules.")
        files.refuse("options", {"w": torch.zeros(1), "args": argparse.Namespace(a=1)}, "'argparse.Namespace'")
        files.refuse("a sparse tensor", {"w": torch.eye(2).to_sparse()}, "'torch._utils._rebuild_sparse_tensor'")
        files.refuse("the old form", {"w": torch.zeros(1)}, "before PyTorch 1.6", _use_new_zipfile_serialization=False)
        print("others are refused by name")


if __name__ == "__main__":
    main()
