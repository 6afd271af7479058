"""The cases that are known to fail now and then: tests/unsteady.txt.

A line is `DATE | PROGRAM: SUITE.CASE | REASON`, for example

    2026-11-22 | comm_mp_test: Faults.Each | a rank that is killed while it writes; being looked into

A case that is listed may fail beside others if it passes alone (run_ctest.py). The date is the day it was listed: the list is for
what is being mended, so an entry that has stood for more than DAYS days is a failure itself.
"""
import datetime
import os

DAYS = 30
FILE = os.path.normpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "tests", "unsteady.txt"))


def read_list(path, today):
    """({case: reason}, [what is wrong with the list])."""
    reasons, problems = {}, []
    shown = os.path.join(*path.split(os.sep)[-2:])
    if not os.path.exists(path):
        return reasons, problems
    with open(path, encoding="utf-8") as f:
        for number, line in enumerate(f, 1):
            if not line.strip() or line.startswith("#"):
                continue
            parts = [part.strip() for part in line.split("|", 2)]
            try:
                day, case, reason = parts
                listed = datetime.date.fromisoformat(day)
            except ValueError:
                case = reason = ""
            if not case or not reason:
                problems.append(f"{shown}:{number}: a line is DATE | PROGRAM: SUITE.CASE | REASON")
                continue
            if listed > today:
                problems.append(f"{shown}:{number}: {case}: {day} is not yet")
            elif (today - listed).days > DAYS:
                problems.append(f"{shown}:{number}: {case} has been unsteady since {day}, more than {DAYS} days: mend it")
            reasons[case] = reason
    return reasons, problems
