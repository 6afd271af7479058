#!/usr/bin/env python3
"""from_mpi() in a program under Open MPI, MPICH and the MPI standard's own binary interface.

The program is application.cpp, built once for each MPI that is there; what is not is skipped by name.
"""

import argparse
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time
import unittest

OPTIONS = None
MPIS = ("openmpi", "mpich", "standard")


def started_by(mpi, ranks):
    """The launcher's words for so many ranks of the host, which go on when one of them dies."""
    if mpi == "openmpi":
        as_root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
        return ["mpirun.openmpi", *as_root, "--oversubscribe", "--enable-recovery", "-n", str(ranks)]
    launcher = OPTIONS.standard_mpiexec if mpi == "standard" else "mpiexec.hydra"
    return [launcher, "-disable-auto-cleanup", "-n", str(ranks)]


def out_of_reach(mpi, program):
    """The program's words where the launcher does not end the other ranks when one of them dies: MPICH's mpiexec kills
    their process groups, whatever it is told."""
    return [program] if mpi == "openmpi" else ["setsid", "--wait", program]


def wait_until(condition, seconds=30):
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.05)


def what_is_left():
    """Files in shared memory; what else Lockstep makes goes with its processes, and other tests make it meanwhile."""
    return {name for name in os.listdir("/dev/shm") if "lockstep" in name}


