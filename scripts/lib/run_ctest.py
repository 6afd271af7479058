"""Runs ctest; shows what a failed case wrote as soon as its program has ended; then runs single cases with processes again, alone.

usage: run_ctest.py BUILD_FOLDER COMMAND...      (ctest with its arguments, --output-on-failure left out)

Of a failed program only the failed cases are shown: somebody who reads the first failure of a long run, or only the part of a log
around it, sees why. A case with processes or deadlines, which another load on the machine can break (BESIDE and ALONE in test_results.py), is run
once more by itself, and so is a whole test in Python of that kind; that it passed then is kept and reported, never silently. More than
five of them are no accident and are not tried. Exit status 0 if nothing failed, or every failure passed at its second try.
"""
import json
import os
import re
import signal
import subprocess
import sys

from test_results import ALONE, BESIDE, count, program_of, read_results, second_tries, without_part

COSTS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "test_costs.txt")
LINES = 120  # of a case's own output, from its end
MOST = 5
PATIENCE = int(os.environ.get("LOCKSTEP_TEST_PATIENCE", "1"))  # how much slower an emulator may be
SECONDS = 180 * PATIENCE  # for a case's second try
SECONDS_OF_A_TEST = 300 * PATIENCE
# ctest's own lines: a test starts; a test has ended, well or not; the closing lines.
STARTS = re.compile(r"^ +Start +\d+: ")
ENDED = re.compile(r"^ *\d+/\d+ Test +#\d+: (\S+) \.+ *(.*)$")
CLOSING = re.compile(r"^\d+% tests passed, ")


def show(label, lines):
    print(f"---- failed: {label}")
    if len(lines) > LINES:
        print(f"({len(lines) - LINES} lines left out; all are in Testing/Temporary/LastTest.log)")
    print("\n".join(lines[-LINES:]))
    print(f"---- end of {label}", flush=True)


def registered(folder):
    """What ctest knows of the tests of a build folder: {name: {"command": [...], property: value}}."""
    said = subprocess.run(["ctest", "--test-dir", folder, "--show-only=json-v1"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          text=True, check=True).stdout
    return {test["name"]: {"command": test.get("command", []), **{p["name"]: p["value"] for p in test.get("properties", [])}}
            for test in json.loads(said)["tests"]}


def run_to_end(command, seconds, **how):
    """Exit status and output; nothing of it is left afterwards, ranks that it has started and that ctest would end included."""
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
                          start_new_session=True, **how) as process:
        try:
            output, _ = process.communicate(timeout=seconds)
        finally:
            if process.returncode is None:
                os.killpg(process.pid, signal.SIGKILL)
    return process.returncode, output


def passes_alone(folder, tests, wrapper, label):
    """Whether 'program: Suite.Case', or a test that is no GoogleTest program, passes by itself, as ctest would start it."""
    test, _, case = label.partition(": ")
    known = next((known for name, known in tests.items() if without_part(name) == test), {"command": []})
    command, seconds = known["command"], SECONDS_OF_A_TEST
    variables = dict(variable.split("=", 1) for variable in known.get("ENVIRONMENT", []))
    if case:
        command, seconds = [os.path.join(folder, "bin", "tests", program_of(test)), f"--gtest_filter={case}"], SECONDS
        # It is not one of the parts' cases now.
        variables = {name: value for name, value in variables.items() if not name.startswith("GTEST_")}
    print(f"---- again, alone: {label}", flush=True)
    try:
        status, output = run_to_end([*wrapper, *command], seconds, cwd=known.get("WORKING_DIRECTORY"), env={**os.environ, **variables})
    except (OSError, IndexError, subprocess.TimeoutExpired) as error:
        print(error, flush=True)
        return False
    if status == 0 and (not case or re.search(r"^\[  PASSED  \] 1 test", output, re.MULTILINE)):
        print("     passed", flush=True)
        return True
    show(label, output.splitlines())
    return False


def know_costs(folder):
    """A build folder in which no test has run yet has no costs, by which ctest begins with what takes longest: those of test_costs.txt."""
    known = os.path.join(folder, "Testing", "Temporary", "CTestCostData.txt")
    if os.path.exists(known):
        return
    with open(COSTS, encoding="utf-8") as f:
        costs = [line.split() for line in f if not line.startswith("#")]
    os.makedirs(os.path.dirname(known), exist_ok=True)
    with open(known, "w", encoding="utf-8") as f:
        f.writelines(f"{name} 1 {seconds}\n" for name, seconds in costs)
        f.write("---\n")


def echo(lines):
    """Passes ctest's lines on, and of a failed program's output its failed cases."""
    failed, output = None, []

    def end():
        if failed:
            for label, text in count(failed, output, "failed").texts.items():
                show(label, text)

    for line in lines:
        ended = ENDED.match(line)
        if ended or STARTS.match(line) or CLOSING.match(line):
            end()
            failed, output = ended.group(1) if ended and "***" in ended.group(2) else None, []
        elif failed:
            output.append(line.rstrip("\n"))
            continue
        print(line, end="", flush=True)
    end()


def main():
    folder, *command = sys.argv[1:]
    # Before, for it begins ctest's log anew.
    tests = registered(os.path.abspath(folder))
    know_costs(folder)
    with subprocess.Popen([*command, "--output-on-failure"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True,
                          errors="replace") as ctest:
        echo(ctest.stdout)
    if ctest.returncode == 0:
        return 0
    labels = [label for result in read_results(folder) for label in result.failed]
    cases = [label for label in labels if ALONE.fullmatch(label) or BESIDE.fullmatch(label)]
    again = []
    if len(cases) <= MOST:
        wrapper = command[:command.index("ctest")]
        again = [label for label in cases if passes_alone(os.path.abspath(folder), tests, wrapper, label)]
    with open(second_tries(folder), "w", encoding="utf-8") as f:
        json.dump(again, f)
    return 0 if labels and len(again) == len(labels) else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
