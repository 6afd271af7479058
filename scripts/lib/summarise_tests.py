"""Counts test cases in ctest's logs and prints the closing line 'N passed, N failed, N skipped'.

usage: summarise_tests.py PRESET=LastTest.log ... [--failed-stages NAME ...]

A GoogleTest program counts as its cases, any other test as one. Skips are listed with their reasons, failures by name.
A failed stage (a build, say) counts as one failure unless its log names failed tests already. Exit status 1 if
anything failed or nothing ran.
"""
import argparse
import collections
import os
import re
import sys

Result = collections.namedtuple("Result", "passed failed skipped")  # failed: names; skipped: (name, reason)

START = re.compile(r"^(\d+)/(\d+) Testing: (.+)$")


def read_log(text):
    """ctest's LastTest.log -> [(test name, its output, outcome)], outcome as ctest words it."""
    tests = []
    name, output, inside = None, [], False
    for line in text.splitlines():
        start = START.match(line)
        if start:
            name, output, inside = start.group(3), [], False
        elif name is not None and line.startswith("Output:"):
            inside = True
        elif name is not None and line == "<end of output>":
            inside = False
        elif name is not None and not inside and re.match(r"^Test (Passed|Failed|Skipped|Timeout)|^Test time =", line):
            if not line.startswith("Test time"):
                tests.append((name, output, line.rstrip(".")))
                name = None
        elif inside:
            output.append(line)
    if name is not None:  # killed while it ran
        tests.append((name, output, "Test Failed"))
    return tests


def count(name, output, outcome):
    """One ctest test -> Result."""
    ran = [m for m in (re.match(r"^\[==========\] (\d+) tests? from .* ran\.", line) for line in output) if m]
    case = re.compile(r"^\[ +(OK|FAILED|SKIPPED) +\] (\S+?)(?:, where .*)? \(\d+ ms\)$")
    results = {}
    started, reason = None, []
    for line in output:
        run = re.match(r"^\[ RUN      \] (\S+)$", line)
        match = case.match(line)
        if run:
            started, reason = run.group(1), []
        elif match:
            results[match.group(2)] = (match.group(1), " ".join(reason))
            started = None
        elif started:
            reason.append(line.strip())
    if results or ran or started:
        failed = [f"{name}: {case_name}" for case_name, (what, _) in results.items() if what == "FAILED"]
        skipped = [(f"{name}: {case_name}", skip_reason(why)) for case_name, (what, why) in results.items()
                   if what == "SKIPPED"]
        passed = sum(what == "OK" for what, _ in results.values())
        if outcome != "Test Passed":
            if started:
                failed.append(f"{name}: {started} (did not end)")
            elif not failed:
                failed.append(f"{name}: {outcome}")
        return Result(passed, failed, skipped)
    if outcome == "Test Passed":
        return Result(1, [], [])
    if outcome.startswith("Test Skipped"):
        return Result(0, [], [(name, output[-1].strip() if output else "")])
    return Result(0, [name], [])


def skip_reason(text):
    return re.sub(r"^.*?: Skipped\s*", "", text).strip()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("logs", nargs="*")
    parser.add_argument("--failed-stages", nargs="*", default=[])
    args = parser.parse_args()
    passed, failed, skipped = 0, [], []
    for item in args.logs:
        preset, path = item.split("=", 1)
        if not os.path.exists(path):
            continue
        failures_before = len(failed)
        for name, output, outcome in read_log(open(path, errors="replace").read()):
            result = count(name, output, outcome)
            passed += result.passed
            failed += [f"{preset}: {what}" for what in result.failed]
            skipped += [(f"{preset}: {what}", why) for what, why in result.skipped]
        if len(failed) > failures_before:
            args.failed_stages = [stage for stage in args.failed_stages if stage != f"test {preset}"]
    failed += args.failed_stages
    for what, why in skipped:
        print(f"skipped  {what}" + (f": {why}" if why else ""))
    for what in failed:
        print(f"FAILED   {what}")
    if not passed and not failed:
        print("no test ran")
    print(f"{passed} passed, {len(failed)} failed, {len(skipped)} skipped")
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
