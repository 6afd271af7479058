#!/usr/bin/env python3
"""The command lines of README and docs are ones that work.

    tests/docs/commands_test.py --bin build/release/bin

In the blocks of code and the code spans of README, CONTRIBUTING and docs, in both languages: each `lockstep ...` has a subcommand and
flags that its --help shows, each script, preset and example exists, and its flags too; the line of apt-get names what
scripts/lib/dependencies.sh installs. The `lockstep` lines of the blocks are also run, in an empty folder, in the order of commands.txt;
it says of the others why they are not.
"""
import argparse
import functools
import glob
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.normpath(os.path.join(HERE, "..", ".."))
FENCE = re.compile(r"^(```|~~~)(\w*)\n(.*?)^\1", flags=re.M | re.S)
SHELL = {"", "sh", "bash"}
KNOWN = r"(?:lockstep|cmake|torchrun|mpirun|apt-get|scripts/\S+|build/\S+|(?:tests|bench|examples)/\S+\.py)"
# Words of a command of the reader's own that stand for another.
PLACEHOLDER = re.compile(r"^(?:[A-Z_]+|\.\.\.|…)$")
bin_folder = None


def documents(root):
    paths = [path for pattern in ("README*.md", "CONTRIBUTING.md", "docs/*.md", "docs/zh/*.md") for path in glob.glob(os.path.join(root, pattern))]
    for path in sorted(paths):
        with open(path, encoding="utf-8") as f:
            yield os.path.relpath(path, root), f.read()


def words_of(line):
    """A shell line without its comment -> its words, without variables set before the command; [] for what is no such line."""
    try:
        words = shlex.split(line, comments=True)
    except ValueError:
        return []
    while words and re.match(r"^[A-Z_]+=", words[0]):
        words.pop(0)
    return words


def block_commands(text):
    """[words] of the commands in blocks of shell code."""
    for _, language, body in FENCE.findall(text):
        if language not in SHELL:
            continue
        for line in body.replace("\\\n", " ").split("\n"):
            words = words_of(line)
            # Output of a command has its name first, too, with a colon.
            if words and re.fullmatch(KNOWN, words[0]) and not (language == "" and ":" in line):
                yield words


def span_commands(text):
    for span in re.findall(r"`([^`\n]+)`", FENCE.sub("", text)):
        if re.match(KNOWN + " ", span):
            words = words_of(span)
            if words:
                yield words


def flags_of(words):
    return [word.split("=")[0] for word in words if re.match(r"^--?[A-Za-z]", word)]


@functools.cache
def help_of(*words):
    return run([*words, "--help"])


def run(words, **options):
    return subprocess.run(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
                          timeout=120, check=False, **options)


def shown(text, flag):
    return re.search(rf"(?<![\w-]){re.escape(flag)}(?![\w-])", text.replace("_", "-")) is not None


def example(word):
    name = os.path.basename(word)
    for folder in ("examples", "examples/rpc", "examples/text_classification", "examples/insitu", "examples/c", "examples/fortran",
                   "bench"):
        if any(os.path.exists(os.path.join(ROOT, folder, name + ending)) for ending in (".cpp", ".c", ".f90")):
            return os.path.join(bin_folder, folder, name)
    return None


class Problem(Exception):
    pass


def unknown_flags(what, words, text):
    for flag in flags_of(words):
        if not shown(text, flag.replace("_", "-")):
            raise Problem(f"{what} knows no {flag}")


def check_program(words):
    """A program of the reader's, or an example; its flags."""
    program = example(words[0]) if words else None
    if words and words[0].startswith("build/release/bin/") and not program:
        raise Problem(f"there is no {words[0]}")
    if program and os.path.basename(program) == "hosts" and "--" in words:  # bench/hosts passes on what stands behind
        check_lockstep(["bench", "collectives", *words[words.index("--") + 1:]])
        words = words[:words.index("--")]
    if program and flags_of(words[1:]):
        if not os.path.exists(program):
            raise Problem(f"{program} is not built")
        unknown_flags(os.path.basename(program), words[1:], help_of(program).stdout)


