#!/usr/bin/env python3
"""Makes the seeds of pt_fuzz, which lockstep/checkpoint's tests read too: python make_pt.py pt_fuzz. Needs torch.

NAME.pt are files of torch.save, NAME.pkl the pickle in some of them.
"""
import argparse
import os
import sys
import zipfile

import torch


class Command:
    """What a hostile file would be: its pickle names os.system."""

    def __reduce__(self):
        return os.system, ("echo this must never run",)


def contents():
    torch.manual_seed(0)
    linear = torch.nn.Linear(2, 3)
    base = torch.arange(24.0).view(4, 6)
    dtypes = ("float32 float64 float16 bfloat16 int64 int32 int16 int8 uint8 uint16 uint32 uint64 bool complex64 complex128 "
              "float8_e4m3fn float8_e5m2").split()
    yield "linear", linear.state_dict(), {}
    yield "wrapped", {"module." + name: value for name, value in linear.state_dict().items()}, {}
    yield "dtypes", {name: torch.tensor([0, 1, 1]).to(getattr(torch, name)) for name in dtypes}, {}
    yield "checkpoint", {
        "model": {"transposed": base.t(), "part": base[1:3, ::2], "parameter": torch.nn.Parameter(base), "tied": base,
                  "expanded": torch.ones(1).expand(1000), "empty": torch.empty(0, 3), "scalar": torch.tensor(2.5)},
        "optimizer": {"state": {0: {"step": torch.tensor(1.0)}}, "param_groups": [{"lr": 1e-3, "betas": (0.9, 0.99)}]},
        "epoch": 3, "lr": 0.125, "name": "\u4e2d", "best": None, "negative": -(2**40), "big": 2**80, "shape": torch.Size([1]),
        "device": torch.device("cpu"), "dtype": torch.float32, "done": True}, {}
    yield "namespace", {"w": torch.zeros(1), "args": argparse.Namespace(a=1)}, {}
    yield "command", {"w": torch.zeros(1), "x": Command()}, {}
    yield "whole_module", linear, {}
    yield "sparse", {"w": torch.zeros(2).to_sparse()}, {}
    yield "conjugate", {"w": torch.ones(2, dtype=torch.complex64).conj()}, {}
    yield "one_tensor", torch.zeros(3), {}
    yield "no_tensor", {"a": 1}, {}
    yield "protocol4", {"w": torch.zeros(1)}, {"pickle_protocol": 4}
    yield "legacy", {"w": torch.zeros(1)}, {"_use_new_zipfile_serialization": False}


def main():
    folder = sys.argv[1]
    for name, value, options in contents():
        path = os.path.join(folder, name + ".pt")
        torch.save(value, path, **options)
        if name in ("linear", "dtypes", "checkpoint", "command", "conjugate"):
            with zipfile.ZipFile(path) as archive, open(path[:-3] + ".pkl", "wb") as f:
                f.write(archive.read(name + "/data.pkl"))
    torch.serialization.set_crc32_options(False)
    torch.save({"w": torch.tensor([1.5, -2.0])}, os.path.join(folder, "without_crc.pt"))
    # The members that tell TorchScript's archives; a real one would name this machine's files.
    with zipfile.ZipFile(os.path.join(folder, "script.pt"), "w") as archive:
        for name in ("data.pkl", "code/__torch__.py", "constants.pkl"):
            archive.writestr("script/" + name, b"\x80\x02}." if name.endswith("pkl") else b"")


if __name__ == "__main__":
    main()
