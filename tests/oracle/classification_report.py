#!/usr/bin/env python3
"""Lockstep's classification report against scikit-learn's, on random confusion matrices.

Text byte for byte, with ASCII and with Chinese labels, numbers to the last bit: 2 to 200 classes, classes that are never true or never
predicted, every zero_division and number of digits. Needs scikit-learn; exit status 77 where it is missing.

    tests/oracle/classification_report.py [--program build/release/bin/tests/classification_report]
"""
import argparse
import json
import math
import os
import re
import subprocess
import sys
import warnings

SKIPPED = 77
SEED = 11
CASES = 400
CHINESE = ["其他", "喜好", "悲伤", "厌恶", "愤怒", "高兴"]

try:
    import numpy as np
    from sklearn.metrics import classification_report
except (ImportError, OSError) as missing:
    print(f"skipped: {sys.executable} cannot import what the oracle needs: {missing}")
    sys.exit(SKIPPED)


def one_case(random, i):
    classes = int(random.choice([2, 3, 6, 7, 8, 9, 17, 130, 200], p=[.15, .15, .3, .1, .1, .1, .06, .02, .02]))
    counts = random.integers(0, int(random.choice([2, 4, 50, 100000 if classes < 10 else 3])), (classes, classes))
    for _ in range(int(random.integers(0, 3))):  # never true, never predicted
        counts[random.integers(0, classes), :] = 0
        counts[:, random.integers(0, classes)] = 0
    counts[0, 0] += counts.sum() == 0
    if classes == 6 and i % 2:
        labels = CHINESE
    else:
        labels = ["c" * int(random.integers(1, 20)) + str(c) for c in range(classes)]
    return {"labels": labels, "counts": counts.ravel().tolist(), "digits": int(random.integers(0, 15)),
            "zero_division": [0, 1, "nan"][i % 3]}


def expected_of(case):
    n = len(case["labels"])
    truth, predicted = np.divmod(np.arange(n * n), n)
    arguments = {"labels": range(n), "target_names": case["labels"], "digits": case["digits"],
                 "zero_division": float("nan") if case["zero_division"] == "nan" else case["zero_division"]}
    counts = np.array(case["counts"])
    if counts.sum() < 20000:
        arguments.update(y_true=np.repeat(truth, counts), y_pred=np.repeat(predicted, counts))
    else:  # as weights: the same numbers, but the support is printed as a float
        arguments.update(y_true=truth, y_pred=predicted, sample_weight=counts)
    text = re.sub(r"(\d+)\.0$", r"  \1", classification_report(**arguments), flags=re.MULTILINE)
    return text, classification_report(**arguments, output_dict=True)


def differing_field(found, expected, where=""):
    if isinstance(expected, dict):
        if list(found) != list(expected):
            return f"{where}: {list(found)} for {list(expected)}"
        return next(filter(None, (differing_field(found[k], expected[k], f"{where}/{k}") for k in expected)), "")
    same = found is None if math.isnan(expected) else found == expected
    return "" if same else f"{where}: {found!r}, expected {expected!r}"


def main():
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default=os.path.join(root, "build/release/bin/tests/classification_report"))
    program = parser.parse_args().program
    warnings.simplefilter("ignore")
    random = np.random.default_rng(SEED)
    cases = [one_case(random, i) for i in range(CASES)]
    ended = subprocess.run([program], input=json.dumps(cases), capture_output=True, text=True, check=False)
    if ended.returncode != 0:
        sys.exit(f"{program} ended with {ended.returncode}: {ended.stderr}")
    for i, (case, found) in enumerate(zip(cases, json.loads(ended.stdout), strict=True)):
        text, report = expected_of(case)
        difference = differing_field(found["report"], report)
        if difference:
            sys.exit(f"case {i}: {difference}")
        if found["text"] != text:
            sys.exit(f"case {i}: {case}\nLockstep:\n{found['text']}\nscikit-learn:\n{text}")
    print(f"{CASES} reports agree with scikit-learn's, byte for byte as text and to the last bit")


if __name__ == "__main__":
    main()
