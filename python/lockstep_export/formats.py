"""Writes a twin in one of three formats, and opens such a file again to compare."""
import ast
import contextlib
import importlib.util
import io
import logging
import os
import warnings

import torch

from twins import ExportError

SUFFIX = {"onnx": ".onnx", "pt2": ".pt2", "torchscript": ".pt"}
# ONNX's format is protobuf, whose messages end at 2 GiB.
LARGEST_ONNX = 1_900_000_000
EXAMPLE = {"batch": 2, "sequence": 6}
TOLERANCE = 1e-5


def missing_for(format, check):
    """What this Python lacks for a format."""
    wanted = {"onnx": ["onnx", "onnxscript"] + (["onnxruntime"] if check else [])}.get(format, [])
    return [name for name in wanted if importlib.util.find_spec(name) is None]


def sizes_of(twin, number):
    """Sizes of the axes that have none; 2 or more where a graph is made, since PyTorch takes 1 for a size that stays."""
    return {axis: min(EXAMPLE.get(axis, 3) + number, twin.largest.get(axis, 1 << 30)) for axis in twin.axes()}


@contextlib.contextmanager
def quiet():
    """Exporters print what they are doing, and warnings about their own parts."""
    level = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)


@contextlib.contextmanager
def one_line(what):
    """Makes one line of what others raise: PyTorch's exporters, the programs that open files, forwards of users. They raise all kinds."""
    try:
        with quiet():
            yield
    except ExportError:
        raise
    except Exception as error:
        lines = str(error).strip().splitlines() or [""]
        raise ExportError(f"{what}: {type(error).__name__}: {lines[0]}") from error


def program_of(twin):
    dims = {axis: torch.export.Dim(axis, max=twin.largest.get(axis)) for axis in twin.axes()}
    shapes = tuple({i: dims[axis] for i, axis in enumerate(each.axes) if isinstance(axis, str)} for each in twin.inputs)
    return torch.export.export(twin.model, twin.draw(sizes_of(twin, 0)), dynamic_shapes=shapes, strict=False)


def write_onnx(twin, path):
    if sum(tensor.nbytes for tensor in twin.model.state_dict().values()) > LARGEST_ONNX:
        raise ExportError("the model has more than 1.9 GB of parameters, which one ONNX file does not take; use --to pt2")
    shapes = tuple({i: torch.export.Dim(axis, max=twin.largest.get(axis)) for i, axis in enumerate(each.axes) if isinstance(axis, str)} for each in twin.inputs)
    torch.onnx.export(program_of(twin), (), path, input_names=[each.name for each in twin.inputs], output_names=twin.outputs, dynamic_shapes=shapes,
                      dynamo=True, external_data=False, verbose=False)


def write_pt2(twin, path):
    torch.export.save(program_of(twin), path)


def is_only_a_check(path, line):
    """Whether the innermost statement at this line is an assertion, or an `if` that does nothing but raise: a graph without it computes the same."""
    try:
        with open(path, encoding="utf-8") as file:
            tree = ast.parse(file.read())
    except (OSError, ValueError, SyntaxError):
        return False
    at = [node for node in ast.walk(tree) if isinstance(node, ast.stmt) and node.lineno <= line <= node.end_lineno]
    inner = max(at, key=lambda node: (node.lineno, -node.end_lineno), default=None)
    return isinstance(inner, ast.Assert) or (isinstance(inner, ast.If) and not inner.orelse and all(isinstance(node, ast.Raise) for node in inner.body))


HOW_TO_SCRIPT = "write it with tensors, such as torch.where and buffers, or compile it yourself by torch.jit.script, which keeps branches and loops"


def refuse_frozen_values(twin, caught):
    for each in caught:
        if issubclass(each.category, torch.jit.TracerWarning) and not is_only_a_check(each.filename, each.lineno):
            reason = str(each.message).strip().splitlines()[0].split(". ")[0]
            raise ExportError(f"{twin.what} decides by its data in Python, which TorchScript's trace freezes ({os.path.basename(each.filename)}, line {each.lineno}: "
                              f"{reason}); {HOW_TO_SCRIPT}")


