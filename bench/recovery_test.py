#!/usr/bin/env python3
"""What bench/recovery.py makes of rows, its processes, and docs/figures/recovery*.svg, which are what it draws."""

import json
import pathlib
import sys
import tempfile
import time
import unittest

import recovery_minutes
import recovery_picture
import recovery_rows
from recovery_job import Contender, Failed, Job

FIGURES = pathlib.Path(__file__).resolve().parent.parent / "docs/figures"

# A launcher of three ranks, which note a step and wait; it does not end them when it ends.
LAUNCHER = """
import os, subprocess, sys, time
times = sys.argv[sys.argv.index("--times") + 1]
for rank in range(3):
    subprocess.Popen([sys.executable, "-c", f"import time; open({times!r}, 'a').write('{rank} 1 5.0\\\\n'); time.sleep(600)"],
                     env=dict(os.environ, RANK=str(rank)))
time.sleep(600)
"""


def steps(rank, first, last, begin, pace=0.1):
    return [(rank, step, begin + pace * (step - first)) for step in range(first, last + 1)]


class Rows(unittest.TestCase):
    def test_half_a_line_is_not_there_yet(self):
        self.assertEqual(recovery_rows.parse("0 1 2.5\n1 -1 3.25\n0 2 3."), [(0, 1, 2.5), (1, -1, 3.25)])
        self.assertEqual(recovery_rows.parse("0 1"), [])

    def test_recovered_when_all_have_done_the_same_step(self):
        rows = steps(0, 1, 5, 10) + steps(1, 1, 5, 10) + [(1, -1, 10.45)]
        self.assertIsNone(recovery_rows.recovery(rows, 2, 5))
        rows += [(0, 6, 12.0)]
        self.assertIsNone(recovery_rows.recovery(rows, 2, 5), "rank 1 is not back")
        rows += [(1, 6, 12.25)]
        took = recovery_rows.recovery(rows, 2, 5)
        self.assertAlmostEqual(took["others"], 1.55)
        self.assertAlmostEqual(took["all"], 1.80)

    def test_repeated_steps_before_the_death_do_not_count(self):
        rows = [(1, -1, 10.0)] + steps(0, 3, 8, 12) + steps(1, 3, 8, 12)  # from a checkpoint of step 2
        self.assertAlmostEqual(recovery_rows.recovery(rows, 2, 5)["all"], 2.3)

    def test_others_that_go_on_alone(self):
        rows = [(1, -1, 10.0)] + steps(0, 6, 40, 10.5) + steps(2, 6, 40, 10.5) + steps(1, 31, 40, 13.0)
        took = recovery_rows.recovery(rows, 3, 5)
        self.assertAlmostEqual(took["others"], 0.5)
        self.assertAlmostEqual(took["all"], 3.0)

    def test_a_step_just_before_the_death_is_none_after_it(self):
        rows = [(0, 6, 9.99), (1, -1, 10.0), (0, 7, 11.0), (1, 6, 10.5), (1, 7, 11.5)]
        self.assertAlmostEqual(recovery_rows.recovery(rows, 2, 5)["all"], 1.5)

    def test_progress_and_batches_count_a_repeated_step_once(self):
        rows = [(0, 1, 1.0), (1, 1, 1.0), (0, 2, 2.0), (1, -1, 2.0), (0, 2, 3.0), (1, 2, 3.0), (0, 3, 4.0)]
        self.assertEqual(recovery_rows.progress(rows, 3.5), 2)
        self.assertEqual(recovery_rows.progress(rows, 0.5), 0)
        self.assertEqual(recovery_rows.batches(rows, 1.5, 4.5), 3)


class Minutes(unittest.TestCase):
    def test_moments(self):
        self.assertEqual(recovery_minutes.moments(120, 60), [30, 90])
        self.assertEqual(recovery_minutes.moments(59, 60), [])
        self.assertEqual(len(recovery_minutes.moments(0.3, 0.1)), 3)

    def test_slices_fill_the_time(self):
        self.assertEqual(recovery_minutes.slices(600, 120), (5, 120))
        self.assertEqual(recovery_minutes.slices(30, 120), (1, 30))
        self.assertEqual(recovery_minutes.slices(50, 20), (3, 50 / 3))

    def test_share_is_of_what_the_neighbours_made(self):
        self.assertAlmostEqual(recovery_minutes.share((1140, 120), (500, 50), (600, 60)), 0.95)
        self.assertAlmostEqual(recovery_minutes.share((1200, 120), (500, 50), (300, 60)), 1200 / (7.5 * 120), msg="drift")


class Processes(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def test_kills_one_rank_and_leaves_nobody(self):
        with Job(Contender("fake", [sys.executable, "-c", LAUNCHER]), self.folder) as job:
            job.wait_for("the start", lambda rows: recovery_rows.all_began(rows, 3, 1), 60)
            self.assertTrue(job.kill_rank(1))
            deadline = time.monotonic() + 60
            while job.kill_rank(1) and time.monotonic() < deadline:
                time.sleep(0.01)  # the kernel has not taken it away yet
            self.assertEqual(sorted(rank for _, rank in job._processes() if rank is not None), [0, 2])
        self.assertEqual(list(job._processes()), [])

    def test_a_spare_that_sleeps_waits_and_has_a_rank_once_it_is_said(self):
        launcher = LAUNCHER.replace("time.sleep(600)\n", """
environment = dict(os.environ, LOCKSTEP_SPARE_FD="5")
environment.pop("RANK", None)
spare = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], env=environment)
print(f"[lockstep] rank 1 is pid {spare.pid} from now on, which was a spare", file=open("taken", "w"))
time.sleep(600)
""")
        with Job(Contender("fake", [sys.executable, "-c", launcher]), self.folder) as job:
            job.wait_for("a spare", lambda rows: recovery_rows.all_began(rows, 3, 1) and job.spare_waits(), 60)
            taken = (pathlib.Path(self.folder) / "taken").read_text()
            job.output.write_text(taken)
            self.assertFalse(job.spare_waits(), "it is a rank")
            self.assertEqual(sorted(rank for _, rank in job._processes() if rank is not None), [0, 1, 1, 2])
            self.assertEqual(job.kill_and_note(1), 1)
            self.assertEqual(recovery_rows.death(job.rows())[0], 1)

    def test_says_what_a_job_ended_with(self):
        with Job(Contender("fake", [sys.executable, "-c", "raise ValueError('no such model')"]), self.folder) as job:
            with self.assertRaisesRegex(Failed, "ended with 1: ValueError: no such model"):
                job.wait_for("the start", lambda rows: rows, 60)


class Picture(unittest.TestCase):
    def test_shows_a_second_before_and_after(self):
        rows = steps(0, 1, 60, 7.0) + steps(1, 1, 30, 7.0) + [(1, -1, 9.95)] + steps(1, 33, 60, 10.2)
        shown = recovery_picture.window(rows, 2, 30)
        self.assertEqual(shown["killed"], 1)
        self.assertGreaterEqual(min(at for _, _, at in shown["rows"]), -1)
        self.assertLessEqual(max(at for _, _, at in shown["rows"]), shown["all"] + 1)

    def test_those_of_the_docs_are_drawn_from_their_figures(self):
        saved = json.loads((FIGURES / "recovery.json").read_text())
        for language, name in (("en", "recovery.svg"), ("zh", "recovery_zh.svg")):
            drawn = recovery_picture.draw(saved["last"], saved["ranks"], language)
            self.assertEqual(drawn, (FIGURES / name).read_text(encoding="utf-8"), "draw them anew: scripts/figures")


if __name__ == "__main__":
    unittest.main()