def check_lockstep(words):
    """words: those after `lockstep`."""
    lockstep = os.path.join(bin_folder, "lockstep")
    words = [word for word in words if not PLACEHOLDER.match(word)]
    if words[0] == "run":
        help_text = help_of(lockstep, "run").stdout
        at = 1
        while at < len(words) and words[at].startswith("-"):
            unknown_flags("lockstep run", [words[at]], help_text)
            name = words[at].split("=")[0].replace("_", "-")
            takes_value = re.search(rf"{re.escape(name)} [A-Z0-9][\w:=.,\[\]]*", help_text) is not None
            at += 2 if takes_value and "=" not in words[at] else 1
        check_program(words[at:])
        return
    # A span may end with a flag that wants a value.
    asked = run([lockstep, *words, *(["x"] if words[-1].startswith("-") else []), "--help"])
    if asked.returncode != 0 or not re.search(r"^Usage: ", asked.stdout, re.M):
        raise Problem(f"lockstep {shlex.join(words)} --help ends with {asked.returncode}: {asked.stdout[:300]}")
    unknown_flags("lockstep " + words[0], words, asked.stdout)


def check_cmake(words):
    if "--preset" in words:
        with open(os.path.join(ROOT, "CMakePresets.json"), encoding="utf-8") as f:
            presets = json.load(f)
        kind = "buildPresets" if "--build" in words else "configurePresets"
        name = words[words.index("--preset") + 1]
        if not any(preset["name"] == name and not preset.get("hidden") for preset in presets[kind]):
            raise Problem(f"CMakePresets.json has no {name} in {kind}")
    elif not set(words) & {"--install", "--build", "-S", "-B", "-P", "-E"}:
        raise Problem("cmake is not called so")


def check_script(words):
    path = os.path.join(ROOT, words[0])
    if not os.path.exists(path):
        raise Problem(f"there is no {words[0]}")
    if not os.access(path, os.X_OK):
        raise Problem(f"{words[0]} is not executable: chmod +x")
    with open(path, encoding="utf-8") as f:
        own = words[1:words.index("--")] if "--" in words else words[1:]
        unknown_flags(words[0], own, f.read())


def table_of_packages(script, function):
    with open(os.path.join(ROOT, "scripts/lib", script), encoding="utf-8") as f:
        table = re.search(rf"^{function}\(\) \{{\n  cat <<'END'\n(.*?)^END", f.read(), re.M | re.S).group(1)
    return {line.split()[0] for line in table.splitlines()}


def check_apt(words):
    wanted = table_of_packages("dependencies.sh", "lockstep_packages") | {"libcurl4-openssl-dev", "python3-dev", "python3-venv"}
    named = {word for word in words[2:] if not word.startswith("-")}
    if named and all(word.endswith(".deb") for word in named):
        return  # our own packages
    if named not in (wanted, table_of_packages("aarch64.sh", "aarch64_packages")):
        raise Problem(f"scripts/lib/dependencies.sh installs others: {sorted(named ^ wanted)}")


def check(words):
    first = words[0]
    if os.path.basename(first) == "lockstep":
        if len(words) > 1:
            check_lockstep(words[1:])
    elif first == "cmake":
        check_cmake(words)
    elif first == "apt-get":
        check_apt(words)
    elif first.endswith(".py") or first.startswith("scripts/"):
        check_script(words)
    elif first in ("torchrun", "mpirun"):
        for at, word in enumerate(words):
            if example(word):
                check_program(words[at:])
                break
    else:
        check_program(words)


