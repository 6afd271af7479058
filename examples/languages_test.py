#!/usr/bin/env python3
"""Runs the example in C or in Fortran on one, two and three ranks, and compares what it prints.

usage: languages_test.py --bin FOLDER [--launcher FILE] c/regression|fortran/advection run|openmpi|mpich

The losses must be those of one rank to 1e-10, and fall. Exit status 77: the launcher is not installed.
"""
import argparse
import os
import re
import subprocess
import sys
import tempfile

SKIPPED = 77
FALLS = {"c/regression": 20, "fortran/advection": 100}  # the first loss divided by the last
MPIRUNS = {"openmpi": ("Open MPI", "openmpi-bin", "Open MPI|OpenRTE"), "mpich": ("MPICH", "mpich", "HYDRA")}


def command(options, ranks):
    program = os.path.join(options.bin, "examples", options.example)
    if options.way == "run":
        return [os.path.join(options.bin, "lockstep"), "run", "--nproc-per-node", str(ranks), program]
    if options.way == "openmpi":
        root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
        return [options.launcher, *root, "--oversubscribe", "-n", str(ranks), program]
    return [options.launcher, "-n", str(ranks), program]


def losses(options, ranks, folder):
    words = (command(options, ranks) if ranks else [os.path.join(options.bin, "examples", options.example)]) + [folder]
    done = subprocess.run(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=150,
                          check=False)
    found = [float(loss) for loss in re.findall(r"loss +(\S+)", done.stdout)]
    if done.returncode != 0 or len(found) < 5:
        sys.exit(f"{' '.join(words)} ended with {done.returncode} and printed\n{done.stdout}")
    for name in ["checkpoint/model.safetensors", "checkpoint/optimizer.safetensors"] + (
            ["net.pt"] if options.example.startswith("fortran") else []):
        if not os.path.exists(os.path.join(folder, name)):
            sys.exit(f"{' '.join(words)} has not written {name}")
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", required=True)
    parser.add_argument("--launcher", default="")
    parser.add_argument("example", choices=FALLS)
    parser.add_argument("way", choices=["run", *MPIRUNS])
    options = parser.parse_args()
    if options.way in MPIRUNS:
        name, package, pattern = MPIRUNS[options.way]
        version = ""
        if options.launcher:
            version = subprocess.run([options.launcher, "--version"], capture_output=True, text=True, check=False).stdout
        if not re.search(pattern, version):
            print(f"{name}'s mpirun is not here (apt-get install {package})")
            return SKIPPED
    with tempfile.TemporaryDirectory(prefix="lockstep-languages-") as folder:
        alone = losses(options, 0, folder)
        if not alone[0] > FALLS[options.example] * alone[-1]:
            sys.exit(f"the loss falls from {alone[0]} to {alone[-1]} only")
        for ranks in (1, 2, 3):
            found = losses(options, ranks, folder)
            worst = max(abs(a - b) for a, b in zip(alone, found))
            if len(found) != len(alone) or not worst < 1e-10:
                sys.exit(f"on {ranks} ranks the losses are {found}, alone {alone}")
            print(f"{ranks} ranks: {alone[0]:.3e} to {found[-1]:.3e}, at most {worst:.1e} from one process")
    return 0


if __name__ == "__main__":
    sys.exit(main())