class FromMpi(unittest.TestCase):
    def run_ranks(self, mpi, ranks, scenario, *more, seconds=120, survivors=0, language=""):
        """What each rank said, as lists of lines. `survivors`: so many go on when the launcher has ended."""
        program = getattr(OPTIONS, mpi + language)
        if program is None:
            self.skipTest(f"no program{language.replace('_', ' in ')} for {mpi}: its compilers were not there when this was configured")
        launcher = started_by(mpi, ranks)
        if shutil.which(launcher[0]) is None:
            self.skipTest(f"no {launcher[0]}")
        env = {k: v for k, v in os.environ.items() if not k.startswith("LOCKSTEP_")}
        # Networks of clusters are not looked for.
        env.update(OMP_NUM_THREADS="1", OMPI_MCA_btl_vader_single_copy_mechanism="none", FI_PROVIDER="tcp")
        with tempfile.TemporaryDirectory() as directory:
            begin = time.monotonic()
            # A stdin that stays open: MPICH's mpiexec dies of one that ends when its ranks have.
            command = out_of_reach(mpi, program) if survivors else [program]
            process = subprocess.Popen([*launcher, *command, scenario, directory, *more], env=env, stdin=subprocess.PIPE,
                                       stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True)
            try:
                output, _ = process.communicate(timeout=seconds)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, 9)
                output, _ = process.communicate()
                self.fail(f"{mpi} {scenario} did not end within {seconds} s:\n{output}")
            self.output = output
            said = lambda: {path.name: path.read_text().splitlines() for path in sorted(pathlib.Path(directory).iterdir())}
            wait_until(lambda: sum(map(bool, said().values())) >= survivors)
            wait_until(lambda: not self.processes_of(directory))
            self.took = time.monotonic() - begin
            self.assertEqual(self.processes_of(directory), [], "processes are left")
            return said()

    @staticmethod
    def processes_of(directory):
        """Those whose command line names the directory."""
        found = []
        for path in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
            try:
                if directory.encode() in path.read_bytes():
                    found.append(path.parent.name)
            except OSError:
                pass
        return found

    def test_each_mpi_that_is_wanted_is_there(self):
        """With LOCKSTEP_LONG_TESTS=1 all three are wanted; otherwise one is enough."""
        there = [mpi for mpi in MPIS if getattr(OPTIONS, mpi)]
        wanted = len(MPIS) if os.environ.get("LOCKSTEP_LONG_TESTS") == "1" else 1
        if not there:
            self.skipTest("no mpicxx: apt install libopenmpi-dev to run these tests")
        self.assertGreaterEqual(len(there), wanted, there)

    def for_each_mpi(self, check):
        before = what_is_left()
        for mpi in MPIS:
            with self.subTest(mpi):
                check(mpi)
        self.assertEqual(what_is_left() - before, set(), "left behind")

    def test_programs_in_c_and_fortran(self):
        for language in ("_c", "_fortran"):
            def check(mpi):
                said = self.run_ranks(mpi, 3, "all", language=language)
                self.assertEqual(said, {str(rank): ["all is well"] for rank in range(3)}, self.output)
            self.for_each_mpi(check)

    def test_two_models_beside_the_programs_messages(self):
        def check(mpi):
            for backend, name in (("", "shm"), ("mpi", "mpi")):
                said = self.run_ranks(mpi, 4, "numbers", *([backend] if backend else []))
                self.assertEqual(len(said), 4, self.output)
                for rank, lines in said.items():
                    self.assertEqual(lines[0], f"backend {name} rank {rank[4:]} of 4", self.output)
                    self.assertEqual(lines[1], "order of the communicator: kept")
                    for line, model in zip(lines[2:4], ("first", "second")):
                        match = re.fullmatch(rf"{model} model differs by ([0-9.]+)e-10", line)
                        self.assertTrue(match and float(match[1]) < 1, line)
                    self.assertEqual(lines[4:], ["the program's messages: right", "split: right", "opposite order: right",
                                                 "error handler: the program's"], self.output)

        self.for_each_mpi(check)

    def test_fewer_trainers_than_ranks_and_a_life_after_finalize(self):
        def check(mpi):
            said = self.run_ranks(mpi, 3, "trainers")
            self.assertEqual(list(said.values()),
                             [["trained after MPI_Finalize"], ["trained after MPI_Finalize"], ["no trainer"]], self.output)

        self.for_each_mpi(check)

    def test_a_killed_rank_is_an_exception(self):
        def check(mpi):
            # MPICH's own calls abort when a peer is gone.
            for backend in ([], ["tcp"], *([["mpi"]] if mpi == "openmpi" else [])):
                said = self.run_ranks(mpi, 3, "killed", *backend, survivors=2)
                for rank in ("rank0", "rank2"):
                    self.assertRegex("\n".join(said[rank]), r"^PeerLost: .*rank 1", self.output)
                self.assertEqual(said["rank1"], [])
                self.assertLess(self.took, 30)

        self.for_each_mpi(check)

    def test_a_late_rank_is_a_timeout(self):
        def check(mpi):
            said = self.run_ranks(mpi, 2, "late")
            self.assertRegex(said["rank0"][0], "^Timeout: .*MPI took longer than 2", self.output)

        self.for_each_mpi(check)

    def test_ranks_that_want_different_engines(self):
        def check(mpi):
            said = self.run_ranks(mpi, 2, "differ")
            self.assertRegex("".join(sum(said.values(), [])), "this rank is to connect over (tcp|shm), and another", self.output)

        self.for_each_mpi(check)

    def test_a_thread_that_mpi_forbids(self):
        """Its calls are refused before they are made, so that the ranks stay in step."""
        def check(mpi):
            said = self.run_ranks(mpi, 2, "other_thread")
            right = ["sum: right", "work: right", "group: right", "freed"]
            self.assertEqual(said["rank1"], right, self.output)
            refused = [line for line in said["rank0"] if line not in right]
            self.assertEqual([line for line in said["rank0"] if line in right], right, self.output)
            calls = ("all_reduce", "wait", "test", "progress", "split")
            self.assertEqual(len(refused), len(calls), refused)
            for line, call in zip(refused, calls):
                self.assertRegex(line, f"^{call}: this thread may not call MPI: ", self.output)

        self.for_each_mpi(check)

    def test_a_member_that_stops_while_mpi_makes_a_group(self):
        """MPI_Comm_create_group has no deadline."""
        def check(mpi):
            what = "MPI_Comm_create_group on rank [01], for the group of ranks 1 0 of 2, has not returned for [0-9.]+ s"
            said = self.run_ranks(mpi, 2, "stuck_serialized")
            self.assertEqual(len(said), 2)
            for lines in said.values():
                self.assertEqual(len(lines), 4, self.output)
                for line in lines[:3]:
                    self.assertRegex(line, f"^Timeout: .*{what}.*end this process", self.output)
                self.assertEqual(lines[3], "freed")
            self.assertLess(self.took, 60)
            # Where MPI allows one thread alone, the delay is named, and the process stays the program's.
            said = self.run_ranks(mpi, 2, "stuck_funneled")
            for lines in said.values():
                self.assertEqual(lines[-1], "still here", self.output)
            self.assertRegex(self.output, f"{what}.*nothing can take this program's only thread for MPI out of the call")
            self.assertLess(self.took, 60)

        self.for_each_mpi(check)

    def test_mistakes_have_one_line_each(self):
        def check(mpi):
            said = self.run_ranks(mpi, 2, "mistakes")
            for lines in said.values():
                self.assertEqual(len(lines), 5, lines)
                for line, words in zip(lines, ("MPI_COMM_NULL", "'pigeon' is not known", "this thread may not call MPI",
                                               "intercommunicator", "MPI_Finalize was called already")):
                    self.assertIn(words, line, self.output)
            self.assertIn("MPI is not initialised", self.run_ranks(mpi, 1, "uninitialised")["rank0"][0])

        self.for_each_mpi(check)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    for one in MPIS:
        for language in ("", "-c", "-fortran"):
            parser.add_argument(f"--{one}{language}")
    parser.add_argument("--standard-mpiexec")
    OPTIONS, rest = parser.parse_known_args()
    if not any(getattr(OPTIONS, one) for one in MPIS):
        print("skipped: no mpicxx was there when this was configured: apt install libopenmpi-dev")
        sys.exit(77)
    unittest.main(argv=[sys.argv[0], *rest], verbosity=2)
