#!/usr/bin/env python3
"""From a rank's death to the next completed step: Lockstep's recovery in place beside torchrun's restart of all, and
beside torchft where it is installed.

All train the same small network on ranks of this host. A round's contenders run one after the other, in an order that
changes from round to round: rank 1 kills itself with SIGKILL in the middle of a step, and the clock runs until all ranks,
the new one too, have done one and the same step again. A contender that fails in a round is named and left out of it.

- lockstep: lockstep run --on-failure replace, examples/recovery: the others keep their processes and repeat the step.
- lockstep-spare: the same with --spare-ranks 1; rank 1 is killed from outside, when a spare waits.
- torchrun: all ranks are started again and go on from a checkpoint, by default of the latest step (--save-every).
  torchrun 2.13 keeps one store for all restarts, with the former ranks' addresses in it, which gloo then connects to;
  TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 gives each restart a store of its own.
- torchft: a replica group a rank; steps are made without the dead rank until it is back, so the others' next step is
  shown beside.

    bench/recovery.py --rounds 9 --json recovery.json --svg recovery.svg
    bench/recovery.py --minutes 10 --every 60
    bench/recovery.py --draw docs/figures/recovery.json --svg docs/figures/recovery.svg

--minutes instead kills a rank every so many seconds, from outside and at any moment of a step, and compares the number of
steps with that of undisturbed slices before, between and after.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

import recovery_minutes
import recovery_picture
import recovery_rows
from recovery_job import Contender, Failed, Job

HERE = pathlib.Path(__file__).resolve().parent
KILLED, KILL_STEP = 1, 20
LIMIT = 120  # seconds until a job has recovered, its start included
AFTERWARDS = 1.0  # seconds that it is watched then, for the picture


def say(line):
    print(line, flush=True)


def spread(values, form=".2f"):
    return f"{statistics.median(values):{form}} ({min(values):{form}}-{max(values):{form}})"


def contenders(arguments):
    """Those that are there; the others are named with the reason."""
    binaries = (arguments.build / "bin").resolve()
    python = arguments.python.absolute()
    def lockstep(name, *flags, **more):
        return Contender(name, [binaries / "lockstep", "run", "--on-failure", "replace", "--max-restarts", "999", "--nproc-per-node",
                                arguments.ranks, *flags, *arguments.flags.split(), binaries / "examples/recovery"], **more)

    ours, spare = lockstep("lockstep"), lockstep("lockstep-spare", "--spare-ranks", 1, spares=True)
    torchrun = Contender("torchrun", [python, "-m", "torch.distributed.run", "--standalone", "--monitor-interval", "0.1",
                                      "--max-restarts", "999", "--nproc-per-node", arguments.ranks, HERE / "recovery_torch.py",
                                      "--save-every", arguments.save_every],
                         {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"})
    with_torchft = (arguments.torchft or arguments.python).absolute()
    torchft = Contender("torchft", [with_torchft, HERE / "recovery_torchft.py", "--ranks", arguments.ranks], shrinks=True)
    found = []
    ours_starts = [binaries / "examples/recovery", "--help"]
    for contender, test in ((ours, ours_starts), (spare, ours_starts), (torchrun, [python, "-c", "import torch"]),
                            (torchft, [with_torchft, "-c", "import torch, torchft"])):
        if contender.name not in arguments.contenders.split(","):
            continue
        try:
            done = subprocess.run(test, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            reason = "" if done.returncode == 0 else done.stdout.strip().splitlines()[-1]
        except OSError as error:
            reason = str(error)
        if reason:
            say(f"{contender.name} is left out: {reason}")
        else:
            found.append(contender)
    return found


def start_seconds(*command):
    begin = time.monotonic()
    subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
    return time.monotonic() - begin


def recover_once(contender, folder, ranks):
    """The rows of a job in which a rank died and was back, and the step that it died in. Throws Failed."""
    itself = [] if contender.spares else ["--kill-rank", KILLED, "--kill-step", KILL_STEP]
    with Job(contender, folder, itself) as job:
        killed_in = KILL_STEP
        if contender.spares:
            job.wait_for("a spare", lambda rows: recovery_rows.all_began(rows, ranks, KILL_STEP) and job.spare_waits(), LIMIT)
            killed_in = job.kill_and_note(KILLED)
        job.wait_for("recovery", lambda rows: recovery_rows.recovery(rows, ranks, killed_in), LIMIT)
        time.sleep(AFTERWARDS)
        job.check()
        return job.rows(), killed_in


def measure_rounds(runners, folders, arguments):
    """[{name: seconds}] of the rounds, and what the picture shows of each contender's last."""
    rounds, last = [], {}
    for index in range(arguments.rounds):
        now = {}
        turn = index % len(runners)
        for contender in runners[turn:] + runners[:turn]:
            try:
                rows, killed_in = recover_once(contender, folders[contender.name], arguments.ranks)
            except Failed as failure:
                say(f"round {index + 1}: {contender.name} is left out: {failure}")
                continue
            now[contender.name] = recovery_rows.recovery(rows, arguments.ranks, killed_in)
            last[contender.name] = recovery_picture.window(rows, arguments.ranks, killed_in)
        say(f"round {index + 1}: " + ", ".join(f"{name} {took['all']:.2f} s" for name, took in sorted(now.items())))
        rounds.append(now)
    return rounds, last