def listed():
    """commands.txt -> ([(words to run, words to add then), in order], {line that is not run: reason})."""
    to_run, left_out = [], {}
    with open(os.path.join(HERE, "commands.txt"), encoding="utf-8") as f:
        for line in filter(None, map(str.strip, f)):
            if line.startswith("#"):
                continue
            verb, command, *reason = [part.strip() for part in line.split("|")]
            if verb in ("run", "begin") and not reason:
                to_run.append((words_of(command), ["--max-steps", "20"] if verb == "begin" else []))
            elif verb == "not" and reason:
                left_out[shlex.join(words_of(command))] = reason[0]
            else:
                raise Problem(f"commands.txt: '{line}' is neither 'run | COMMAND', 'begin | COMMAND' nor 'not | COMMAND | REASON'")
    return to_run, left_out


class Commands(unittest.TestCase):
    def test_every_command_exists(self):
        count = 0
        checked = set()
        for path, text in documents(ROOT):
            for words in [*block_commands(text), *span_commands(text)]:
                count += 1
                line = shlex.join(words)
                if line in checked:
                    continue
                checked.add(line)
                with self.subTest(f"{path}: {line}"):
                    try:
                        check(words)
                    except Problem as problem:
                        self.fail(str(problem))
        self.assertGreater(count, 100, "the documents' commands were not found")

    def test_the_list_is_whole(self):
        found = {shlex.join(words) for _, text in documents(ROOT) for words in block_commands(text)
                 if os.path.basename(words[0]) == "lockstep"}
        to_run, left_out = listed()
        known = {shlex.join(words) for words, _ in to_run} | set(left_out)
        self.assertEqual(sorted(found - known), [], "not in tests/docs/commands.txt")
        self.assertEqual(sorted(known - found), [], "in tests/docs/commands.txt, but in no document")

    def test_cheap_ones_run(self):
        to_run, _ = listed()
        with tempfile.TemporaryDirectory() as folder:
            # What the reader has: a program of his own, and the build beside him.
            with open(os.path.join(folder, "train"), "w", encoding="utf-8") as f:
                f.write("#!/bin/sh\nexit 0\n")
            os.chmod(f.name, 0o755)
            os.makedirs(os.path.join(folder, "build/release"))
            os.symlink(f.name, os.path.join(folder, "build/train"))
            os.symlink(bin_folder, os.path.join(folder, "build/release/bin"))
            path = os.pathsep.join([bin_folder, os.path.join(bin_folder, "examples"), os.environ["PATH"]])
            for words, more in to_run:
                with self.subTest(shlex.join(words)):
                    done = run(words + more, cwd=folder, env={**os.environ, "PATH": path, "OMP_NUM_THREADS": "1"})
                    self.assertEqual(done.returncode, 0, done.stdout)

    def test_what_is_wrong_is_found(self):
        for line, problem in (("lockstep train mnist --epoch-count 3", "knows no --epoch-count"),
                              ("lockstep trian mnist", "--help ends with"),
                              ("lockstep run -np 2 --no-pins ./train", "knows no --no-pins"),
                              ("lockstep checkpoint inspect runs/a --sumary", "knows no --sumary"),
                              ("cmake --preset fast", "has no fast in configurePresets"),
                              ("cmake --build --preset tidy", "has no tidy in buildPresets"),
                              ("scripts/build", "there is no scripts/build"),
                              ("scripts/test --quick", "knows no --quick"),
                              ("apt-get install g++", "installs others"),
                              ("build/release/bin/examples/none", "there is no build/release/bin/examples/none")):
            with self.subTest(line), self.assertRaisesRegex(Problem, problem):
                check(words_of(line))
        for line in ("lockstep run -np 2 ./train --any-flag", "lockstep run --nproc_per_node=2 --tee 3 ./train --any-flag",
                     "lockstep run", "scripts/test --fast -R comm"):
            check(words_of(line))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", default=os.path.join(ROOT, "build/release/bin"), type=os.path.abspath)
    options, rest = parser.parse_known_args()
    bin_folder = options.bin
    unittest.main(verbosity=2, argv=[sys.argv[0], *rest])
