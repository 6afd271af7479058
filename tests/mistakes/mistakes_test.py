"""Common mistakes end in one clear line of the compiler: each "// says: ..." of mistakes.cpp is in an error.

    mistakes_test.py --compiler c++ --source mistakes.cpp -- FLAGS...
"""
import argparse
import re
import subprocess
import sys


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--compiler", required=True)
    parser.add_argument("--source", required=True)
    parser.add_argument("flags", nargs="*")
    args = parser.parse_args()
    with open(args.source) as source:
        expected = re.findall(r"// says: (.*)", source.read())
    command = [args.compiler, *args.flags, "-fsyntax-only", "-ferror-limit=0" if "clang" in args.compiler else "-fmax-errors=0",
               args.source]
    result = subprocess.run(command, capture_output=True, text=True, env={"LC_ALL": "C", "PATH": "/usr/bin:/bin"})
    errors = [line for line in result.stderr.splitlines() if re.search(r"\berror: ", line)]
    said = "\n".join(errors)
    missing = [text for text in expected if said.count(text) < expected.count(text)]
    for text in sorted(set(missing)):
        print(f"{expected.count(text)} mistakes, but {said.count(text)} errors say: {text}")
    if not expected or missing or result.returncode == 0:
        print(f"the compiler ended with {result.returncode} and said:\n{result.stderr[-6000:]}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
