"""Counts the test cases that ctest ran and prints the closing line 'N passed, N failed, N skipped'.

usage: summarise_tests.py [PRESET=BUILD_FOLDER ...] [--failed-stages NAME ...] [--skipped-stages REASON ...]

A GoogleTest program counts as its cases, any other test as one, plus what it skips. Skips are listed with their reasons, failures by
name. A case that passed only at its second try (run_ctest.py) is unsteady if it had run beside others the first time, or if the list of
unsteady cases has it (unsteady.py); else it has failed. A failed stage (a build, say) counts as one failure unless its log names failed tests already. Exit status 1 if anything failed or nothing
ran.
"""
import argparse
import collections
import datetime
import sys

from test_results import BESIDE, read_results, read_second_tries
from unsteady import FILE, read_list

NAMED = 3  # cases that are skipped for the same reason


def skip_lines(skipped):
    """[(program, case or "", reason)] -> lines, one for what a program skips for one reason."""
    groups = collections.defaultdict(list)
    for program, case, reason in skipped:
        groups[program, reason].append(case)
    for (program, reason), cases in groups.items():
        more = f" and {len(cases) - NAMED} more" if len(cases) > NAMED else ""
        named = ", ".join(case for case in cases[:NAMED] if case)
        yield f"skipped  {program}" + (f": {named}{more}" if named else "") + (f": {reason}" if reason else "")


def why_unsteady(case, known):
    """Why a case may pass at its second try only; "": it may not."""
    if case in known:
        return known[case]
    return "failed beside others, passed alone" if BESIDE.fullmatch(case) else ""


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("builds", nargs="*")
    parser.add_argument("--failed-stages", nargs="*", default=[])
    parser.add_argument("--skipped-stages", nargs="*", default=[], help="'stage: reason'")
    parser.add_argument("--unsteady", default=FILE)
    parser.add_argument("--today", type=datetime.date.fromisoformat, default=datetime.date.today())
    args = parser.parse_args()
    known, failed = read_list(args.unsteady, args.today)
    passed, skipped, unsteady = 0, [], []
    for item in args.builds:
        preset, folder = item.split("=", 1)
        again = read_second_tries(folder)
        failures_before = len(failed)
        for result in read_results(folder):
            cured = [what for what in result.failed if what in again and why_unsteady(what, known)]
            passed += result.passed + len(cured)
            unsteady += [f"{preset}: {what}: {why_unsteady(what, known)}" for what in cured]
            failed += [f"{preset}: {what}" + (": passed when run again alone; mend it, or list it in tests/unsteady.txt"
                                              if what in again else "") for what in result.failed if what not in cured]
            skipped += [(f"{preset}: {program}", case, why) for program, case, why in result.skipped]
        if len(failed) > failures_before:
            args.failed_stages = [stage for stage in args.failed_stages if stage != f"test {preset}"]
    failed += args.failed_stages
    for stage in args.skipped_stages:
        name, _, reason = stage.partition(": ")
        skipped.append((name, "", reason))
    for line in skip_lines(skipped):
        print(line)
    for what in unsteady:
        print(f"unsteady {what}")
    for what in failed:
        print(f"FAILED   {what}")
    if not passed and not failed:
        print("no test ran")
    print(f"{passed} passed, {len(failed)} failed, {len(skipped)} skipped")
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
