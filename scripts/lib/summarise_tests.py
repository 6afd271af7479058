"""Counts the test cases that ctest ran and prints the closing line 'N passed, N failed, N skipped'.

usage: summarise_tests.py [PRESET=BUILD_FOLDER ...] [--failed-stages NAME ...]

A GoogleTest program counts as its cases, any other test as one. Skips are listed with their reasons, failures by name.
A failed stage (a build, say) counts as one failure unless its log names failed tests already. Exit status 1 if
anything failed or nothing ran.
"""
import argparse
import collections
import os
import re
import sys
import xml.etree.ElementTree

Result = collections.namedtuple("Result", "passed failed skipped")  # failed: names; skipped: (name, reason)

START = re.compile(r"^\d+/\d+ Testing: (.+)$")


def read_outputs(log):
    """ctest's LastTest.log -> {test name: its output, as lines}."""
    outputs, name, inside = {}, None, False
    for line in log.splitlines():
        start = START.match(line)
        if start:
            name, inside = start.group(1), False
            outputs[name] = []
        elif name and not inside and line == "Output:":
            inside = True
        elif inside and line == "<end of output>":
            inside = False
        elif inside:
            outputs[name].append(line)
    return outputs


def read_outcomes(junit):
    """ctest's JUnit file -> {test name: "passed", "failed" or "skipped"}. It shortens outputs, hence the log."""
    outcomes = {}
    for case in xml.etree.ElementTree.fromstring(junit).iter("testcase"):
        status = case.get("status")
        message = case.find("skipped").get("message", "") if case.find("skipped") is not None else ""
        if status == "run":
            outcomes[case.get("name")] = "passed"
        elif status == "disabled" or message.startswith(("SKIP_RETURN_CODE", "SKIP_REGULAR")):
            outcomes[case.get("name")] = "skipped"
        else:  # failed, or could not be started
            outcomes[case.get("name")] = "failed"
    return outcomes


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
        if outcome == "failed":
            if started:
                failed.append(f"{name}: {started} (did not end)")
            elif not failed:
                failed.append(f"{name}: ended with an error after its cases")
        return Result(passed, failed, skipped)
    if outcome == "passed":
        return Result(1, [], [])
    if outcome == "skipped":
        return Result(0, [], [(name, " ".join(line.strip() for line in output[1:]))])
    return Result(0, [name], [])


def skip_reason(text):
    return re.sub(r"^.*?: Skipped\s*", "", text).strip()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("builds", nargs="*")
    parser.add_argument("--failed-stages", nargs="*", default=[])
    args = parser.parse_args()
    passed, failed, skipped = 0, [], []
    for item in args.builds:
        preset, folder = item.split("=", 1)
        log = os.path.join(folder, "Testing", "Temporary", "LastTest.log")
        junit = os.path.join(folder, "ctest.xml")
        if not os.path.exists(log) or not os.path.exists(junit):
            continue
        failures_before = len(failed)
        with open(log, encoding="utf-8", errors="replace") as f:
            outputs = read_outputs(f.read())
        with open(junit, encoding="utf-8", errors="replace") as f:
            outcomes = read_outcomes(f.read())
        for name, outcome in outcomes.items():
            result = count(name, outputs.get(name, []), outcome)
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
