"""Runs PyTorch's own distributed test suite (torch.testing._internal, in the wheel) over a backend of torch.distributed.

  python tests/python/pytorch_suite.py --backend lockstep [--must-pass FILE] [--passed FILE] [-k TEXT]...

The suite is two base classes: one that starts a test's ranks, one with the tests. Here they become one test case, and the
backend's name is added where the suite lists what can train CPU models. Tests that ask for the literal name gloo are
skipped by the suite; --as-gloo takes the question away and runs their bodies, unchanged, over the backend.
"""
import argparse
import multiprocessing
import os
import sys
import unittest


def arguments(argv):
    parser = argparse.ArgumentParser()
    parser.add_argument("--backend", default="lockstep")
    parser.add_argument("--world-size", default="3")
    parser.add_argument("--must-pass", help="a file of test names; exit 1 unless each of them passes")
    parser.add_argument("--only-listed", action="store_true", help="run the tests of --must-pass and no others")
    parser.add_argument("--passed", help="where to write the names of the tests that passed")
    parser.add_argument("--as-gloo", action="store_true", help="also the tests that are gated on the name gloo")
    parser.add_argument("-k", action="append", default=[], help="tests whose name contains this")
    return parser.parse_args(argv)


if __name__ == "__main__":  # the ranks inherit it
    options = arguments(sys.argv[1:])
    os.environ.update(BACKEND=options.backend, WORLD_SIZE=options.world_size, LOCKSTEP_SUITE_AS_GLOO=str(options.as_gloo))
    os.environ.setdefault("OMP_NUM_THREADS", "1")

from torch.testing._internal.common_distributed import DistTestCases  # noqa: E402

BACKEND = os.environ["BACKEND"]
if BACKEND == "lockstep":
    import lockstep_c10d  # noqa: F401  registers the backend

    DistTestCases.backend_feature["plugin"].add(BACKEND)
    DistTestCases.backend_feature["ddp"].add(BACKEND)

from torch.testing._internal.distributed import distributed_test  # noqa: E402


def run_rank(environment, target, args, kwargs):
    os.environ.update(environment)
    distributed_test.INIT_METHOD = environment["INIT_METHOD"]
    target(*args, **kwargs)


class PyTorchSuite(distributed_test.TestDistBackend, distributed_test.DistributedTest._DistTestBase):
    def setUp(self):
        super().setUp()
        # A server that has imported torch forks the ranks: a test takes a second instead of ten. Its environment is the
        # first test's; every test has folders of its own.
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([distributed_test.__name__])

        def rank(target, name, args, kwargs):
            return context.Process(target=run_rank, name=name, args=(dict(os.environ), target, args, kwargs))

        self._start_processes(rank)


class AsGloo(str):
    """A name that passes for gloo's where a test asks."""

    __hash__ = str.__hash__

    def __eq__(self, other):
        return other == "gloo" or str.__eq__(self, other)

    def __ne__(self, other):
        return not self == other


if os.environ["LOCKSTEP_SUITE_AS_GLOO"] == "True":
    distributed_test.BACKEND = AsGloo(BACKEND)
    distributed_test.dist.monitored_barrier = lockstep_c10d.monitored_barrier  # torch's own asks for the name, too
    for name in dir(PyTorchSuite):
        test = getattr(PyTorchSuite, name)
        if name.startswith("test_") and "gloo" in getattr(test, "__unittest_skip_why__", "").lower():
            test.__unittest_skip__ = False


class Result(unittest.TextTestResult):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.passed = []

    def addSuccess(self, test):
        super().addSuccess(test)
        self.passed.append(test.id().split(".")[-1])


def names(path):
    with open(path) as file:
        return [line.strip() for line in file if line.strip() and not line.startswith("#")]


def main():
    listed = names(options.must_pass) if options.must_pass else []
    tests = unittest.TestSuite()
    for name in unittest.defaultTestLoader.getTestCaseNames(PyTorchSuite):
        if options.only_listed and name not in listed:
            continue
        if not options.k or any(text in name for text in options.k):
            tests.addTest(PyTorchSuite(name))
    result = unittest.TextTestRunner(verbosity=2, resultclass=Result).run(tests)
    if options.passed:
        with open(options.passed, "w") as file:
            file.writelines(name + "\n" for name in sorted(result.passed))
    lost = sorted(set(listed) - set(result.passed)) if not options.k else []
    for name in lost:
        print(f"must pass, and did not: {name}", file=sys.stderr)
    bad = len(result.failures) + len(result.errors)
    print(f"{BACKEND}: {len(result.passed)} passed, {len(result.skipped)} skipped, {bad} failed of {result.testsRun}")
    return 1 if lost or bad else 0


if __name__ == "__main__":
    sys.exit(main())
