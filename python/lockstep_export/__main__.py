"""What `lockstep export` runs: writes a checkpoint's model as an ONNX, pt2 or TorchScript file."""
import argparse
import os
import signal
import sys

try:
    import torch
except ImportError as error:
    sys.exit(f"lockstep export: {sys.executable} cannot import torch: {error}")

import formats
import lockstep_checkpoint
import twins
from twins import ExportError


def default_output(checkpoint, format):
    """In this folder, by the name that says most: "mnist.onnx" of runs/mnist/checkpoints/best."""
    path = os.path.normpath(os.path.abspath(checkpoint))
    while os.path.basename(path) in ("best", "last", "checkpoints") and os.path.dirname(path) != path:
        path = os.path.dirname(path)
    name = os.path.basename(path)
    return (name.removesuffix(".safetensors") or "model") + formats.SUFFIX[format]


def put(aside, output, force):
    """Gives the whole file its name; an existing one is replaced only by force."""
    with open(aside, "rb") as file:
        os.fsync(file.fileno())
    if force:
        os.replace(aside, output)
        return
    try:
        os.link(aside, output)
    except FileExistsError:
        raise ExportError(f"{output} exists; give --force to replace it, or another --output") from None
    except OSError:  # a file system without links
        if os.path.lexists(output):
            raise ExportError(f"{output} exists; give --force to replace it, or another --output") from None
        os.rename(aside, output)


def export(options):
    output = options.output or default_output(options.checkpoint, options.to)
    directory, name = os.path.split(output)
    if not os.path.isdir(directory or "."):
        raise ExportError(f"{directory}: is no folder")
    if os.path.isdir(output):
        raise ExportError(f"{output}: is a folder; give the name of a file")
    if os.path.lexists(output) and not options.force:
        raise ExportError(f"{output} exists; give --force to replace it, or another --output")
    missing = formats.missing_for(options.to, options.check)
    if missing:
        raise ExportError(f"--to {options.to}{' --check' if options.check else ''} needs {' and '.join(missing)} in {sys.executable}: "
                          f"{sys.executable} -m pip install {' '.join(missing)}")
    twin = twins.of_user(options.checkpoint, options.twin, options.input) if options.twin else twins.of_checkpoint(options.checkpoint)
    # PyTorch's writers look at the end of the name.
    aside = os.path.join(directory, f".{name}.{os.getpid()}{formats.SUFFIX[options.to]}")
    try:
        formats.write(twin, options.to, aside)
        line = ""
        if options.check:
            worst, who, batches = formats.compare(twin, options.to, aside)
            line = f"Checked by {who} on inputs of {', '.join(batches)}: the largest difference is {worst:.1e}"
            if not worst <= formats.TOLERANCE:
                raise ExportError(f"{line}, and {formats.TOLERANCE:.0e} is allowed; nothing is written")
        put(aside, output, options.force)
    finally:
        for left in (aside, aside + ".data"):
            if os.path.lexists(left):
                os.remove(left)
    print(f"{output}: {twin.what} of {lockstep_checkpoint.find(options.checkpoint)}, {os.path.getsize(output) / 1e6:.1f} MB")
    for each in twin.inputs:
        limits = [f"{axis} up to {twin.largest[axis]}" for axis in each.axes if axis in twin.largest]
        print(f"  input  {each}" + (f", {', '.join(limits)}" if limits else ""))
    for each in twin.outputs:
        print(f"  output {each}")
    if line:
        print(line)


def main():
    parser = argparse.ArgumentParser(prog="lockstep export", allow_abbrev=False)
    parser.add_argument("checkpoint")
    parser.add_argument("--to", required=True, choices=list(formats.SUFFIX))
    parser.add_argument("--output")
    parser.add_argument("--twin")
    parser.add_argument("--input", action="append", default=[])
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--force", action="store_true")
    options = parser.parse_args()
    # What is aside is removed then, too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        export(options)
    except (ExportError, lockstep_checkpoint.CheckpointError) as error:
        print(f"lockstep export: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"lockstep export: {error.filename or ''}: {error.strerror}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
