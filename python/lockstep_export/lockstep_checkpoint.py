"""Lockstep's checkpoints in PyTorch: the model's tensors and the optimizer's state, without a pickle.

    PYTHONPATH=PREFIX/libexec/lockstep/export python
    >>> import lockstep_checkpoint
    >>> model.load_state_dict(lockstep_checkpoint.read_model("runs/mine"))
    >>> optimizer = lockstep_checkpoint.make_optimizer(model, "runs/mine")

What a checkpoint's optimizer.safetensors has, and what becomes of it:

    metadata "optimizer"        "SGD", "Adam", "AdamW", "RMSprop", "Adagrad": the class of torch.optim
    metadata "group.N"          JSON: the options of parameter group N, and "parameters": their names in the model
    tensor NAME.momentum_buffer SGD, RMSprop: state[parameter]["momentum_buffer"]
    tensor NAME.exp_avg, NAME.exp_avg_sq, NAME.max_exp_avg_sq   Adam, AdamW: the same words
    tensor NAME.square_avg, NAME.grad_avg                       RMSprop: the same words
    tensor NAME.sum             Adagrad: the same word
    tensor NAME.step            int64: state[parameter]["step"], a float32 scalar as PyTorch has it

Every function raises CheckpointError with one line that begins with the path.
"""
import json
import math
import os
import struct

import torch

DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "I64": torch.int64, "I32": torch.int32,
          "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool, "C64": torch.complex64}
LARGEST_HEADER = 100_000_000
OPTIMIZERS = ("SGD", "Adam", "AdamW", "RMSprop", "Adagrad")
MODEL, OPTIMIZER = "model.safetensors", "optimizer.safetensors"


class CheckpointError(Exception):
    pass


def read_safetensors(path):
    """The tensors of a safetensors file by name, and its metadata."""
    path = os.fspath(path)
    try:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            length = struct.unpack("<Q", file.read(8))[0] if size >= 8 else -1
            if not 2 <= length <= min(size - 8, LARGEST_HEADER):
                raise CheckpointError(f"{path}: is no safetensors file")
            header = json.loads(file.read(length))
            data = bytearray(size - 8 - length)
            if file.readinto(data) != len(data):
                raise CheckpointError(f"{path}: became shorter while it was read")
        metadata = header.pop("__metadata__", {})
        return {name: _tensor(path, name, entry, data) for name, entry in header.items()}, metadata
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise CheckpointError(f"{path}: its header is damaged") from None


def _tensor(path, name, entry, data):
    dtype, shape, (begin, end) = DTYPES.get(entry["dtype"]), entry["shape"], entry["data_offsets"]
    if dtype is None:
        raise CheckpointError(f"{path}: {name} has the type {entry['dtype']}, which is not read here")
    if not 0 <= begin <= end <= len(data) or end - begin != math.prod(shape) * dtype.itemsize:
        raise CheckpointError(f"{path}: {name} lies outside the file, or has not the bytes of its shape")
    if begin == end:
        return torch.empty(shape, dtype=dtype)
    # A copy where it is not aligned.
    part = memoryview(data)[begin:end]
    if begin % dtype.itemsize:
        part = bytearray(part)
    return torch.frombuffer(part, dtype=dtype).reshape(shape)


def find(path):
    """The checkpoint that a path means: itself, or the best or else the last one of a run's folder."""
    path = os.fspath(path)
    candidates = [path] + [os.path.join(path, *parts) for parts in (("checkpoints", "best"), ("checkpoints", "last"), ("best",), ("last",))]
    for candidate in candidates:
        if os.path.isfile(candidate) or any(os.path.exists(os.path.join(candidate, name)) for name in (MODEL, MODEL + ".index.json", "model.slices.json")):
            return os.path.realpath(candidate) if candidate != path else path
    if not os.path.exists(path):
        raise CheckpointError(f"{path}: does not exist")
    raise CheckpointError(f"{path}: holds no {MODEL}; give the output folder of a training run, one of its checkpoints, or a safetensors file")


def _refuse_slices(directory, name):
    if os.path.exists(os.path.join(directory, name)):
        raise CheckpointError(f"{directory}: is divided among the files of ranks; put it together first: lockstep checkpoint consolidate {directory} WHOLE")


