"""What ctest runs: one of the tests of this folder, or a skip that says why.

  run.py operations|training|faults|launchers|pytorch_suite --module DIR --command FILE

Needs an importable torch, for the suite also numpy and expecttest (scripts/test installs them into .venv).
LOCKSTEP_LONG_TESTS=1 runs all of PyTorch's suite instead of a selection.
"""
import argparse
import importlib
import os
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
SKIPPED = 77


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("name")
    parser.add_argument("--module", required=True, help="the folder of the package lockstep_c10d")
    parser.add_argument("--command", required=True, help="the lockstep command")
    options = parser.parse_args()
    suite = options.name == "pytorch_suite"
    for package in ["torch", "numpy"] + (["expecttest"] if suite else []):
        try:
            importlib.import_module(package)
        except (ImportError, OSError) as error:
            print(f"skipped: {sys.executable} cannot import {package}: {error}")
            return SKIPPED
    command = [sys.executable, os.path.join(HERE, options.name + ("" if suite else "_test") + ".py")]
    if suite:
        every = os.environ.get("LOCKSTEP_LONG_TESTS", "0") not in ("", "0")
        names = "passes_with_gloo.txt" if every else "selection.txt"
        command += ["--backend", "lockstep", "--as-gloo", "--must-pass", os.path.join(HERE, names)]
        command += [] if every else ["--only-listed"]
    environment = {**os.environ, "PYTHONPATH": options.module, "LOCKSTEP_COMMAND": options.command}
    return subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