def report_rounds(rounds, runners, ranks):
    say(f"seconds from the death of 1 of {ranks} ranks until all have done the next step: median (range) of {len(rounds)} rounds")
    for contender in runners:
        took = [now[contender.name] for now in rounds if contender.name in now]
        if not took:
            say(f"{contender.name:<14} no round was complete")
            continue
        line = f"{contender.name:<14} {spread([one['all'] for one in took])}, {len(took)} of {len(rounds)} rounds"
        if contender.shrinks:
            line += f"; the others go on without it after {spread([one['others'] for one in took])}"
        say(line)
    for contender in runners:
        both = [now for now in rounds if contender.name in now and "lockstep" in now]
        if contender.name != "lockstep" and both:
            say(f"{contender.name} / lockstep {spread([now[contender.name]['all'] / now['lockstep']['all'] for now in both], '.1f')}")


def draw(saved, path):
    """FILE.svg and, for the Chinese page, FILE_zh.svg."""
    for language, to in (("en", path), ("zh", path.with_name(path.stem + "_zh" + path.suffix))):
        to.write_text(recovery_picture.draw(saved["last"], saved["ranks"], language), encoding="utf-8")


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default=pathlib.Path("build/release"))
    parser.add_argument("--python", type=pathlib.Path, default=pathlib.Path(".venv/bin/python"), help="one that has torch")
    parser.add_argument("--torchft", type=pathlib.Path, help="a Python that has torch and torchft; default: --python's")
    parser.add_argument("--contenders", default="lockstep,lockstep-spare,torchrun,torchft")
    parser.add_argument("--ranks", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--save-every", type=int, default=1, help="steps between torchrun's checkpoints")
    parser.add_argument("--flags", default="", help="more flags of lockstep run")
    parser.add_argument("--json", type=pathlib.Path, help="write all figures, and the last round's rows")
    parser.add_argument("--svg", type=pathlib.Path, help="draw the last round, in Chinese as ..._zh.svg, too")
    parser.add_argument("--draw", type=pathlib.Path, help="measure nothing: draw what --json wrote")
    parser.add_argument("--minutes", type=float, help="kill a rank every --every seconds for so many minutes")
    parser.add_argument("--every", type=float, default=60, help="seconds from one kill to the next")
    parser.add_argument("--slice", type=float, default=120, help="seconds of a disturbed slice, at most")
    parser.add_argument("--calm", type=float, default=60, help="seconds of an undisturbed slice")
    parser.add_argument("--seed", type=int, default=1, help="of the ranks that are killed")
    arguments = parser.parse_args()
    if arguments.ranks < 2:
        parser.error(f"--ranks {arguments.ranks}: at least 2, one dies")
    if arguments.draw and not arguments.svg:
        parser.error("--draw: also say --svg FILE")
    if arguments.minutes and not recovery_minutes.moments(recovery_minutes.slices(arguments.minutes * 60, arguments.slice)[1],
                                                          arguments.every):
        parser.error(f"--every {arguments.every:g}: longer than a disturbed slice, no rank would be killed; say a longer --slice")
    return arguments


def main():
    arguments = parse()
    if arguments.draw:
        return draw(json.loads(arguments.draw.read_text()), arguments.svg)
    runners = contenders(arguments)
    if not runners:
        sys.exit("no contender is there")
    saved = {"ranks": arguments.ranks, "processors": os.cpu_count(), "load_before": os.getloadavg()[0]}
    with tempfile.TemporaryDirectory() as scratch:
        folders = {contender.name: pathlib.Path(scratch) / contender.name for contender in runners}
        for folder in folders.values():
            folder.mkdir()
        ours = [folders[name] for name in ("lockstep", "lockstep-spare") if name in folders]
        if ours:
            program = (arguments.build / "bin/examples/recovery").resolve()
            for folder in ours:
                subprocess.run([program, "--nproc", "1", "--steps", "1"], cwd=folder, stdout=subprocess.DEVNULL,
                               check=True)  # makes the data
            starts = [start_seconds(program, "--help") for _ in range(5)]
            saved["start"] = starts
            say(f"a process of ours starts in {spread(starts)} s (examples/recovery --help)")
        if arguments.minutes:
            saved["minutes"] = {}
            for contender in runners:
                try:
                    result = recovery_minutes.measure(contender, folders[contender.name], arguments, say)
                except Failed as failure:
                    say(f"{contender.name} is left out: {failure}")
                    continue
                saved["minutes"][contender.name] = result
            for contender in runners:
                if contender.name in saved["minutes"]:
                    say(recovery_minutes.summary(contender, saved["minutes"][contender.name]))
            complete = bool(saved["minutes"])
        else:
            saved["rounds"], saved["last"] = measure_rounds(runners, folders, arguments)
            report_rounds(saved["rounds"], runners, arguments.ranks)
            complete = bool(saved["last"])
    if not complete:
        sys.exit("nothing was measured")
    if arguments.json:
        arguments.json.write_text(json.dumps(saved) + "\n")
    if arguments.svg and "last" in saved:
        saved["last"] = {c.name: saved["last"][c.name] for c in runners if c.name in saved["last"]}
        draw(saved, arguments.svg)


if __name__ == "__main__":
    main()
