"""Writes a twin in one of three formats, and opens such a file again to compare."""
import contextlib
import importlib.util
import logging
import os
import warnings

import torch

from twins import ExportError

SUFFIX = {"onnx": ".onnx", "pt2": ".pt2", "torchscript": ".pt"}
# ONNX's format is protobuf, whose messages end at 2 GiB.
LARGEST_ONNX = 1_900_000_000
EXAMPLE = {"batch": 2, "sequence": 6}


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
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)


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


def write_torchscript(twin, path):
    with torch.no_grad():
        torch.jit.save(torch.jit.trace(twin.model, twin.draw(sizes_of(twin, 0)), check_trace=False), path)


WRITERS = {"onnx": write_onnx, "pt2": write_pt2, "torchscript": write_torchscript}


def write(twin, format, path):
    try:
        with quiet():
            WRITERS[format](twin, path)
    except ExportError:
        raise
    except Exception as error:  # of PyTorch's exporters, which raise all kinds
        lines = str(error).strip().splitlines() or [""]
        raise ExportError(f"PyTorch {torch.__version__} cannot export {twin.what} to {format}: {type(error).__name__}: {lines[0]}") from error
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
TOLERANCE = 1e-5


def compare(twin, format, path):
    """The largest difference from the twin on several batches, as a part of the largest value where that is above 1, who computed, and the batches."""
    with quiet(), torch.no_grad():
        run, who = OPENERS[format](twin, path)
        worst, shown = 0.0, []
        for number, sizes in enumerate([{axis: 1 if axis == "batch" else size for axis, size in sizes_of(twin, 0).items()}, sizes_of(twin, 0), sizes_of(twin, 3)]):
            given = twin.draw(sizes, seed=number)
            expected = twin.model(*given)
            found = run(given)
            if found.shape != expected.shape or found.dtype != expected.dtype:
                raise ExportError(f"{path}: gives {found.dtype} {list(found.shape)} in place of {expected.dtype} {list(expected.shape)}")
            scale = max(1.0, expected.abs().max().item())
            difference = (found - expected).abs().max().item() / scale
            worst = difference if difference != difference else max(worst, difference)
            shown.append("x".join(map(str, sizes.values())))
    return worst, who, shown
