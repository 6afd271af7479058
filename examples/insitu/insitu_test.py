#!/usr/bin/env python3
"""Runs the simulation and the trainer of examples/insitu together, and kills either in the middle.

usage: insitu_test.py --bin FOLDER

FOLDER holds lockstep and examples/.
"""
import argparse
import os
import re
import signal
import subprocess
import threading
import sys
import time

SECONDS = 120


def fail(text):
    sys.exit(f"insitu_test: {text}")


class Program:
    def __init__(self, *words):
        self.words = words
        self.process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, encoding="utf-8",
                                        start_new_session=True)
        self.lines = []

    def await_line(self, text):
        watch = threading.Timer(SECONDS, self.kill)
        watch.start()
        try:
            for line in self.process.stdout:
                self.lines.append(line)
                if text in line:
                    return
        finally:
            watch.cancel()
        fail(f"no line with '{text}' of {self.words}: {''.join(self.lines)}")

    def output(self):
        """All of it, once the program has ended well."""
        try:
            rest, _ = self.process.communicate(timeout=SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
            fail(f"{self.words} does not end: {''.join(self.lines)}")
        text = "".join(self.lines) + rest
        if self.process.returncode != 0:
            fail(f"{self.words} ended with {self.process.returncode}: {text}")
        return text

    def kill(self):
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def simulation(options, name, steps, seconds=30):
    return Program(f"{options.bin}/examples/insitu/simulation", "--ring", name, "--steps", str(steps), "--pause-ms", "1",
                   "--seconds", str(seconds))


def trainer(options, name, *words, ranks=None):
    program = [f"{options.bin}/examples/insitu/trainer", "--ring", name, *words]
    if ranks:
        program = [f"{options.bin}/lockstep", "run", "--nproc-per-node", str(ranks), *program]
    return Program(*program)


def check_simulation(text, steps):
    found = re.search(r"simulation: (\d+) steps, (\d+) samples produced, (\d+) (?:dropped|not placed)", text)
    if not found or int(found.group(1)) != steps or int(found.group(2)) != steps:
        fail(f"the simulation did not make and place its {steps} steps: {text}")


def check_trainer(text, least):
    found = re.search(r"trainer: (\d+) batches, loss ([\d.]+) at first, ([\d.]+) at last", text)
    if not found:
        fail(f"the trainer says nothing of its loss: {text}")
    batches, first, last = int(found.group(1)), float(found.group(2)), float(found.group(3))
    if batches < least or not last < 0.5 * first:
        fail(f"{batches} batches (at least {least} were expected), loss {first} to {last}, which is not half of it")


def both_end_well(options, name):
    for ranks, first in ((None, "trainer"), (2, "simulation")):
        if first == "trainer":
            learning = trainer(options, name, ranks=ranks)
            running = simulation(options, name, 4000)
        else:
            running = simulation(options, name, 6000)
            learning = trainer(options, name, ranks=ranks)
        check_simulation(running.output(), 4000 if first == "trainer" else 6000)
        check_trainer(learning.output(), 20)


def the_trainer_is_killed(options, name):
    running = simulation(options, name, 8000, seconds=0.5)
    killed = trainer(options, name)
    killed.await_line("has its first batch")
    time.sleep(0.2)
    killed.kill()
    # A new one goes on where the simulation is.
    check_trainer(trainer(options, name, "--max-batches", "40").output(), 40)
    # The rest of the steps is made with no trainer at all.
    check_simulation(running.output(), 8000)


def the_simulation_is_killed(options, name):
    running = simulation(options, name, 10 ** 6)
    learning = trainer(options, name)
    learning.await_line("has its first batch")
    time.sleep(1)
    running.kill()
    check_trainer(learning.output(), 10)


def fortran_ends_well(options, name):
    program = f"{options.bin}/examples/insitu/simulation_fortran"
    if not os.path.exists(program):
        return "left out: the simulation in Fortran is not built (apt-get install gfortran)"
    learning = trainer(options, name)
    running = Program(program, name, "4000", "1", "30")
    check_simulation(running.output(), 4000)
    check_trainer(learning.output(), 20)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", required=True, type=os.path.abspath)
    options = parser.parse_args()
    for part in (both_end_well, the_trainer_is_killed, the_simulation_is_killed, fortran_ends_well):
        start = time.monotonic()
        left_out = part(options, f"example-{os.getpid()}-{part.__name__}"[:64])
        print(f"{part.__name__}: {left_out or f'ok, {time.monotonic() - start:.1f} s'}")


if __name__ == "__main__":
    main()
