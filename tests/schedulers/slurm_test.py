#!/usr/bin/env python3
"""examples/schedulers/train.sbatch in a Slurm of this machine alone (slurm_cluster.py).

    tests/schedulers/slurm_test.py --bin build/release/bin

Exit status 77: there is no Slurm here.
"""
import filecmp
import json
import os
import tempfile
import time
import unittest

import command_line
import slurm_cluster

ROOT = os.path.normpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))
RECIPE = os.path.join(ROOT, "examples", "schedulers", "train.sbatch")
# Some minutes of steps: a signal stops it however fast they are, and nobody waits for its end.
LONG = ["--epochs", "2000", "--batch-size", "32", "--log-every", "10", "--seed", "7"]
# lockstep, with the words that the test has for this start of a job: those of sbatch are the same for each.
WITH_WORDS = """#!/bin/sh
if [ "$1" = train ]; then
  for _ in $(seq 1200); do if [ -e "{words}" ]; then break; fi; sleep 0.1; done
  set -- "$@" $(cat "{words}")
fi
exec "{lockstep}" "$@"
"""
# In lockstep's place: it takes its time to save after a TERM, and says how many have come.
SLOW_TO_SAVE = """#!/bin/bash
if [ "$1" != run ]; then exit 2; fi
said=$(dirname "$0")/said
trap 'echo TERM >>"$said"' TERM
echo started >>"$said"
for ((i = 0; i < 600; ++i)); do
  if grep -q TERM "$said"; then break; fi
  sleep 0.1
done
for ((i = 0; i < 30; ++i)); do sleep 0.1; done
echo saved >>"$said"
"""


def text_of(path):
    if not os.path.exists(path):
        return ""
    with open(path, encoding="utf-8", errors="replace") as f:
        return f.read()


class TrainSbatch(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        os.mkdir(os.path.join(self.folder, "slurm"))
        self.slurm = slurm_cluster.SlurmCluster(os.path.join(self.folder, "slurm"))
        self.slurm.__enter__()
        self.addCleanup(self.slurm.__exit__)

    def write(self, name, text):
        """A program of that name, there all at once."""
        path = os.path.join(self.folder, name)
        with open(path + ".new", "w", encoding="utf-8") as f:
            f.write(text)
        os.chmod(path + ".new", 0o755)
        os.replace(path + ".new", path)
        return path

    def submit(self, name, lockstep, *words):
        self.output, self.log = os.path.join(self.folder, name), os.path.join(self.folder, name + ".log")
        variables = {"OUTPUT": self.output, "LOCKSTEP": lockstep}
        return self.slurm.submit(["--output", self.log, "--time", "10", "--chdir", self.folder, RECIPE, *words], variables)

    def await_steps(self, job):
        metrics, deadline = os.path.join(self.output, "metrics.jsonl"), time.monotonic() + 120
        while text_of(metrics).count("\n") < 2:
            self.assertIn(self.slurm.state(job), ("PENDING", "RUNNING", "CONFIGURING"), text_of(self.log))
            self.assertLess(time.monotonic(), deadline, text_of(self.log) + self.slurm.logs())
            time.sleep(0.05)

    def weights(self):
        return os.path.join(self.output, "checkpoints", "last", "model.safetensors")

    def test_usr1_saves_and_requeues_and_the_job_ends_as_one_that_nothing_happened_to(self):
        words = self.write("words", " ".join(LONG))
        lockstep = self.write("with_words", WITH_WORDS.format(words=words, lockstep=os.path.join(command_line.bin_folder, "lockstep")))
        job = self.submit("job", lockstep)
        self.await_steps(job)
        os.remove(words)  # the next start waits for its own
        # As --signal=B:USR1@60 does a minute before the time is up.
        self.slurm.run(["scancel", "--batch", "--signal", "USR1", job])
        self.slurm.await_state(job, "PENDING", 60, restarts=1)
        note = json.loads(text_of(os.path.join(self.output, "requeue")))
        self.assertEqual(note["signal"], "SIGUSR1")
        self.assertIn(f"stopped by SIGUSR1 after step {note['step']}, saved in ", text_of(self.log))
        whole_words = [*LONG, "--max-steps", str(note["step"] + 20)]
        self.write("words", " ".join(whole_words))
        self.slurm.await_state(job, "COMPLETED", 180, restarts=1)
        log = text_of(self.log)
        self.assertIn("Trained on 2 ranks", log)
        self.assertFalse(os.path.exists(os.path.join(self.output, "requeue")), "the training is complete")
        result = json.loads(text_of(os.path.join(self.output, "result.json")))
        self.assertEqual(result["steps"], note["step"] + 20)
        resumed = self.weights()

        whole = self.submit("whole", os.path.join(command_line.bin_folder, "lockstep"), *whole_words)
        self.slurm.await_state(whole, "COMPLETED", 180, restarts=0)
        self.assertTrue(filecmp.cmp(resumed, self.weights(), shallow=False), "the same weights in every bit")
        print(f"requeued after step {note['step']} of {result['steps']}; the weights are those of the undisturbed run")

    def test_scancel_saves_and_the_job_stays_cancelled(self):
        job = self.submit("job", os.path.join(command_line.bin_folder, "lockstep"), *LONG)
        self.await_steps(job)
        self.slurm.run(["scancel", job])
        self.slurm.await_state(job, "CANCELLED", 60)
        deadline = time.monotonic() + 60
        while not os.path.exists(os.path.join(self.output, "requeue")):
            self.assertLess(time.monotonic(), deadline, text_of(self.log) + self.slurm.logs())
            time.sleep(0.05)
        self.assertIn("stopped by SIGTERM after step ", text_of(self.log))
        self.assertEqual(json.loads(text_of(os.path.join(self.output, "requeue")))["signal"], "SIGTERM")
        time.sleep(2)  # time in which it could be queued again
        self.assertEqual(self.slurm.state(job), "CANCELLED")

    def test_term_leaves_time_to_save_and_comes_once(self):
        """srun kills its tasks on TERM, and `lockstep run` its ranks on a second one."""
        for words in ([], ["--batch", "--signal", "TERM"], ["--full", "--signal", "TERM"]):
            with self.subTest(words):
                said = os.path.join(self.folder, "said")
                if os.path.exists(said):
                    os.remove(said)
                job = self.submit("job", self.write("slow", SLOW_TO_SAVE))
                self.await_text(said, "started\n")
                self.slurm.run(["scancel", *words, job])
                self.await_text(said, "started\nTERM\nsaved\n")
                self.slurm.await_state(job, "COMPLETED" if words else "CANCELLED", 60)
                if words:
                    self.assertFalse([name for name in os.listdir(self.output) if name.startswith("secret-")])

    def await_text(self, path, text):
        deadline = time.monotonic() + 60
        while text_of(path) != text:
            self.assertLess(time.monotonic(), deadline, text_of(path) + text_of(self.log) + self.slurm.logs())
            time.sleep(0.05)


if __name__ == "__main__":
    command_line.run(slurm_cluster.unavailable)
