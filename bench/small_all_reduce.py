#!/usr/bin/env python3
"""all_reduce between two processes of this host, ours and Open MPI's, in alternating rounds.

Needs mpicc and mpirun (apt install openmpi-bin libopenmpi-dev) and the program of ninja target
small_all_reduce. mpirun starts and pins both. Prints, for every size, the median and range of the
rounds' mean microseconds, and of Open MPI's time over ours.

    bench/small_all_reduce.py --build build/release
"""

import argparse
import os
import pathlib
import statistics
import subprocess
import tempfile

CALLS = {4: 20000, 1024: 20000, 65536: 2000, 1 << 20: 500}


def run(program, cases, environment):
    command = ["mpirun", "--allow-run-as-root", "-n", "2", "--bind-to", "core", str(program)]
    done = subprocess.run(command + cases, env=environment, stdout=subprocess.PIPE, text=True,
                          check=True)
    lines = (line.split() for line in done.stdout.splitlines())
    return {(kind, int(size)): float(us) for kind, size, us in lines}


def spread(values, digits):
    low, middle, high = min(values), statistics.median(values), max(values)
    return f"{middle:.{digits}f} ({low:.{digits}f}-{high:.{digits}f})"


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default=pathlib.Path("build/release"))
    parser.add_argument("--program", type=pathlib.Path, action="append",
                        help="instead of the one in --build; several take turns")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--sizes", default=",".join(map(str, CALLS)), help="bytes")
    arguments = parser.parse_args()
    programs = arguments.program or [arguments.build / "bin/bench/small_all_reduce"]
    sizes = [int(size) for size in arguments.sizes.split(",")]
    cases = [str(n) for size in sizes for n in (size, CALLS.get(size, max(10, (1 << 30) // size)))]
    environment = dict(os.environ, OMP_NUM_THREADS="1")
    with tempfile.TemporaryDirectory() as folder:
        peer = pathlib.Path(folder) / "small_all_reduce_mpi"
        source = pathlib.Path(__file__).with_name("small_all_reduce_mpi.c")
        subprocess.run(["mpicc", "-O3", "-o", str(peer), str(source)], check=True)
        ours = [[] for _ in programs]
        theirs = []
        for _ in range(arguments.rounds):
            for rounds, program in zip(ours, programs):
                rounds.append(run(program, cases, environment))
            theirs.append(run(peer, cases, environment))
    print(f"{'bytes':>8}  {'tensor':<10} {'us':<24} {'Open MPI us':<24} Open MPI / ours")
    for program, rounds in zip(programs, ours):
        if len(programs) > 1:
            print(program)
        for size in sizes:
            mpi = [r["mpi", size] for r in theirs]
            for kind in ("ordinary", "symmetric"):
                us = [r[kind, size] for r in rounds]
                ratios = [b / a for a, b in zip(us, mpi)]
                print(f"{size:>8}  {kind:<10} {spread(us, 3):<24} {spread(mpi, 3):<24} "
                      f"{spread(ratios, 2)}")


if __name__ == "__main__":
    main()
