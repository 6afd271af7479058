"""Finds and runs the lockstep command for the scripts beside it."""
import os
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def add_options(parser):
    parser.add_argument("--lockstep", default=os.path.join(ROOT, "build/release/bin/lockstep"),
                        help="the command [build/release/bin/lockstep]")
    parser.add_argument("--data", required=True, help="the data set's directory")
    parser.add_argument("--nproc", type=int, default=2)


def run(options, arguments):
    print("+", os.path.relpath(options.lockstep), *arguments, file=sys.stderr, flush=True)
    ended = subprocess.run([options.lockstep, *arguments], stdout=sys.stderr)
    if ended.returncode != 0:
        sys.exit(f"lockstep ended with exit code {ended.returncode}")