def refuse_frozen_sizes(twin, traced):
    """PyTorch does not warn of `for i in range(x.shape[1])`: other sizes show it."""
    sizes = sizes_of(twin, 3)
    shown = ", ".join(f"{axis} {size}" for axis, size in sizes.items())
    given = twin.draw(sizes, seed=1)
    with torch.random.fork_rng(devices=[]), one_line(f"{twin.what} does not compute {shown}, and an axis with a name takes any size"):
        torch.manual_seed(0)
        expected = twin.model(*given)
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            found = traced(*given)
        same = found.shape == expected.shape and found.dtype == expected.dtype and torch.allclose(found.double(), expected.double(), TOLERANCE, TOLERANCE, equal_nan=True)
    except RuntimeError:
        same = False
    if not same:
        raise ExportError(f"{twin.what} decides by its sizes in Python, which TorchScript's trace freezes (it computes otherwise at {shown}); {HOW_TO_SCRIPT}")


def write_torchscript(twin, path):
    # A trace has what the model did with one input. PyTorch warns where Python's own branches, loops and numbers depend on a tensor.
    with torch.no_grad(), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        # Those inside PyTorch's layers are of checks of shapes.
        torch.jit.TracerWarning.ignore_lib_warnings()
        traced = torch.jit.trace(twin.model, twin.draw(sizes_of(twin, 0)), check_trace=False)
        refuse_frozen_values(twin, caught)
        if twin.axes():
            refuse_frozen_sizes(twin, traced)
    torch.jit.save(traced, path)


WRITERS = {"onnx": write_onnx, "pt2": write_pt2, "torchscript": write_torchscript}


def check_forward(twin):
    """That the model takes its inputs and gives one tensor, as files here have it."""
    with one_line(f"{twin.what} does not compute {', '.join(map(str, twin.inputs))}"), torch.no_grad():
        found = twin.model(*twin.draw(sizes_of(twin, 0)))
        if not isinstance(found, torch.Tensor):
            raise ExportError(f"{twin.what}'s forward gives a {type(found).__name__}, and what is exported gives one tensor; let make() return a module whose forward does")


def write(twin, format, path):
    check_forward(twin)
    with one_line(f"PyTorch {torch.__version__} cannot export {twin.what} to {format}"):
        WRITERS[format](twin, path)
    if not os.path.exists(path):
        raise ExportError(f"PyTorch {torch.__version__} has written nothing")


def open_onnx(twin, path):
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [each.name for each in session.get_inputs()]
    if names != [each.name for each in twin.inputs]:
        raise ExportError(f"{path}: has the inputs {', '.join(names)}")
    return (lambda given: torch.from_numpy(session.run(None, {name: tensor.numpy() for name, tensor in zip(names, given)})[0]),
            f"ONNX Runtime {onnxruntime.__version__}")


def open_pt2(twin, path):
    module = torch.export.load(path).module()
    return lambda given: module(*given), f"torch.export.load of PyTorch {torch.__version__}"


def open_torchscript(twin, path):
    module = torch.jit.load(path)
    return lambda given: module(*given), f"torch.jit.load of PyTorch {torch.__version__}"


OPENERS = {"onnx": open_onnx, "pt2": open_pt2, "torchscript": open_torchscript}


def compare(twin, format, path):
    """The largest difference from the twin on several batches, as a part of the largest value where that is above 1, who computed, and the batches."""
    with one_line(f"{format}: the written file cannot be compared with {twin.what}"), torch.no_grad():
        run, who = OPENERS[format](twin, path)
        worst, shown = 0.0, []
        for number, sizes in enumerate([{axis: 1 if axis == "batch" else size for axis, size in sizes_of(twin, 0).items()}, sizes_of(twin, 0), sizes_of(twin, 3)]):
            given = twin.draw(sizes, seed=number)
            expected = twin.model(*given)
            found = run(given)
            if found.shape != expected.shape or found.dtype != expected.dtype:
                raise ExportError(f"{path}: gives {found.dtype} {list(found.shape)} in place of {expected.dtype} {list(expected.shape)}")
            found, expected = found.double(), expected.double()
            difference = (found - expected).abs().max().item() / max(1.0, expected.abs().max().item())
            worst = difference if difference != difference else max(worst, difference)
            shown.append("x".join(map(str, sizes.values())))
    return worst, who, shown
