#!/usr/bin/env python3
"""From a rank's death to the next completed step: Lockstep's recovery in place beside torchrun's restart, in
alternating rounds.

Both train the same small network on ranks of this host; rank 1 kills itself in the middle of a step. With
Lockstep (lockstep run --on-failure replace, examples/recovery) the others keep their processes; with
torchrun --max-restarts all are started again and go on from rank 0's checkpoint of the latest step. Prints the
median and range of the seconds, of torchrun's over ours, and of how long a process takes to start here;
--picture draws the last round.

    bench/recovery.py --build build/release --rounds 5
"""

import argparse
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

STEPS, KILL = 12, 6


def spread(values):
    return f"{statistics.median(values):.2f} ({min(values):.2f}-{max(values):.2f})"


def run(command, folder):
    """[(rank, step, seconds)] of a job, death as step -1."""
    times = pathlib.Path(folder) / "times"
    times.unlink(missing_ok=True)
    environment = dict(os.environ, OMP_NUM_THREADS="1")
    done = subprocess.run([*command, "--steps", str(STEPS), "--kill-rank", "1", "--kill-step", str(KILL), "--times",
                           str(times)], cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}\n{done.stdout}")
    rows = [line.split() for line in times.read_text().splitlines()]
    return [(int(rank), int(step), float(at)) for rank, step, at in rows]


def gap(rows, ranks):
    """Seconds from the death until all ranks have done the step that it was in."""
    death = min(at for _, step, at in rows if step == -1)
    done = {rank: at for rank, step, at in rows if step == KILL + 1 and at > death}
    assert len(done) == ranks, rows
    return max(done.values()) - death


def start_seconds(program):
    begin = time.monotonic()
    subprocess.run([program, "--help"], stdout=subprocess.DEVNULL, check=True)
    return time.monotonic() - begin


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default=pathlib.Path("build/release"))
    parser.add_argument("--torchrun", type=pathlib.Path, default=pathlib.Path(".venv/bin/torchrun"))
    parser.add_argument("--ranks", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--flags", default="", help="more flags of lockstep run, such as --spare-ranks=1")
    arguments = parser.parse_args()
    binaries = (arguments.build / "bin").resolve()
    program = binaries / "examples/recovery"
    ours = [binaries / "lockstep", "run", "--on-failure", "replace", "--max-restarts", "3", "-np", str(arguments.ranks),
            *arguments.flags.split(), program]
    theirs = [arguments.torchrun.absolute(), "--standalone", "--max-restarts", "3", "--nproc-per-node", str(arguments.ranks),
              pathlib.Path(__file__).resolve().with_name("recovery_torch.py")]
    gaps = {"lockstep": [], "torchrun": []}
    starts = []
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([program, "--nproc", "1", "--steps", "1"], cwd=folder, stdout=subprocess.DEVNULL, check=True)  # makes the data
        for _ in range(arguments.rounds):
            starts.append(start_seconds(program))
            gaps["lockstep"].append(gap(run(ours, folder), arguments.ranks))
            for checkpoint in pathlib.Path(folder).glob("checkpoint*.pt"):
                checkpoint.unlink()
            gaps["torchrun"].append(gap(run(theirs, folder), arguments.ranks))
    print(f"seconds from the death of 1 of {arguments.ranks} ranks to the next completed step")
    for name, values in gaps.items():
        print(f"{name:<10} {spread(values)}")
    print(f"torchrun / lockstep {spread([b / a for a, b in zip(gaps['lockstep'], gaps['torchrun'])])}")
    print(f"a process starts in {spread(starts)} (--help)")


if __name__ == "__main__":
    main()
