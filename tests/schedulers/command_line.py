"""The command line of the schedulers' tests: --bin FOLDER, what is in the way, and SIGTERM."""
import argparse
import os
import signal
import sys
import unittest

SKIPPED = 77  # ctest's
bin_folder = None  # where lockstep is


def leave(*_):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # one is enough; the cleanup goes through
    sys.exit(128 + signal.SIGTERM)


def run(why_not=lambda: ""):
    """Runs the tests of the main module, unless why_not() names a reason."""
    global bin_folder
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", required=True)
    options, rest = parser.parse_known_args()
    bin_folder = os.path.abspath(options.bin)
    if why := why_not():
        print("skipped:", why)
        sys.exit(SKIPPED)
    # Not the default, which ends the test at once and leaves processes behind. unittest takes it for an error; no test comes after it.
    signal.signal(signal.SIGTERM, leave)
    unittest.main(module="__main__", argv=[sys.argv[0], *rest], verbosity=2, failfast=True)
