#!/usr/bin/env python3
"""Makes the wheel lockstep_torch of an installed Lockstep (scripts/package --wheel).

A wheel is a zip file with a list of its files and their checksums. This one has one build for each release of torch; auditwheel
then checks it, puts the libraries in that not every Linux has (OpenSSL's), and names the oldest Linux on which it runs.
"""

import argparse
import base64
import hashlib
import os
import re
import shutil
import subprocess
import sys
import time
import zipfile

HERE = os.path.dirname(os.path.abspath(__file__))
# Libraries of torch's wheel, with which the programs are started.
TORCH = ("libtorch_cpu.so", "libc10.so", "libtorch_python.so", "libtorch.so", "libtorch_cuda.so", "libc10_cuda.so", "libgomp.so.1")

METADATA = """Metadata-Version: 2.1
Name: lockstep-torch
Version: {version}
Summary: Distributed training for C++ on libtorch: the command, the library and its headers
License: Apache-2.0
Requires-Python: >=3.9
Requires-Dist: torch>={oldest},<{after}
Description-Content-Type: text/plain

Lockstep trains PyTorch models in C++ on several processes. This wheel has the command `lockstep`, the C++ library with its headers and
CMake files (lockstep_torch.cmake_prefix_path), and the backend "lockstep" of torch.distributed (import lockstep_c10d).
Builds for torch {builds}.
"""

# `lockstep run` works without a torch that fits, which importing the package asks for: so the file is run, and the package not imported.
SCRIPT = """#!python
import importlib.util, os, runpy
package = importlib.util.find_spec("lockstep_torch").submodule_search_locations[0]
runpy.run_path(os.path.join(package, "__main__.py"), run_name="__main__")
"""


class Wheel:
    def __init__(self, path, date):
        self.file = zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9)
        self.date = date
        self.records = []

    def add(self, name, data, mode=0o644):
        info = zipfile.ZipInfo(name, self.date)
        info.external_attr = (0o100000 | mode) << 16
        info.compress_type = zipfile.ZIP_DEFLATED
        self.file.writestr(info, data)
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        self.records.append(f"{name},sha256={digest},{len(data)}")

    def close(self, record):
        self.records.append(f"{record},,")
        lines = "\n".join(self.records) + "\n"
        self.records = []
        self.add(record, lines.encode())
        self.file.close()


def read(path):
    with open(path, "rb") as file:
        return file.read()


def files_of(prefix):
    """(name, contents, mode) of every file below the prefix. A wheel has no links: the library goes by its SONAME, and what the linker
    looks for is a line for it that leads there."""
    for folder, folders, names in os.walk(prefix):
        folders.sort()
        for name in sorted(names):
            path = os.path.join(folder, name)
            inside = os.path.relpath(path, prefix)
            library = re.fullmatch(r"(liblockstep-torch[0-9.]+\.so)((?:\.\d+)*)", name)
            if library and library[2].count(".") > 1:
                continue
            if library and not library[2]:
                yield inside, f"INPUT({name}.0)\n".encode(), 0o644
                continue
            data = read(path)
            if name.startswith("lockstepSharedTargets"):
                data = re.sub(rb"(liblockstep-torch[0-9.]+\.so\.\d+)\.[0-9.]+", rb"\1", data)
            yield inside, data, 0o755 if os.access(path, os.X_OK) else 0o644


def make(prefix, version, builds, folder, date):
    tag = "py3-none-linux_" + os.uname().machine
    path = os.path.join(folder, f"lockstep_torch-{version}-{tag}.whl")
    wheel = Wheel(path, date)
    for name in ("__init__.py", "__main__.py"):
        wheel.add(f"lockstep_torch/{name}", read(os.path.join(HERE, "lockstep_torch", name)).replace(b"@VERSION@", version.encode()))
    wheel.add("lockstep_c10d/__init__.py", read(os.path.join(HERE, "lockstep_c10d.py.in")))
    for name, data, mode in files_of(prefix):
        wheel.add(f"lockstep_torch/prefix/{name}", data, mode)
    wheel.add(f"lockstep_torch-{version}.data/scripts/lockstep", SCRIPT.encode(), 0o755)
    info = f"lockstep_torch-{version}.dist-info"
    numbers = sorted([int(number) for number in minor.split(".")] for minor in builds)
    wheel.add(f"{info}/METADATA", METADATA.format(
        version=version, builds=", ".join(builds), oldest=".".join(map(str, numbers[0])),
        after=f"{numbers[-1][0]}.{numbers[-1][1] + 1}").encode())
    wheel.add(f"{info}/WHEEL", f"Wheel-Version: 1.0\nGenerator: lockstep\nRoot-Is-Purelib: false\nTag: {tag}\n".encode())
    wheel.close(f"{info}/RECORD")
    return path


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--prefix", required=True)
    parser.add_argument("--version", required=True)
    parser.add_argument("--builds", required=True, nargs="+")
    parser.add_argument("--out", required=True)
    arguments = parser.parse_args()
    if subprocess.run([sys.executable, "-c", "import auditwheel"], check=False, stderr=subprocess.DEVNULL).returncode:
        print(f"package: --wheel needs auditwheel: {sys.executable} -m pip install auditwheel", file=sys.stderr)
        return 2
    if not shutil.which("patchelf"):
        print("package: --wheel needs patchelf (apt-get install patchelf)", file=sys.stderr)
        return 2
    date = time.gmtime(int(os.environ.get("SOURCE_DATE_EPOCH", time.time())))[:6]
    plain = make(arguments.prefix, arguments.version, arguments.builds, os.path.dirname(arguments.prefix), date)
    excluded = [word for library in TORCH for word in ("--exclude", library)]
    done = subprocess.run([sys.executable, "-m", "auditwheel", "repair", "--wheel-dir", arguments.out, *excluded, plain],
                          check=False, capture_output=True, text=True)
    if done.returncode:
        print(f"{done.stdout}{done.stderr}package: auditwheel refuses the wheel, see above", file=sys.stderr)
        return 1
    written = re.search(r"Fixed-up wheel written to (\S+)", done.stdout + done.stderr)
    print(written[1] if written else done.stdout + done.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
