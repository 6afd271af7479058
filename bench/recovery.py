#!/usr/bin/env python3
"""From a rank's death to the next completed step: Lockstep's recovery in place beside torchrun's restart, in
alternating rounds.

Both train the same small network on ranks of this host; rank 1 kills itself in the middle of a step. With
Lockstep (lockstep run --on-failure replace, examples/recovery) the others keep their processes; with
torchrun --max-restarts all are started again and go on from rank 0's checkpoint of the latest step. Prints the
median and range of the seconds, of torchrun's over ours, and of how long a process takes to start here;
--picture draws the last round.

    bench/recovery.py --build build/release --rounds 5 --svg recovery.svg
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
LIMIT = 120  # seconds of a job


def spread(values):
    return f"{statistics.median(values):.2f} ({min(values):.2f}-{max(values):.2f})"


def run(command, folder):
    """[(rank, step, seconds)] of a job, death as step -1."""
    times = pathlib.Path(folder) / "times"
    times.unlink(missing_ok=True)
    environment = dict(os.environ, OMP_NUM_THREADS="1")
    try:
        done = subprocess.run([*command, "--steps", str(STEPS), "--kill-rank", "1", "--kill-step", str(KILL), "--times", str(times)],
                              cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=LIMIT)
    except subprocess.TimeoutExpired:
        return None
    if done.returncode != 0:
        print(f"{' '.join(map(str, command))} ended with {done.returncode}: {done.stdout.strip().splitlines()[-1:]}")
        return None
    rows = [line.split() for line in times.read_text().splitlines()]
    return [(int(rank), int(step), float(at)) for rank, step, at in rows]


def gap(rows, ranks):
    """Seconds from the death until all ranks have done the step that it was in."""
    death = min(at for _, step, at in rows if step == -1)
    done = {rank: at for rank, step, at in rows if step == KILL + 1 and at > death}
    assert len(done) == ranks, rows
    return max(done.values()) - death


def picture(runs, ranks):
    """An SVG: a row a rank, a tick for each step that it had done, from one second before the death on."""
    begin, end = -1.0, max(gap(rows, ranks) for rows in runs.values()) + 1.0
    left, width, row, head = 96, 760, 22, 30
    x = lambda at: left + (at - begin) / (end - begin) * width
    parts, y = [], 8
    for name, rows in runs.items():
        death = min(at for _, step, at in rows if step == -1)
        done = death + gap(rows, ranks)
        parts.append(f'<text x="8" y="{y + 16}" class="name">{name}: {done - death:.2f} s</text>')
        y += head
        parts.append(f'<rect x="{x(0):.1f}" y="{y}" width="{x(done - death) - x(0):.1f}" height="{row * ranks}" class="gap"/>')
        for rank in range(ranks):
            middle = y + row * rank + row / 2
            parts.append(f'<text x="8" y="{middle + 4}">rank {rank}</text>')
            parts.append(f'<line x1="{left}" x2="{left + width}" y1="{middle}" y2="{middle}" class="base"/>')
            for who, step, at in rows:
                if who == rank and step >= 0 and begin <= at - death <= end:
                    kind = "again" if at > death and step <= KILL else "step"
                    parts.append(f'<line x1="{x(at - death):.1f}" x2="{x(at - death):.1f}" y1="{middle - 7}" y2="{middle + 7}" class="{kind}"/>')
            if any(who == rank and step == -1 for who, step, _ in rows):
                parts.append(f'<path d="M{x(0) - 5:.1f} {middle - 5}l10 10m0 -10l-10 10" class="death"/>')
        y += row * ranks + 10
    for second in range(int(begin), int(end) + 1):
        parts.append(f'<text x="{x(second):.1f}" y="{y + 14}" text-anchor="middle">{second}</text>')
    parts.append(f'<text x="{left + width / 2}" y="{y + 32}" text-anchor="middle">seconds since the death of rank 1</text>')
    style = ("text{font:13px sans-serif;fill:#333}.name{font-weight:bold}.gap{fill:#f6e3c5}.base{stroke:#ccc}"
             ".step{stroke:#1f6fb2;stroke-width:2}.again{stroke:#d9822b;stroke-width:2}.death{stroke:#c0392b;stroke-width:2.5;fill:none}")
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {left + width + 20} {y + 44}" width="{left + width + 20}">'
            f'<style>{style}</style><rect width="100%" height="100%" fill="#fff"/>' + "".join(parts) + "</svg>\n")


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
    parser.add_argument("--svg", type=pathlib.Path, help="draw the last round")
    parser.add_argument("--flags", default="", help="more flags of lockstep run")
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
            now = {"lockstep": run(ours, folder)}
            for checkpoint in pathlib.Path(folder).glob("checkpoint*.pt"):
                checkpoint.unlink()
            now["torchrun"] = run(theirs, folder)
            hung = [name for name, rows in now.items() if rows is None]
            if hung:
                print(f"round left out: {' and '.join(hung)} failed, or did not end within {LIMIT} s")
                continue
            last = now
            for name, rows in last.items():
                gaps[name].append(gap(rows, arguments.ranks))
    if not starts or not gaps["lockstep"]:
        sys.exit("no round was complete")
    print(f"seconds from the death of 1 of {arguments.ranks} ranks to the next completed step")
    for name, values in gaps.items():
        print(f"{name:<10} {spread(values)}")
    print(f"torchrun / lockstep {spread([b / a for a, b in zip(gaps['lockstep'], gaps['torchrun'])])}")
    if arguments.svg:
        arguments.svg.write_text(picture(last, arguments.ranks))
    print(f"a process starts in {spread(starts)} (--help)")


if __name__ == "__main__":
    main()
