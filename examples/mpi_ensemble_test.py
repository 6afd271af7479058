#!/usr/bin/env python3
"""Runs examples/mpi_ensemble under mpirun: any number of ranks trains the same network, the loss falls, and rank 0 alone writes.

usage: mpi_ensemble_test.py --program FILE --mpirun FILE

Exit status 77: there is no mpirun.
"""
import argparse
import json
import os
import re
import struct
import subprocess
import sys
import tempfile

TOLERANCE = 1e-10


def read_safetensors(path):
    """The float64 tensors of a file, by name."""
    with open(path, "rb") as file:
        data = file.read()
    size = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + size])
    header.pop("__metadata__", None)
    tensors = {}
    for name, tensor in header.items():
        if tensor["dtype"] != "F64":
            sys.exit(f"{path}: {name} is {tensor['dtype']}, expected F64")
        begin, end = tensor["data_offsets"]
        tensors[name] = struct.unpack(f"<{(end - begin) // 8}d", data[8 + size + begin:8 + size + end])
    return tensors


def train(options, ranks, members, folder):
    output = os.path.join(folder, f"{ranks}-{members}.safetensors")
    version = subprocess.run([options.mpirun, "--version"], capture_output=True, text=True, timeout=60).stdout
    flags = []
    if re.search("Open MPI|OpenRTE", version):
        flags = ["--oversubscribe"] + (["--allow-run-as-root"] if os.geteuid() == 0 else [])
    command = [options.mpirun, *flags, "-n", str(ranks), options.program, "--members", str(members), "--steps", "150", "--output",
               output]
    done = subprocess.run(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, stdin=subprocess.DEVNULL, capture_output=True,
                          text=True, timeout=240)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}\nexit status {done.returncode}\n{done.stdout}{done.stderr}")
    losses = [float(value) for value in re.findall(r"^step \d+: loss (\S+)$", done.stdout, re.M)]
    if len(losses) != 4:
        sys.exit(f"{' '.join(command)}: 4 losses expected, from rank 0 alone:\n{done.stdout}")
    return losses, read_safetensors(output)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", required=True)
    parser.add_argument("--mpirun", required=True)
    options = parser.parse_args()
    if not os.access(options.mpirun, os.X_OK):
        print(f"skipped: there is no mpirun ({options.mpirun})")
        return 77
    with tempfile.TemporaryDirectory() as folder:
        # 5 members on 2 ranks are 3 and 2; on 3 ranks 2 members leave one rank without any.
        for members, all_ranks in ((5, (2, 3)), (2, (3,))):
            losses, alone = train(options, 1, members, folder)
            if not losses[-1] < 0.1 * losses[0]:
                sys.exit(f"the loss did not fall to a tenth: {losses}")
            for ranks in all_ranks:
                found_losses, found = train(options, ranks, members, folder)
                if sorted(found) != sorted(alone):
                    sys.exit(f"{ranks} ranks saved {sorted(found)}, one {sorted(alone)}")
                worst = max(abs(a - b) for name in alone for a, b in zip(alone[name], found[name], strict=True))
                of_loss = max(abs(a - b) / a for a, b in zip(losses, found_losses, strict=True))
                print(f"{members} members on {ranks} ranks: loss {losses[0]:.4g} to {losses[-1]:.4g}, parameters within {worst:.1e} of "
                      f"one process, losses within {of_loss:.1e}")
                if worst > TOLERANCE or of_loss > TOLERANCE:
                    sys.exit(f"more than {TOLERANCE:.0e}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
