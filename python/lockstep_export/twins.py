"""The PyTorch twin of the model that a checkpoint has, with its weights: what is exported."""
import dataclasses
import importlib.util
import json
import os

import torch

import lm_config
import lockstep_checkpoint
from bert_twin import ACTIVATIONS, BertClassifier
from image_twins import OfPixels, ResNet, SimpleCnn
from lm_twin import TransformerLm
from lockstep_checkpoint import CheckpointError


class ExportError(Exception):
    pass


@dataclasses.dataclass
class Input:
    """An axis is a number, or a name where any size is taken. Whole numbers are in [low, high)."""

    name: str
    dtype: torch.dtype
    axes: tuple
    low: int = 0
    high: int = 256
    is_mask: bool = False

    def draw(self, sizes, generator):
        shape = [sizes.get(axis, axis) for axis in self.axes]
        if self.is_mask:  # each row's tokens are followed by padding, and the first row has none
            lengths = torch.randint(1, shape[1] + 1, (shape[0], 1), generator=generator)
            lengths[0] = shape[1]
            return (torch.arange(shape[1]) < lengths).to(self.dtype)
        if self.dtype.is_floating_point:
            return torch.randn(shape, generator=generator, dtype=self.dtype)
        return torch.randint(self.low, self.high, shape, generator=generator).to(self.dtype)

    def __str__(self):
        return f"{self.name} {str(self.dtype).removeprefix('torch.')} [{', '.join(map(str, self.axes))}]"


@dataclasses.dataclass
class Twin:
    what: str
    model: torch.nn.Module
    inputs: list
    outputs: list  # names
    largest: dict = dataclasses.field(default_factory=dict)  # size of an axis by its name

    def axes(self):
        return list(dict.fromkeys(axis for each in self.inputs for axis in each.axes if isinstance(axis, str)))

    def draw(self, sizes, seed=0):
        generator = torch.Generator().manual_seed(seed)
        return tuple(each.draw(sizes, generator) for each in self.inputs)


def read_json(path):
    try:
        with open(path, encoding="utf-8") as file:
            found = json.load(file)
    except OSError as error:
        raise ExportError(f"{path}: cannot be read: {error.strerror}") from None
    except ValueError:
        raise ExportError(f"{path}: is not JSON") from None
    if not isinstance(found, dict):
        raise ExportError(f"{path}: is not a JSON object")
    return found


def fill(model, tensors, source, assign=False):
    """Takes exactly the tensors that the twin has; with assign also their types."""
    own = model.state_dict()
    missing, left = sorted(own.keys() - tensors.keys()), sorted(tensors.keys() - own.keys())
    if missing or left:
        raise ExportError(f"{source}: {'lacks ' + missing[0] if missing else 'has ' + left[0]}, {'which the model has' if missing else 'which the model lacks'}"
                          + (f"; so it is with {max(len(missing), len(left)) - 1} more" if max(len(missing), len(left)) > 1 else ""))
    tensors = dict(tensors)
    for name, tensor in tensors.items():
        if tensor.shape != own[name].shape:
            raise ExportError(f"{source}: {name} has the shape {list(tensor.shape)}, and the model's is {list(own[name].shape)}")
        if tensor.is_floating_point() and not own[name].is_floating_point() and bool((tensor == tensor.round()).all()):
            # In C++ Module::to(dtype) converts counters too.
            tensor = tensors[name] = tensor.to(own[name].dtype)
        if tensor.is_floating_point() != own[name].is_floating_point():
            raise ExportError(f"{source}: {name} is of {str(tensor.dtype).removeprefix('torch.')}, and the model's of {str(own[name].dtype).removeprefix('torch.')}")
    model.requires_grad_(False).load_state_dict(tensors, assign=assign)
    return model.eval()


def of_images(config, tensors, source):
    is_cifar = config.get("recipe") == "cifar"
    channels, side, classes = (3, 32, 10) if is_cifar else (1, 28, 10)
    name = config.get("model", "simple-cnn")
    if name == "simple-cnn":
        model = SimpleCnn(channels, side, classes)
    elif name in ("resnet18", "resnet50"):
        model = ResNet(int(name.removeprefix("resnet")), True, classes)
    else:
        raise ExportError(f"{source}: there is no image model '{name}'")
    fill(model, tensors, source)
    # Those of data::Cifar10Options.
    mean, stddev = ([0.4914, 0.4822, 0.4465], [0.2470, 0.2435, 0.2616]) if is_cifar else ([config.get("mean", 0.1307)], [config.get("stddev", 0.3081)])
    return Twin(name, OfPixels(model, mean, stddev).eval(), [Input("pixels", torch.uint8, ("batch", channels, side, side))], ["log_probabilities"])


