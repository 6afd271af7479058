"""Counts the test cases that ctest ran and prints the closing line 'N passed, N failed, N skipped'.

usage: summarise_tests.py [PRESET=BUILD_FOLDER ...] [--failed-stages NAME ...]

A GoogleTest program counts as its cases, any other test as one. Skips are listed with their reasons, failures by name,
and so is a case that passed only at its second try (failed_tests.py). A failed stage (a build, say) counts as one
failure unless its log names failed tests already. Exit status 1 if anything failed or nothing ran.
"""
import argparse
import sys

from test_results import read_results, read_second_tries


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("builds", nargs="*")
    parser.add_argument("--failed-stages", nargs="*", default=[])
    args = parser.parse_args()
    passed, failed, skipped, unsteady = 0, [], [], []
    for item in args.builds:
        preset, folder = item.split("=", 1)
        again = read_second_tries(folder)
        failures_before = len(failed)
        for result in read_results(folder):
            cured = [what for what in result.failed if what in again]
            passed += result.passed + len(cured)
            unsteady += [f"{preset}: {what}" for what in cured]
            failed += [f"{preset}: {what}" for what in result.failed if what not in again]
            skipped += [(f"{preset}: {what}", why) for what, why in result.skipped]
        if len(failed) > failures_before:
            args.failed_stages = [stage for stage in args.failed_stages if stage != f"test {preset}"]
    failed += args.failed_stages
    for what, why in skipped:
        print(f"skipped  {what}" + (f": {why}" if why else ""))
    for what in unsteady:
        print(f"unsteady {what}: failed beside the others, passed when run again alone")
    for what in failed:
        print(f"FAILED   {what}")
    if not passed and not failed:
        print("no test ran")
    print(f"{passed} passed, {len(failed)} failed, {len(skipped)} skipped")
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