def read_model(path):
    """The model's tensors by name, of a run's folder, a checkpoint, a folder of Hugging Face's with safetensors, or a safetensors file."""
    path = find(path)
    if os.path.isfile(path):
        return read_safetensors(path)[0]
    if os.path.exists(os.path.join(path, MODEL)):
        return read_safetensors(os.path.join(path, MODEL))[0]
    _refuse_slices(path, "model.slices.json")
    index = os.path.join(path, MODEL + ".index.json")
    try:
        with open(index, encoding="utf-8") as file:
            names = sorted(set(json.load(file)["weight_map"].values()))
    except (OSError, ValueError, KeyError, AttributeError):
        raise CheckpointError(f"{index}: cannot be read") from None
    tensors = {}
    for name in names:
        if os.path.basename(name) != name:
            raise CheckpointError(f"{index}: names the file {name}, which is not beside it")
        tensors.update(read_safetensors(os.path.join(path, name))[0])
    return tensors


def read_optimizer(path):
    """The kind of the optimizer, its groups as dicts of options with "parameters" (names), and its tensors by name, as the file has them."""
    path = find(path)
    if os.path.isdir(path):
        _refuse_slices(path, OPTIMIZER + ".index.json")
        path = os.path.join(path, OPTIMIZER)
    tensors, metadata = read_safetensors(path)
    groups = []
    try:
        while f"group.{len(groups)}" in metadata:
            groups.append(json.loads(metadata[f"group.{len(groups)}"]))
        kind = metadata["optimizer"]
    except (ValueError, KeyError):
        raise CheckpointError(f"{path}: has no state of an optimizer") from None
    if kind not in OPTIMIZERS:
        raise CheckpointError(f"{path}: is the state of {kind}, which torch.optim lacks; known are {', '.join(OPTIMIZERS)}")
    return kind, groups, tensors, path


def _names_of(groups, model, path):
    """The names of the parameters, group by group. Without a model's names a file numbers them in the model's order."""
    own = [name for name, _ in model.named_parameters()]
    if all(isinstance(group.get("parameters"), list) for group in groups):
        names = [group["parameters"] for group in groups]
    else:
        if sum(group["parameters"] for group in groups) != len(own):
            raise CheckpointError(f"{path}: has another number of parameters than the model, which has {len(own)}")
        rest = iter(own)
        names = [[next(rest) for _ in range(group["parameters"])] for group in groups]
    unknown = [name for group in names for name in group if name not in own]
    if unknown:
        raise CheckpointError(f"{path}: has the parameter {unknown[0]}, which the model lacks")
    return names


def _state_of(tensor, what, parameter, name, path):
    if what == "step":
        return torch.tensor(float(tensor.item()), dtype=torch.float32)
    if tensor.shape != parameter.shape:
        raise CheckpointError(f"{path}: {name} has the shape {list(tensor.shape)}, and its parameter {list(parameter.shape)}")
    return tensor.clone()


def state_dict_of(model, path):
    """The state_dict of the torch.optim class that is returned with it, and the model's parameters in groups as it wants them. Parameters
    without a state, which were never stepped, have none."""
    kind, groups, tensors, path = read_optimizer(path)
    names = _names_of(groups, model, path)
    parameters = dict(model.named_parameters())
    by_name = all(isinstance(group["parameters"], list) for group in groups)
    numbers, state = {}, {}
    for name in (name for group in names for name in group):
        numbers[name] = len(numbers)
    keys = {name if by_name else str(number): name for name, number in numbers.items()}
    for full, tensor in tensors.items():
        key, _, what = full.rpartition(".")
        if key not in keys:
            raise CheckpointError(f"{path}: {full} belongs to no parameter")
        name = keys[key]
        state.setdefault(numbers[name], {})[what] = _state_of(tensor, what, parameters[name], full, path)
    param_groups = []
    for group, own in zip(groups, names):
        options = {key: value for key, value in group.items() if key != "parameters"}
        if "betas" in options:
            options["betas"] = tuple(options["betas"])
        param_groups.append({**options, "params": [numbers[name] for name in own]})
    return getattr(torch.optim, kind), {"state": state, "param_groups": param_groups}, [[parameters[name] for name in own] for own in names]


def make_optimizer(model, path):
    """The optimizer of a checkpoint, as torch.optim's class, over the parameters of `model`, with its options and its state: it goes on
    where training stopped."""
    kind, saved, groups = state_dict_of(model, path)
    made = kind([{**{key: value for key, value in options.items() if key != "params"}, "params": own}
                 for options, own in zip(saved["param_groups"], groups)])
    # What PyTorch adds to options (foreach, fused, ...) stays as it is.
    merged = [{**fresh, **options} for fresh, options in zip(made.state_dict()["param_groups"], saved["param_groups"])]
    made.load_state_dict({"state": saved["state"], "param_groups": merged})
    return made
