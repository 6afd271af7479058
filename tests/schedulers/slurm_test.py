#!/usr/bin/env python3
"""examples/schedulers/train.sbatch in a Slurm of this machine alone (slurm_cluster.py).

    tests/schedulers/slurm_test.py --bin build/release/bin

Exit status 77: there is no Slurm here.
"""
import argparse
import filecmp
import json
import os
import sys
import tempfile
import time
import unittest

import slurm_cluster

ROOT = os.path.normpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))
RECIPE = os.path.join(ROOT, "examples", "schedulers", "train.sbatch")
# Some seconds of steps, in which a signal is noticed however fast they are.
TRAINING = ["--epochs", "4", "--batch-size", "32", "--log-every", "10", "--seed", "7"]
SKIPPED = 77
bin_folder = None


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

    def submit(self, name):
        self.output, self.log = os.path.join(self.folder, name), os.path.join(self.folder, name + ".log")
        variables = {"OUTPUT": self.output, "LOCKSTEP": os.path.join(bin_folder, "lockstep")}
        return self.slurm.submit(["--output", self.log, "--time", "10", "--chdir", self.folder, RECIPE, *TRAINING], variables)

    def await_steps(self, job):
        metrics, deadline = os.path.join(self.output, "metrics.jsonl"), time.monotonic() + 120
        while text_of(metrics).count("\n") < 2:
            self.assertIn(self.slurm.show(job)["JobState"], ("PENDING", "RUNNING", "CONFIGURING"), text_of(self.log))
            self.assertLess(time.monotonic(), deadline, text_of(self.log) + self.slurm.logs())
            time.sleep(0.05)

    def weights(self):
        return os.path.join(self.output, "checkpoints", "last", "model.safetensors")

    def test_usr1_saves_and_requeues_and_the_job_ends_as_one_that_nothing_happened_to(self):
        whole = self.submit("whole")
        self.slurm.await_state(whole, "COMPLETED", 180, restarts=0)
        undisturbed = self.weights()

        job = self.submit("job")
        self.await_steps(job)
        # As --signal=B:USR1@60 does a minute before the time is up.
        self.slurm.run(["scancel", "--batch", "--signal", "USR1", job])
        self.slurm.await_state(job, "PENDING", 60, restarts=1)
        note = json.loads(text_of(os.path.join(self.output, "requeue")))
        self.assertEqual(note["signal"], "SIGUSR1")
        self.assertIn(f"stopped by SIGUSR1 after step {note['step']}, saved in ", text_of(self.log))
        self.slurm.await_state(job, "COMPLETED", 180, restarts=1)
        log = text_of(self.log)
        self.assertIn("Trained on 2 ranks", log)
        self.assertFalse(os.path.exists(os.path.join(self.output, "requeue")), "the training is complete")
        result = json.loads(text_of(os.path.join(self.output, "result.json")))
        self.assertGreater(result["steps"], note["step"])
        self.assertTrue(filecmp.cmp(undisturbed, self.weights(), shallow=False), "the same weights in every bit")
        print(f"requeued after step {note['step']} of {result['steps']}; the weights are those of the undisturbed run")

    def test_scancel_saves_and_the_job_stays_cancelled(self):
        job = self.submit("job")
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
        self.assertEqual(self.slurm.show(job)["JobState"], "CANCELLED")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", required=True)
    options, rest = parser.parse_known_args()
    bin_folder = os.path.abspath(options.bin)
    if why := slurm_cluster.unavailable():
        print("skipped:", why)
        sys.exit(SKIPPED)
    unittest.main(argv=[sys.argv[0], *rest], verbosity=2)
