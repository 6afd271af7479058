"""Lockstep, distributed training for C++ on libtorch: the command, the library with its headers, the backend for torch.distributed.

    import lockstep_torch
    lockstep_torch.cmake_prefix_path   # cmake -DCMAKE_PREFIX_PATH=...: find_package(lockstep)
    lockstep_torch.pkg_config_path     # PKG_CONFIG_PATH=...: pkg-config --define-variable=torch_dir=... lockstep
    lockstep_torch.library             # the shared library for the installed torch

The package has a build for each release of torch that it supports. Importing takes that of the installed torch, and fails with an
ImportError that names the builds where there is none. torch itself is not imported.
"""

import importlib.metadata as _metadata
import os as _os
import re as _re
import sys as _sys

prefix = _os.path.join(_os.path.dirname(_os.path.abspath(__file__)), "prefix")
cmake_prefix_path = prefix
pkg_config_path = _os.path.join(prefix, "lib", "pkgconfig")
include = _os.path.join(prefix, "include")
__version__ = "@VERSION@"


def builds():
    """The releases of torch for which this package has a build, such as ["2.13", "2.14"]."""
    found = [name[len("torch-"):] for name in _os.listdir(_os.path.join(prefix, "libexec", "lockstep")) if name.startswith("torch-")]
    return sorted(found, key=lambda minor: [int(number) for number in minor.split(".")])


def _torch_version():
    if "torch" in _sys.modules:
        return str(_sys.modules["torch"].__version__)
    try:
        return _metadata.version("torch")
    except _metadata.PackageNotFoundError:
        return None


def _choose():
    version, there = _torch_version(), builds()
    match = _re.match(r"\d+\.\d+", version or "")
    if not match or match.group() not in there:
        found = f"torch {version} is installed" if version else "torch is not installed"
        raise ImportError(f"lockstep_torch {__version__} has builds for torch {' and '.join(there)}, and {found}; "
                          f"install one of those: pip install 'torch=={there[-1]}.*'")
    return match.group()


torch_minor = _choose()
library = _os.path.join(prefix, "lib", f"liblockstep-torch{torch_minor}.so.0")
