"""After ctest failed: prints what each failed case wrote, then runs single cases with processes again, alone.

usage: failed_tests.py BUILD_FOLDER

Programs named *_mp_test start processes with deadlines, which another load on the machine can break. A case of theirs
that failed is run once more by itself; that it passed then is kept and reported as unsteady, never silently. More
than five such cases are no accident and are not tried. Exit status 0 if every failure passed at its second try.
"""
import json
import os
import re
import subprocess
import sys

from test_results import read_results, second_tries

LINES = 120  # of a case's own output, from its end
MOST = 5
SECONDS = 180


def show(label, lines):
    print(f"---- failed: {label}")
    if len(lines) > LINES:
        print(f"({len(lines) - LINES} lines left out; all are in Testing/Temporary/LastTest.log)")
    print("\n".join(lines[-LINES:]))
    print(f"---- end of {label}", flush=True)


def passes_alone(folder, label):
    """Whether 'program: Suite.Case' passes by itself."""
    program, case = label.split(": ", 1)
    print(f"---- again, alone: {label}", flush=True)
    command = [os.path.join(folder, "bin", "tests", program), f"--gtest_filter={case}"]
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              text=True, errors="replace", timeout=SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        print(error, flush=True)
        return False
    if done.returncode == 0 and re.search(r"^\[  PASSED  \] 1 test", done.stdout, re.MULTILINE):
        print("     passed", flush=True)
        return True
    show(label, done.stdout.splitlines())
    return False


def main():
    folder = sys.argv[1]
    texts = {label: lines for result in read_results(folder) for label, lines in result.texts.items()}
    for label, lines in texts.items():
        show(label, lines)
    cases = [label for label in texts if re.fullmatch(r"\w+_mp_test: \S+", label)]
    again = [label for label in cases if passes_alone(folder, label)] if len(cases) <= MOST else []
    with open(second_tries(folder), "w", encoding="utf-8") as f:
        json.dump(again, f)
    return 0 if texts and len(again) == len(texts) else 1


if __name__ == "__main__":
    sys.exit(main())