def of_texts(config, tensors, source):
    if config.get("hidden_act", "gelu") not in ACTIVATIONS:
        raise ExportError(f"{source}: hidden_act '{config['hidden_act']}' is unknown; known are {', '.join(ACTIVATIONS)}")
    if config.get("position_embedding_type", "absolute") != "absolute" or config.get("is_decoder") or config.get("add_cross_attention"):
        raise ExportError(f"{source}: is not an encoder with absolute positions, which is what is known here")
    labels = len(config["id2label"]) if config.get("id2label") else config.get("num_labels", 2)
    tensors.pop("bert.embeddings.position_ids", None)  # in files of old versions of transformers
    model = fill(BertClassifier(config, labels), tensors, source)
    tokens = ("batch", "sequence")
    return Twin("BertClassifier", model,
                [Input("input_ids", torch.int64, tokens, high=config["vocab_size"]), Input("attention_mask", torch.int64, tokens, is_mask=True),
                 Input("token_type_ids", torch.int64, tokens, high=config.get("type_vocab_size", 2))],
                ["logits"], {"sequence": config["max_position_embeddings"]})


def of_language(config, tensors, source):
    try:
        config = lm_config.read(config)
    except lm_config.ConfigError as error:
        raise ExportError(f"{os.path.join(source, 'config.json')}: {error}") from None
    if config["tie_word_embeddings"]:
        tensors.pop("lm_head.weight", None)
    model = fill(TransformerLm(config), tensors, source)
    return Twin("TransformerLm", model, [Input("input_ids", torch.int64, ("batch", "sequence"), high=config["vocab_size"])], ["logits"],
                {"sequence": config["max_position_embeddings"]})


KINDS = {"bert": of_texts, "llama": of_language, "mixtral": of_language, "qwen2_moe": of_language}


def of_checkpoint(path):
    directory = lockstep_checkpoint.find(path)
    if os.path.isfile(directory):
        raise ExportError(f"{directory}: is a file of tensors, which does not say what model they are of; give its twin: --twin model.py --input ...")
    file = os.path.join(directory, "config.json")
    if not os.path.exists(file):
        raise ExportError(f"{directory}: has no config.json that says what model it is of; give its twin: --twin model.py --input ...")
    config = read_json(file)
    kind = of_images if config.get("recipe") in ("mnist", "cifar") else KINDS.get(str(config.get("model_type")))
    if kind is None:
        raise ExportError(f"{file}: is of no model of Lockstep's recipes (mnist, cifar, text, lm); give its twin: --twin model.py --input ...")
    tensors = lockstep_checkpoint.read_model(directory)
    # As Lockstep computes them.
    tensors = {name: tensor.float() if tensor.is_floating_point() else tensor for name, tensor in tensors.items()}
    try:
        return kind(config, tensors, directory)
    except KeyError as error:
        raise ExportError(f"{file}: lacks {error.args[0]}") from None
    except (TypeError, ValueError, ZeroDivisionError) as error:
        raise ExportError(f"{file}: has a value that makes no sense: {error}") from None


def parse_input(text):
    """NAME=DTYPE:AXIS,AXIS,...: x=float32:batch,3,32,32."""
    name, _, rest = text.partition("=")
    dtype, _, axes = rest.partition(":")
    known = {str(each).removeprefix("torch."): each for each in lockstep_checkpoint.DTYPES.values()}
    parts = [part.strip() for part in axes.split(",")]
    if not name.isidentifier() or dtype not in known or not all(part.isidentifier() or (part.isdigit() and int(part) > 0) for part in parts):
        raise ExportError(f"--input is '{text}'; give NAME=DTYPE:AXES, such as x=float32:batch,3,32,32, where a name is an axis of any size")
    return Input(name, known[dtype], tuple(int(part) if part.isdigit() else part for part in parts), high=2)


def of_user(path, file, inputs):
    """The model that make() of a Python file gives, with the tensors of `path`."""
    if not inputs:
        raise ExportError("--twin needs --input NAME=DTYPE:AXES for each input of the model, such as x=float32:batch,3,32,32")
    spec = importlib.util.spec_from_file_location("lockstep_twin", file)
    if spec is None or not os.path.isfile(file):
        raise ExportError(f"{file}: is no Python file")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
        model = module.make()
    except Exception as error:  # of the user's file
        raise ExportError(f"{file}: make() gives no model: {type(error).__name__}: {error}".splitlines()[0]) from None
    if not isinstance(model, torch.nn.Module):
        raise ExportError(f"{file}: make() gives a {type(model).__name__}, and no torch.nn.Module")
    # Each tensor keeps the type that it has in the file.
    model = fill(model, lockstep_checkpoint.read_model(path), path, assign=True)
    return Twin(type(model).__name__, model, [parse_input(text) for text in inputs], ["output"])
