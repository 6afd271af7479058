"""What scripts/test says at its end (scripts/lib)."""
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = os.path.normpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))
sys.path.insert(0, os.path.join(ROOT, "scripts", "lib"))
from run_ctest import run_to_end  # noqa: E402  (it is there from here on)
from test_results import program_of  # noqa: E402


class Summary(unittest.TestCase):
    """Against what ctest itself writes."""

    PROGRAM = """#!/bin/sh
echo '[==========] Running 3 tests from 1 test suite.'
echo '[ RUN      ] Env.Good'
echo '[       OK ] Env.Good (0 ms)'
echo '[ RUN      ] Env.Skip'
echo '/x/a.cpp:3: Skipped'
echo 'needs mpirun'
echo
echo '[  SKIPPED ] Env.Skip (0 ms)'
echo '[ RUN      ] Env.Last'
$1
"""

    def setUp(self):
        folder = tempfile.mkdtemp(prefix="lockstep-summary-")
        self.addCleanup(shutil.rmtree, folder)
        self.unsteady = os.path.join(folder, "unsteady.txt")

    def list_unsteady(self, *lines):
        with open(self.unsteady, "w", encoding="utf-8") as f:
            f.writelines(line + "\n" for line in ("# a comment", "", *lines))

    def write_program(self, last, name="program"):
        """A folder as ctest sees it, whose test's program's last case ends with these shell commands."""
        root = tempfile.mkdtemp(prefix="lockstep-summary-")
        self.addCleanup(shutil.rmtree, root)
        program = os.path.join(root, "bin", "tests", name)
        os.makedirs(os.path.dirname(program))
        with open(program, "w", encoding="utf-8") as f:
            f.write(self.PROGRAM.replace("$1", last))
        os.chmod(program, 0o755)
        if (whole := program_of(name)) != name:
            os.rename(program, os.path.join(root, "bin", "tests", whole))
            program = os.path.join(root, "bin", "tests", whole)
        with open(os.path.join(root, "CTestTestfile.cmake"), "w", encoding="utf-8") as f:
            f.write(f'add_test({name} "{program}")\nset_tests_properties({name} PROPERTIES TIMEOUT 2)\n')
        return root

    def run_ctest(self, root):
        """As scripts/test runs it: exit status and text."""
        return self.run_script("run_ctest.py", root, "ctest", "--test-dir", root, "--output-junit", os.path.join(root, "ctest.xml"))

    def run_script(self, name, *arguments):
        if name == "summarise_tests.py":
            arguments = ["--unsteady", self.unsteady, "--today", "2026-11-22", *arguments]
        done = subprocess.run([sys.executable, os.path.join(ROOT, "scripts/lib", name), *arguments],
                              capture_output=True, text=True, check=False)
        return done.returncode, done.stdout

    def summary(self, last, tests=""):
        root = self.write_program(last)
        with open(os.path.join(root, "CTestTestfile.cmake"), "a", encoding="utf-8") as f:
            f.write(tests)
        self.run_ctest(root)
        return self.run_script("summarise_tests.py", f"p={root}")

    def test_cases_are_counted(self):
        tests = ('add_test(check "sh" "-c" "echo clang-format is not here; exit 77")\n'
                 'set_tests_properties(check PROPERTIES SKIP_RETURN_CODE 77)\nadd_test(other "true")\n')
        self.assertEqual(self.summary("echo '[       OK ] Env.Last (1 ms)'", tests),
                         (0, "skipped  p: program: Env.Skip: needs mpirun\n"
                             "skipped  p: check: clang-format is not here\n"
                             "3 passed, 0 failed, 2 skipped\n"))

    def test_failures_are_named(self):
        skipped = "skipped  p: program: Env.Skip: needs mpirun\n"
        line = "1 passed, 1 failed, 1 skipped\n"
        self.assertEqual(self.summary("echo '[  FAILED  ] Env.Last (1 ms)'; exit 1"),
                         (1, f"{skipped}FAILED   p: program: Env.Last\n{line}"))
        for end in ("kill -SEGV $$", "exec sleep 5"):
            self.assertEqual(self.summary(end), (1, f"{skipped}FAILED   p: program: Env.Last (did not end)\n{line}"))
        self.assertEqual(self.summary("echo '[       OK ] Env.Last (1 ms)'", 'add_test(gone "/nonexistent")\n'),
                         (1, f"{skipped}FAILED   p: gone\n2 passed, 1 failed, 1 skipped\n"))

    def test_a_failure_is_shown_and_a_process_test_tried_again(self):
        # Fails the first time only, with a line of its own. Asked for one case, GoogleTest says PASSED with the count.
        last = ("if [ -e ${0%/*}/ran ]; then echo '[       OK ] Env.Last (1 ms)'; echo '[  PASSED  ] 1 test.'; exit 0; fi\n"
                "touch ${0%/*}/ran; echo 'the peer was late'; echo '[  FAILED  ] Env.Last (1 ms)'; exit 1")
        root = self.write_program(last, "some_mp_alone")
        with open(os.path.join(root, "CTestTestfile.cmake"), "a", encoding="utf-8") as f:
            f.write('add_test(next "echo" "of no interest")\n')
        status, text = self.run_ctest(root)
        self.assertEqual(status, 0, text)
        # At once, and nothing of what passed.
        self.assertRegex(text, r"(?s)Test #1: some_mp_alone \.+\*\*\*Failed[^\n]+\n---- failed: some_mp_alone: Env.Last\n"
                               r"the peer was late\n---- end of some_mp_alone: Env.Last\n +Start 2: next\n.*"
                               r"---- again, alone: some_mp_alone: Env.Last\n     passed\n$")
        for line in ("needs mpirun", "Env.Good", "of no interest"):
            self.assertNotIn(line, text)
        # It counts as a failure all the same, unless it is known.
        skipped = "skipped  p: some_mp_alone: Env.Skip: needs mpirun\n"
        self.assertEqual(self.run_script("summarise_tests.py", f"p={root}"),
                         (1, f"{skipped}FAILED   p: some_mp_alone: Env.Last: passed when run again alone; mend it, or list it in "
                             "tests/unsteady.txt\n2 passed, 1 failed, 1 skipped\n"))
        self.list_unsteady("2026-11-20 | some_mp_alone: Env.Last | late | on loaded machines")
        self.assertEqual(self.run_script("summarise_tests.py", f"p={root}"),
                         (0, f"{skipped}unsteady p: some_mp_alone: Env.Last: late | on loaded machines\n3 passed, 0 failed, 1 skipped\n"))

        # What ran beside others counts as it is alone.
        for name, label in (("comm_mp_waits", "comm_mp_waits"), ("rpc_test", "rpc_test"), ("some_mp_test", "some_mp_test"),
                            ("some_mp_test_part2", "some_mp_test")):
            root = self.write_program(last, name)
            self.assertEqual(self.run_ctest(root)[0], 0)
            status, text = self.run_script("summarise_tests.py", f"p={root}")
            self.assertEqual(status, 0, text)
            self.assertIn(f"unsteady p: {label}: Env.Last: failed beside others, passed alone\n", text)

        # Once more it fails, or the test has no deadlines: it stays failed.
        for name, end in (("some_mp_test", "echo no; echo '[  FAILED  ] Env.Last (1 ms)'; exit 1"), ("some_test", last)):
            root = self.write_program(end, name)
            self.assertEqual(self.run_ctest(root)[0], 1)
            self.assertIn(f"FAILED   p: {name}: Env.Last\n", self.run_script("summarise_tests.py", f"p={root}")[1])

    def test_a_python_test_is_tried_again_as_a_whole(self):
        # As ctest starts it: in its folder, with its environment.
        last = "echo '[       OK ] Env.Last (1 ms)'"
        script = 'test "$MARK" = 1 || exit 3; if [ -e ran ]; then exit 0; fi; touch ran; echo the peer was late; exit 1'
        for name, summary in (
                ("oracle_rpc_parity", (0, "unsteady p: oracle_rpc_parity: failed beside others, passed alone\n3 passed, 0 failed, 1 skipped\n")),
                ("python_faults", (1, "FAILED   p: python_faults: passed when run again alone; mend it, or list it in tests/unsteady.txt\n"
                                      "2 passed, 1 failed, 1 skipped\n")),
                # It starts no ranks.
                ("oracle_tokenizer_parity", (1, "FAILED   p: oracle_tokenizer_parity\n2 passed, 1 failed, 1 skipped\n")),
                ("check_this", (1, "FAILED   p: check_this\n2 passed, 1 failed, 1 skipped\n"))):
            root = self.write_program(last)
            folder = os.path.join(root, "folder")
            os.mkdir(folder)
            with open(os.path.join(root, "CTestTestfile.cmake"), "a", encoding="utf-8") as f:
                f.write(f"add_test({name} \"sh\" \"-c\" [[{script}]])\n"
                        f'set_tests_properties({name} PROPERTIES ENVIRONMENT "MARK=1" WORKING_DIRECTORY "{folder}")\n')
            status, text = self.run_ctest(root)
            again = f"---- again, alone: {name}\n     passed\n"
            self.assertEqual((status, again in text), (0, True) if "unsteady" in summary[1] or name == "python_faults" else (1, False), text)
            self.assertEqual(self.run_script("summarise_tests.py", f"p={root}"),
                             (summary[0], f"skipped  p: program: Env.Skip: needs mpirun\n{summary[1]}"))

    def test_a_second_try_that_hangs_leaves_no_process(self):
        reader, writer = os.pipe()  # which whoever has it keeps open
        with self.assertRaises(subprocess.TimeoutExpired):
            run_to_end(["sh", "-c", "sleep 100 & sleep 100"], 0.5, pass_fds=[writer])
        os.close(writer)
        with os.fdopen(reader, "rb") as end:
            self.assertEqual(end.read(), b"")

    def test_the_first_run_begins_with_what_takes_longest(self):
        with open(os.path.join(ROOT, "scripts/lib/test_costs.txt"), encoding="utf-8") as f:
            costs = [line.split() for line in f if not line.startswith("#")]
        self.assertEqual(costs, sorted(costs, key=lambda cost: -int(cost[1])))
        long, longer = costs[1][0], costs[0][0]
        root = self.write_program("echo '[       OK ] Env.Last (1 ms)'")
        with open(os.path.join(root, "CTestTestfile.cmake"), "a", encoding="utf-8") as f:
            f.write(f'add_test({long} "true")\nadd_test({longer} "true")\n')
        _, text = self.run_script("run_ctest.py", root, "ctest", "--test-dir", root, "-j", "2", "--output-junit", os.path.join(root, "ctest.xml"))
        started = re.findall(r"Start \d+: (\S+)", text)
        self.assertEqual(started[:2], [longer, long], text)

    def test_a_known_case_that_fails_twice_has_failed(self):
        self.list_unsteady("2026-11-20 | some_mp_test: Env.Last | late")
        root = self.write_program("echo no; echo '[  FAILED  ] Env.Last (1 ms)'; exit 1", "some_mp_test")
        self.assertEqual(self.run_ctest(root)[0], 1)
        self.assertIn("FAILED   p: some_mp_test: Env.Last\n", self.run_script("summarise_tests.py", f"p={root}")[1])

    def test_the_list_of_unsteady_cases_has_reasons_and_dates(self):
        root = self.write_program("echo '[       OK ] Env.Last (1 ms)'")
        self.run_ctest(root)
        for line, problem in (
                ("some_mp_test: Env.Last", "a line is DATE | PROGRAM: SUITE.CASE | REASON"),
                ("2026-11-20 | some_mp_test: Env.Last |", "a line is DATE"),
                ("20 Nov | some_mp_test: Env.Last | late", "a line is DATE"),
                ("2026-11-23 | some_mp_test: Env.Last | late", "some_mp_test: Env.Last: 2026-11-23 is not yet"),
                ("2026-10-22 | some_mp_test: Env.Last | late", "Env.Last has been unsteady since 2026-10-22, more than 30 days")):
            self.list_unsteady(line)
            status, text = self.run_script("summarise_tests.py", f"p={root}")
            self.assertEqual(status, 1, text)
            self.assertIn("unsteady.txt:3: ", text)
            self.assertIn(problem, text)
            self.assertTrue(text.endswith("2 passed, 1 failed, 1 skipped\n"), text)
        self.list_unsteady("2026-10-23 | some_mp_test: Env.Last | late")
        self.assertEqual(self.run_script("summarise_tests.py", f"p={root}")[0], 0)

    def test_skips_of_python_tests(self):
        script = ("import unittest\nclass A(unittest.TestCase):\n"
                  "  def test_a(self): self.skipTest('no GPU')\n"
                  "  def test_b(self):\n    'Of words.'\n    self.skipTest(\"the data's words\")\n"
                  "  def test_c(self): print('skipped: half of it: no network')\n"
                  "unittest.main(verbosity=2)\n")
        root = self.write_program("echo '[       OK ] Env.Last (1 ms)'")
        with open(os.path.join(root, "a.py"), "w", encoding="utf-8") as f:
            f.write(script)
        with open(os.path.join(root, "CTestTestfile.cmake"), "a", encoding="utf-8") as f:
            f.write(f'add_test(python "{sys.executable}" "{root}/a.py")\n')
        self.run_ctest(root)
        status, text = self.run_script("summarise_tests.py", f"p={root}")
        self.assertEqual(status, 0)
        for line in ("skipped  p: python: test_a: no GPU\n", "skipped  p: python: test_b: the data's words\n",
                     "skipped  p: python: half of it: no network\n"):
            self.assertIn(line, text)
        self.assertTrue(text.endswith("3 passed, 0 failed, 4 skipped\n"), text)

    def test_skips_for_one_reason_share_a_line(self):
        cases = "".join(f"echo '[ RUN      ] Mpi.{c}'; echo '/x.cpp:1: Skipped'; echo 'no mpirun'; echo '[  SKIPPED ] Mpi.{c} (0 ms)'\n"
                        for c in "ABCDE")
        self.assertEqual(self.summary(f"echo '[       OK ] Env.Last (1 ms)'\n{cases}"),
                         (0, "skipped  p: program: Env.Skip: needs mpirun\n"
                             "skipped  p: program: Mpi.A, Mpi.B, Mpi.C and 2 more: no mpirun\n2 passed, 0 failed, 6 skipped\n"))

    def test_skipped_stages(self):
        root = self.write_program("echo '[       OK ] Env.Last (1 ms)'")
        self.run_ctest(root)
        self.assertEqual(self.run_script("summarise_tests.py", f"p={root}", "--skipped-stages", "fuzz: no clang++-19: see apt"),
                         (0, "skipped  p: program: Env.Skip: needs mpirun\nskipped  fuzz: no clang++-19: see apt\n"
                             "2 passed, 0 failed, 2 skipped\n"))

    def test_nothing_ran(self):
        self.assertEqual(self.run_script("summarise_tests.py"), (1, "no test ran\n0 passed, 0 failed, 0 skipped\n"))
        self.assertEqual(self.run_script("summarise_tests.py", "--failed-stages", "build x"),
                         (1, "FAILED   build x\n0 passed, 1 failed, 0 skipped\n"))


if __name__ == "__main__":
    unittest.main(verbosity=2)
