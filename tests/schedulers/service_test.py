#!/usr/bin/env python3
"""examples/schedulers/train.sh and train.service: a training that is stopped by a signal and started again.

    tests/schedulers/service_test.py --bin build/release/bin
"""
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
import unittest

import command_line

ROOT = os.path.normpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))
FOLDER = os.path.join(ROOT, "examples", "schedulers")
# Some minutes of steps: a signal stops it however fast they are, and nobody waits for its end.
LONG = ["--epochs", "2000", "--batch-size", "32", "--log-every", "10"]


class TrainSh(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.output = os.path.join(self.folder, "run")

    def start(self, *words):
        variables = {"OUTPUT": self.output, "LOCKSTEP": os.path.join(command_line.bin_folder, "lockstep"), "RUN": "--nproc-per-node 2"}
        with open(os.path.join(self.folder, "log"), "a", encoding="utf-8") as log:
            training = subprocess.Popen([os.path.join(FOLDER, "train.sh"), *words], cwd=self.folder, env={**os.environ, **variables}, stdin=subprocess.DEVNULL,
                                        stdout=log, stderr=log, start_new_session=True)
        self.addCleanup(self.end, training)
        return training

    def end(self, training):
        training.terminate()
        try:
            training.wait(30)
        except subprocess.TimeoutExpired:
            pass
        try:
            os.killpg(training.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        training.wait(10)

    def log(self):
        with open(os.path.join(self.folder, "log"), encoding="utf-8") as f:
            return f.read()

    def await_steps(self, training):
        metrics, deadline = os.path.join(self.output, "metrics.jsonl"), time.monotonic() + 120
        while not os.path.exists(metrics) or os.path.getsize(metrics) == 0:
            self.assertIsNone(training.poll(), self.log())
            self.assertLess(time.monotonic(), deadline, self.log())
            time.sleep(0.02)

    def test_a_stop_is_code_75_and_the_next_start_goes_on_to_the_end(self):
        training = self.start(*LONG)
        self.await_steps(training)
        training.send_signal(signal.SIGTERM)
        self.assertEqual(training.wait(60), 75, self.log())
        with open(os.path.join(self.output, "requeue"), encoding="utf-8") as f:
            note = json.load(f)
        self.assertTrue(os.path.exists(note["checkpoint"]))
        self.assertIn(f"stopped by SIGTERM after step {note['step']}, saved in ", self.log())
        self.assertEqual(self.start(*LONG, "--max-steps", str(note["step"] + 20)).wait(180), 0, self.log())
        with open(os.path.join(self.output, "result.json"), encoding="utf-8") as f:
            self.assertEqual(json.load(f)["steps"], note["step"] + 20)
        self.assertFalse(os.path.exists(os.path.join(self.output, "requeue")))

    def test_a_wrong_flag_stays_code_2(self):
        self.assertEqual(self.start("--epohcs", "3").wait(60), 2)


class Unit(unittest.TestCase):
    @unittest.skipUnless(shutil.which("systemd-analyze"), "no systemd-analyze (Debian's systemd)")
    def test_systemd_takes_it(self):
        with open(os.path.join(FOLDER, "train.service"), encoding="utf-8") as f:
            unit = f.read().replace("/srv/training/train.sh", os.path.join(FOLDER, "train.sh"))
        for slip, wrong in (("", False), ("KilMode=mixed\n", True)):
            with tempfile.TemporaryDirectory() as folder:
                path = os.path.join(folder, "train.service")
                with open(path, "w", encoding="utf-8") as f:
                    f.write(unit.replace("KillMode=mixed\n", "KillMode=mixed\n" + slip))
                done = subprocess.run(["systemd-analyze", "verify", "--man=no", path], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, timeout=60)
            about = [line for line in done.stdout.splitlines() if "train.service" in line]
            self.assertEqual(bool(about), wrong, done.stdout)


if __name__ == "__main__":
    command_line.run()
