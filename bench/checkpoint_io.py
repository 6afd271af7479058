#!/usr/bin/env python3
"""Writing and reading 418 MiB (a model of BERT-base's size) by Lockstep and by Python's safetensors, in turns.

A save ends with fsync on both sides; Lockstep's includes its checksum. Loads find the file in memory. Prints the medians, their
spread and the ratio. Needs torch and safetensors, and 1 GB on the disk of --folder.

    bench/checkpoint_io.py [--program build/release/bin/bench/checkpoint_io] [--rounds 7] [--folder DIR] [--json FILE]
"""
import argparse
import json
import os
import shutil
import statistics
import subprocess
import tempfile
import time

import torch
from safetensors.torch import load_file, save_file

ROOT = os.path.normpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))


def bert_base():
    hidden, inner = 768, 3072
    shapes = {"word": (30522, hidden), "pos": (512, hidden), "type": (2, hidden), "pool.w": (hidden, hidden)}
    shapes.update({name: (hidden,) for name in ("ln.w", "ln.b", "pool.b")})
    for layer in range(12):
        for name in "qkvo":
            shapes.update({f"{layer}.{name}.w": (hidden, hidden), f"{layer}.{name}.b": (hidden,)})
        shapes.update({f"{layer}.up.w": (inner, hidden), f"{layer}.up.b": (inner,), f"{layer}.down.w": (hidden, inner)})
        shapes.update({f"{layer}.{name}": (hidden,) for name in ("down.b", "ln1.w", "ln1.b", "ln2.w", "ln2.b")})
    return {name: torch.randn(shape) for name, shape in shapes.items()}


class Lockstep:
    def __init__(self, program, folder):
        self.process = subprocess.Popen([program, folder], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def seconds(self, command):
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()
        return float(self.process.stdout.readline())

    def close(self):
        self.process.stdin.close()
        if self.process.wait(60) != 0:
            raise SystemExit("checkpoint_io failed")


class Python:
    def __init__(self, folder):
        self.path = os.path.join(folder, "python.safetensors")
        self.tensors = bert_base()

    def save(self):
        save_file(self.tensors, self.path, metadata={"format": "pt"})
        fd = os.open(self.path, os.O_RDONLY)
        os.fsync(fd)
        os.close(fd)

    def seconds(self, command):
        if command == "save" and os.path.exists(self.path):
            os.remove(self.path)
        begin = time.perf_counter()
        if command == "save":
            self.save()
        elif command in ("load", "check"):
            load_file(self.path)
        else:
            tensors = load_file(self.path) if command == "read" else self.tensors
            sum(float(tensor.sum()) for tensor in tensors.values())
        return time.perf_counter() - begin


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default=os.path.join(ROOT, "build/release/bin/bench/checkpoint_io"))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--folder", help="where the files are written [a temporary folder]")
    parser.add_argument("--json", help="also write the figures to this file")
    args = parser.parse_args()
    torch.set_num_threads(1)
    folder = tempfile.mkdtemp(prefix="checkpoint_io-", dir=args.folder)
    try:
        python, ours = Python(folder), Lockstep(args.program, folder)
        size = sum(tensor.nbytes for tensor in python.tensors.values())
        rows = []
        for command in ("save", "load", "check", "read", "sum"):
            times = {"lockstep": [], "safetensors": []}
            for turn in range(args.rounds):
                sides = [("lockstep", ours), ("safetensors", python)]
                for name, side in sides if turn % 2 == 0 else reversed(sides):
                    times[name].append(side.seconds(command))
            medians = {name: statistics.median(values) for name, values in times.items()}
            row = {"what": command, "bytes": size, "ratio": medians["safetensors"] / medians["lockstep"]}
            for name, values in times.items():
                row[name] = {"s": medians[name], "min_s": min(values), "max_s": max(values),
                             "GBps": size / medians[name] / 1e9}
            rows.append(row)
            print(f"{command:6s}", *(f"{name} {row[name]['s']:.4f} s ({row[name]['min_s']:.4f}-{row[name]['max_s']:.4f}), "
                                     f"{row[name]['GBps']:.2f} GB/s;" for name in times),
                  f"ratio {row['ratio']:.2f}", flush=True)
        ours.close()
        if args.json:
            with open(args.json, "w", encoding="utf-8") as f:
                json.dump(rows, f, indent=2)
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
