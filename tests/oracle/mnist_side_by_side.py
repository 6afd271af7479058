#!/usr/bin/env python3
"""Trains the recipe of tutorial 000 in PyTorch and in Lockstep, and compares what they reach on the test set.

Same model, batch (128 / ranks), SGD .01/.5, epochs, dropout and seeds. The accuracies must be within half a point; on a CPU with the
same libtorch they have been equal. Needs: torch, numpy, safetensors.

    tests/oracle/mnist_side_by_side.py --data DIR [--nproc 2] [--epochs 10]
"""
import argparse
import json
import os
import sys
import tempfile
import time

import command
import torch_mnist


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    command.add_options(parser)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--tolerance", type=float, default=0.005, help="of the accuracy")
    options = parser.parse_args()
    start = time.time()
    _, expected = torch_mnist.train(options.data, options.nproc, epochs=options.epochs)
    between = time.time()
    with tempfile.TemporaryDirectory() as folder:
        result = os.path.join(folder, "result.json")
        command.run(options, ["train", "mnist", "--data", options.data, "--nproc", str(options.nproc), "--epochs",
                              str(options.epochs), "--output", os.path.join(folder, "run"), "--json", result, "--quiet"])
        with open(result) as file:
            found = json.load(file)["accuracy"]
    end = time.time()
    print(f"PyTorch   {100 * expected:.2f} % in {between - start:.1f} s")
    print(f"Lockstep  {100 * found:.2f} % in {end - between:.1f} s")
    print(f"difference {100 * (found - expected):+.2f} points after {options.epochs} epochs on {options.nproc} ranks")
    if abs(found - expected) > options.tolerance:
        sys.exit(f"more than {100 * options.tolerance:.1f} points")


if __name__ == "__main__":
    main()
