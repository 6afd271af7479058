"""What ctest's own files say of the test cases of one build folder: read by summarise_tests.py and run_ctest.py."""
import collections
import json
import os
import re
import xml.etree.ElementTree

# failed: labels; skipped: (test, case or "", reason); texts: {label of a failure: its own lines}
Result = collections.namedtuple("Result", "passed failed skipped texts")

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
    name = without_part(name)
    ran = [m for m in (re.match(r"^\[==========\] (\d+) tests? from .* ran\.", line) for line in output) if m]
    case = re.compile(r"^\[ +(OK|FAILED|SKIPPED) +\] (\S+?)(?:, where .*)? \(\d+ ms\)$")
    results = {}
    texts = {}
    started, reason = None, []
    for line in output:
        run = re.match(r"^\[ RUN      \] (\S+)$", line)
        match = case.match(line)
        if run:
            started, reason = run.group(1), []
        elif match:
            results[match.group(2)] = (match.group(1), " ".join(line.strip() for line in reason))
            texts[match.group(2)] = reason
            started = None
        elif started:
            reason.append(line)
    if results or ran or started:
        failed = {f"{name}: {case_name}": texts[case_name] for case_name, (what, _) in results.items() if what == "FAILED"}
        skipped = [(name, case_name, skip_reason(why)) for case_name, (what, why) in results.items() if what == "SKIPPED"]
        passed = sum(what == "OK" for what, _ in results.values())
        if outcome == "failed":
            if started:
                failed[f"{name}: {started} (did not end)"] = reason
            elif not failed:
                failed[f"{name}: ended with an error after its cases"] = output
        return Result(passed, list(failed), skipped, failed)
    if outcome == "passed":
        return Result(1, [], list(skipped_parts(name, output)), {})
    if outcome == "skipped":
        why = " ".join(line.strip() for line in output if not re.match(r"^-+$", line))
        return Result(0, [], [(name, "", re.sub(r"^skipped: ", "", why))], {})
    return Result(0, [name], list(skipped_parts(name, output)), {name: output})


def skipped_parts(name, output):
    """What a test that is no GoogleTest program left out: unittest's skips as verbosity=2 prints them, and lines 'skipped: REASON'."""
    case = ""
    for line in output:
        if test := re.match(r"^(\w+) \([\w.]+\)", line):
            case = test.group(1)
        if skip := re.search(r"(?:^|\.\.\. )skipped (['\"])(.*)\1$", line):
            yield name, case, skip.group(2)
        elif part := re.search(r"(?:^|\.\.\. )skipped: (.*)", line):
            yield name, "", part.group(1).strip()


def skip_reason(text):
    return re.sub(r"^.*?: Skipped\s*", "", text).strip()


def read_results(folder):
    """The results of a build folder's last ctest run, in its order; none if ctest did not run there."""
    log = os.path.join(folder, "Testing", "Temporary", "LastTest.log")
    junit = os.path.join(folder, "ctest.xml")
    if not os.path.exists(log) or not os.path.exists(junit):
        return []
    with open(log, encoding="utf-8", errors="replace") as f:
        outputs = read_outputs(f.read())
    with open(junit, encoding="utf-8", errors="replace") as f:
        outcomes = read_outcomes(f.read())
    return [count(name, outputs.get(name, []), outcome) for name, outcome in outcomes.items()]


# Cases with deadlines that ctest runs beside others, whose load can break them: what they do alone counts. And tests in Python that
# start ranks, which are no cases of a program but run, and run again, as a whole. Others compute or compare files: a failure is one.
BESIDE = re.compile(r"(\w+_mp_waits|\w+_mp_test|(wire|store|trace|launch|comm|rpc|recover)_test): \S+"
                    r"|example_(?!(hello_world|matrix|data_parallel|partitioner)_alone)\w+"
                    r"|oracle_(fsdp_parity|pipeline_parity|tensor_parity|rpc_parity|divided_checkpoint)"
                    r"|python_(operations|training|launchers|pytorch_suite)|schedulers_(slurm|service)|methods|docs_commands|recovery_kills")
# The same of those that it runs alone: what they did counts, but somebody who reads of a failure wants to know.
ALONE = re.compile(r"\w+_mp_(alone|test_others): \S+|python_faults")


def without_part(test):
    """A test of ctest's name without the part that it is: cmake/LockstepRoom.cmake deals the cases of a program among several."""
    return re.sub(r"_part\d+$", "", test)


def program_of(test):
    """The GoogleTest program of which a test of ctest runs some cases."""
    return re.sub(r"_mp_(waits|alone|test_others)$", "_mp_test", without_part(test))


def second_tries(folder):
    """Where run_ctest.py keeps the labels of the cases that passed when they were run again."""
    return os.path.join(folder, "second_tries.json")


def read_second_tries(folder):
    try:
        with open(second_tries(folder), encoding="utf-8") as f:
            return json.load(f)
    except FileNotFoundError:
        return []
