#!/usr/bin/env python3
"""`lockstep export` of models that `lockstep train` has trained, against `lockstep predict`.

A convolutional network and a ResNet on pictures, a BERT and a language model are trained some steps and exported to ONNX, pt2 and TorchScript. The files are
opened by ONNX Runtime and PyTorch: on several batch sizes they give the logits of `lockstep predict` within 1e-5, and the language model
continues a prompt as it does. With --llama and --bert, further shapes (shared heads of keys, biases, experts with a capacity, a shared expert,
rotations, activations, padding) against Lockstep's models in C++. What cannot be exported is one line, and leaves nothing. Needs torch,
onnx, onnxscript, onnxruntime, transformers and safetensors. Where one of them cannot be imported, its parts are left out, the rest runs, and the
exit status is 77, with the names. With --short, only the convolutional network is trained and goes to all formats, and the further shapes go to
TorchScript.

    tests/oracle/export_models.py [--short] [--lockstep build/release/bin/lockstep] [--llama .../llama_parity] [--bert .../bert_parity]
"""
import argparse
import importlib
import json
import os
import struct
import subprocess
import sys
import tempfile

SKIPPED = 77
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
TOLERANCE = 1e-5

try:
    import torch
except (ImportError, OSError) as missing:
    print(f"skipped: {sys.executable} cannot import what the oracle needs: {missing}")
    sys.exit(SKIPPED)

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(ROOT, "python", "lockstep_export"))
import lm_config  # noqa: E402
import lm_twin  # noqa: E402
import bert_twin  # noqa: E402
import lockstep_checkpoint  # noqa: E402

SUFFIX = {"torchscript": ".pt", "pt2": ".pt2", "onnx": ".onnx"}


def missing_packages():
    """Why each cannot be imported, by name."""
    missing = {}
    for name in ("onnx", "onnxscript", "onnxruntime", "transformers", "safetensors"):
        try:
            importlib.import_module(name)
        except Exception as error:  # a broken package raises what it likes
            missing[name] = f"{type(error).__name__}: {error}".splitlines()[0]
    return missing


def opened(path):
    """A function of tensors."""
    if path.endswith(".onnx"):
        import onnxruntime

        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        names = [each.name for each in session.get_inputs()]
        return lambda *given: torch.from_numpy(session.run(None, {name: tensor.numpy() for name, tensor in zip(names, given)})[0])
    module = torch.export.load(path).module() if path.endswith(".pt2") else torch.jit.load(path)

    def run(*given):
        with torch.no_grad():
            return module(*given)

    return run


def lockstep(options, *words):
    return subprocess.run([options.lockstep, *words], capture_output=True, text=True, timeout=280)


def must(options, *words):
    ended = lockstep(options, *words)
    if ended.returncode != 0:
        sys.exit(f"lockstep {' '.join(words)} ended with {ended.returncode}: {ended.stderr}")
    return ended.stdout


def export(options, folder, checkpoint):
    """The exported files, opened, by format."""
    runs = {}
    for format in options.formats:
        output = os.path.join(folder, os.path.basename(checkpoint) + SUFFIX[format])
        said = must(options, "export", checkpoint, "--to", format, "--check", "--output", output, "--python", sys.executable)
        if "the largest difference is" not in said:
            sys.exit(f"{checkpoint}: --check says nothing: {said}")
        runs[format] = opened(output)
    return runs


def export_here(formats, folder, checkpoint):
    """The same in this process, which has imported PyTorch already."""
    import formats as writers
    import twins

    runs = {}
    for format in formats:
        output = os.path.join(folder, os.path.basename(checkpoint) + SUFFIX[format])
        writers.write(twins.of_checkpoint(checkpoint), format, output)
        runs[format] = opened(output)
    return runs


def same(what, found, expected):
    """As a part of the largest value where that is above 1."""
    if found.shape != expected.shape:
        sys.exit(f"{what}: has the shape {list(found.shape)}, expected {list(expected.shape)}")
    difference = ((found.double() - expected.double()).abs().max() / max(1.0, expected.abs().max())).item()
    if not difference <= TOLERANCE:
        sys.exit(f"{what}: differs by {difference:.1e}")
    return difference


def say(what, differences):
    print(f"{what}: " + ", ".join(f"{format} within {difference:.1e}" for format, difference in differences.items()), flush=True)


def predicted(options, folder, *words):
    file = os.path.join(folder, "predicted.json")
    must(options, "predict", *words, "--json", file)
    with open(file, encoding="utf-8") as read:
        return json.load(read)


def check_pictures(options, folder):
    run = os.path.join(folder, "mnist")
    must(options, "train", "mnist", "--data", "digits", "--nproc", "1", "--max-steps", "15", "--output", run)
    file = os.path.join(run, "data", "t10k-images-idx3-ubyte")
    with open(file, "rb") as read:
        _, count, height, width = struct.unpack(">4I", read.read(16))
        pixels = torch.frombuffer(bytearray(read.read()), dtype=torch.uint8).view(count, 1, height, width)
    expected = torch.tensor([predicted(options, folder, "--checkpoint", run, "--file", file, "--index", str(i))["logits"] for i in range(3)])
    runs = export(options, folder, run)
    say("mnist", {format: max(same(f"mnist, {format}", torch.cat([forward(part) for part in pixels[:3].split(size)]), expected) for size in (1, 2, 3))
                  for format, forward in runs.items()})
    return run


def check_resnet(options, folder):
    run = os.path.join(folder, "cifar")
    must(options, "train", "cifar", "--data", "shapes", "--model", "resnet18", "--nproc", "1", "--batch-size", "8", "--max-steps", "2", "--output", run)
    file, record = os.path.join(run, "data", "test.bin"), 1 + 3 * 32 * 32
    with open(file, "rb") as read:
        records = torch.frombuffer(bytearray(read.read(3 * record)), dtype=torch.uint8).view(3, record)
    expected = torch.tensor([predicted(options, folder, "--checkpoint", run, "--file", file, "--index", str(i))["logits"] for i in (0, 2)])
    pixels = records[::2, 1:].reshape(2, 3, 32, 32).contiguous()
    say("resnet18", {format: same(f"resnet18, {format}", forward(pixels), expected) for format, forward in export_here(options.formats, folder, run).items()})


def check_texts(options, folder):
    if "transformers" in options.missing:
        return
    from transformers import AutoTokenizer

    run = os.path.join(folder, "text")
    must(options, "train", "text", "--data", "sentences", "--nproc", "1", "--max-steps", "6", "--output", run)
    texts = ["今天真高兴", "我不喜欢这个，因为它太慢了", "a good day"]
    words = [word for text in texts for word in ("--text", text)]
    expected = torch.tensor([each["logits"] for each in predicted(options, folder, "--checkpoint", run, *words)])
    tokenizer = AutoTokenizer.from_pretrained(lockstep_checkpoint.find(run))
    runs = export(options, folder, run)

    def batch(of):
        tokens = tokenizer(of, padding=True, return_tensors="pt")
        return tokens["input_ids"], tokens["attention_mask"], torch.zeros_like(tokens["input_ids"])

    say("text", {format: max(same(f"text, {format}", torch.cat([forward(*batch(part)) for part in parts]), expected)
                             for parts in ([texts], [texts[:2], texts[2:]], [[text] for text in texts])) for format, forward in runs.items()})


def check_language(options, folder):
    run = os.path.join(folder, "lm")
    must(options, "train", "lm", "--data", "sentences", "--nproc", "1", "--max-steps", "30", "--output", run)
    with open(os.path.join(lockstep_checkpoint.find(run), "characters.json"), encoding="utf-8") as read:
        characters = json.load(read)["characters"]
    answer = predicted(options, folder, "--checkpoint", run, "--prompt", "今天", "--temperature", "0", "--max-new-tokens", "8")[0]
    runs = export(options, folder, run)
    begin = [characters.index(character) for character in "今天"]
    for format, forward in runs.items():
        ids = torch.tensor([begin])
        for token in answer["tokens"]:
            following = forward(ids)[0, -1].argmax().item()
            if following != token:
                sys.exit(f"lm, {format}: goes on with {following} behind {ids.tolist()}, and lockstep predict with {token}")
            ids = torch.cat((ids, torch.tensor([[following]])), 1)
    print(f"lm: {len(answer['tokens'])} tokens are those of lockstep predict, in {', '.join(runs)}", flush=True)
    if options.llama and "safetensors" not in options.missing:
        check_model(options, folder, run, "lm", options.llama, runs)


def logits_in_cpp(program, checkpoint, batch, folder):
    """Of llama_parity, or bert_parity."""
    from safetensors.torch import save_file

    work = os.path.join(folder, "cpp")
    os.makedirs(work, exist_ok=True)
    for name in ("config.json", "model.safetensors"):
        target = os.path.join(work, name)
        if os.path.lexists(target):
            os.remove(target)
        os.symlink(os.path.join(checkpoint, name), target)
    save_file(batch, os.path.join(work, "batch.safetensors"))
    is_bert = "bert" in os.path.basename(program)
    ended = subprocess.run([program] + ([os.path.join(work, "config.json")] if is_bert else []) + [work], capture_output=True, text=True)
    if ended.returncode != 0:
        sys.exit(f"{program} ended with {ended.returncode}: {ended.stderr}")
    return lockstep_checkpoint.read_safetensors(os.path.join(work, "logits.safetensors"))[0]["logits"]


def check_model(options, folder, checkpoint, name, program, runs):
    directory = lockstep_checkpoint.find(checkpoint)
    with open(os.path.join(directory, "config.json"), encoding="utf-8") as read:
        config = json.load(read)
    worst = dict.fromkeys(runs, 0.0)
    torch.manual_seed(5)
    for rows, tokens in ((1, 1), (2, 7), (5, 12)):
        ids = torch.randint(0, config["vocab_size"], (rows, tokens))
        if config["model_type"] == "bert":
            mask = (torch.arange(tokens) < torch.randint(1, tokens + 1, (rows, 1))).long()
            types = torch.randint(0, 2, (rows, tokens))
            given, batch = (ids, mask, types), {"ids": ids, "mask": mask, "types": types, "labels": torch.zeros(rows, dtype=torch.int64)}
        else:
            given, batch = (ids,), {"ids": ids, "targets": ids.clone(), "prompt": ids[:, :1].clone()}
        expected = logits_in_cpp(program, directory, batch, folder)
        for format, forward in runs.items():
            worst[format] = max(worst[format], same(f"{name}, {format}, {rows} x {tokens}", forward(*given), expected))
    say(name, worst)


SMALL = {"vocab_size": 61, "hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 4, "max_position_embeddings": 64}
LANGUAGE = {
    "llama3": {"model_type": "llama", "num_key_value_heads": 2, "head_dim": 8, "attention_bias": True, "mlp_bias": True, "tie_word_embeddings": False,
               "rope_parameters": {"rope_type": "llama3", "rope_theta": 500.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                                   "original_max_position_embeddings": 16}},
    "linear": {"model_type": "llama", "num_key_value_heads": 1, "tie_word_embeddings": True, "rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0}},
    "mixtral": {"model_type": "mixtral", "num_key_value_heads": 2, "num_local_experts": 5, "num_experts_per_tok": 2, "sliding_window": None},
    "capacity": {"model_type": "mixtral", "num_key_value_heads": 4, "num_local_experts": 4, "num_experts_per_tok": 2, "capacity_factor": 0.7, "sliding_window": None},
    # Silent on what MixtralConfig has defaults for; embeddings are so small that rms_norm_eps says what comes out.
    "silent": {"model_type": "mixtral", "num_attention_heads": 8, "hidden_size": 32},
    "qwen2_moe": {"model_type": "qwen2_moe", "num_key_value_heads": 4, "num_experts": 4, "num_experts_per_tok": 3, "moe_intermediate_size": 16,
                  "shared_expert_intermediate_size": 32, "norm_topk_prob": True, "qkv_bias": False, "use_sliding_window": False, "decoder_sparse_step": 1,
                  "mlp_only_layers": []},
}
# Without dropout, for the program in C++ runs the model as in training.
BERTS = {"gelu_new": {"model_type": "bert", "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "type_vocab_size": 2, "hidden_act": "gelu_new", "id2label": {"0": "a", "1": "b", "2": "c"}},
         "relu": {"model_type": "bert", "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "type_vocab_size": 2, "hidden_act": "relu", "layer_norm_eps": 1e-6}}


def write_random(folder, name, config, model):
    from safetensors.torch import save_file

    checkpoint = os.path.join(folder, name)
    os.makedirs(checkpoint)
    torch.manual_seed(3)
    scale = {"model.embed_tokens.weight": 0.003} if name == "silent" else {}
    save_file({key: torch.randn_like(value) * scale.get(key, 0.3) for key, value in model.state_dict().items()}, os.path.join(checkpoint, "model.safetensors"))
    with open(os.path.join(checkpoint, "config.json"), "w", encoding="utf-8") as file:
        json.dump(config, file)
    return checkpoint


def check_shapes(options, folder, formats):
    if "safetensors" in options.missing:
        return
    for name, more in LANGUAGE.items() if options.llama else ():
        config = {**SMALL, **more}
        checkpoint = write_random(folder, name, config, lm_twin.TransformerLm(lm_config.read(config)))
        check_model(options, folder, checkpoint, name, options.llama, export_here(formats, folder, checkpoint))
    for name, more in BERTS.items() if options.bert else ():
        config = {**SMALL, **more}
        checkpoint = write_random(folder, name, config, bert_twin.BertClassifier(config, len(more.get("id2label", "ab"))))
        check_model(options, folder, checkpoint, name, options.bert, export_here(formats, folder, checkpoint))


def write_tensors(path, tensors):
    """A safetensors file, without the package."""
    header, data = {}, b""
    for name, tensor in tensors.items():
        part = bytes(tensor.contiguous().view(torch.uint8).flatten().tolist())
        dtype = next(key for key, value in lockstep_checkpoint.DTYPES.items() if value == tensor.dtype)
        header[name] = {"dtype": dtype, "shape": list(tensor.shape), "data_offsets": [len(data), len(data) + len(part)]}
        data += part
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + data)


def export_error(call, *given):
    """The line of an export that is refused."""
    import twins

    try:
        call(*given)
    except twins.ExportError as error:
        if len(str(error).splitlines()) == 1:
            return str(error)
        sys.exit(f"is not one line: {error}")
    sys.exit(f"{call.__name__} of {given} is not refused")


# What lm_config.cpp refuses: of which kind, with which members, by which words.
REFUSED = (
    ("mixtral", {"sliding_window": 4096}, "sliding_window is 4096; give null"),
    ("mixtral", {"router_jitter_noise": 0.1}, "router_jitter_noise is 0.1; give 0"),
    ("mixtral", {"num_local_experts": 0}, "num_local_experts is 0; give 1 or more"),
    ("mixtral", {"num_experts_per_tok": 9}, "num_experts_per_tok is 9"),
    ("mixtral", {"rope_parameters": {"partial_rotary_factor": 0.5}}, "rope_parameters.partial_rotary_factor is set"),
    ("mixtral", {"hidden_act": "gelu"}, "hidden_act is \"gelu\"; give 'silu'"),
    ("qwen2_moe", {"norm_topk_prob": False}, "norm_topk_prob is false; give true"),
    ("qwen2_moe", {"norm_topk_prob": None}, "norm_topk_prob is missing; give true"),
    ("qwen2_moe", {"qkv_bias": True}, "qkv_bias is true; give false"),
    ("qwen2_moe", {"qkv_bias": None}, "qkv_bias is missing; give false"),
    ("qwen2_moe", {"use_sliding_window": True}, "use_sliding_window is true; give false"),
    ("qwen2_moe", {"decoder_sparse_step": 2}, "decoder_sparse_step is 2; give 1"),
    ("qwen2_moe", {"mlp_only_layers": [0]}, "mlp_only_layers is [0]; give empty"),
    ("qwen2_moe", {"shared_expert_intermediate_size": 0}, "shared_expert_intermediate_size is 0"),
    ("qwen2_moe", {"partial_rotary_factor": 1.0, "rope_scaling": {"partial_rotary_factor": 0.25}}, "rope_scaling.partial_rotary_factor is set"),
    ("llama3", {"rope_parameters": {"rope_type": "yarn", "factor": 2.0}}, "rope_parameters.rope_type is \"yarn\"; give default, linear or llama3"),
    ("llama3", {"rope_parameters": {"rope_type": "linear"}}, "rope_parameters.factor is missing; give a number above 0"),
    ("llama3", {"attention_bias": 1}, "attention_bias is 1; give true or false"),
    ("llama3", {"vocab_size": 6.5}, "vocab_size is 6.5; give a whole number"),
)


def check_language_configs(folder):
    import twins

    place = os.path.join(folder, "config")
    os.makedirs(place)
    write_tensors(os.path.join(place, "model.safetensors"), {})
    file = os.path.join(place, "config.json")
    # Without the refused members it goes on to the tensors, which are none.
    for kind, more, expected in (*REFUSED, ("mixtral", {}, None), ("qwen2_moe", {}, None), ("llama3", {}, None)):
        with open(file, "w", encoding="utf-8") as write:
            json.dump({**SMALL, **LANGUAGE[kind], **more}, write)
        said = export_error(twins.of_checkpoint, place)
        if not said.startswith(f"{file}: {expected}" if expected else f"{place}: lacks "):
            sys.exit(f"{kind} with {more}: said {said}, expected {expected}")
    # What LlamaConfig, MixtralConfig and Qwen2MoeConfig have where a file is silent.
    silent = {kind: lm_config.read({"model_type": kind, **({"norm_topk_prob": True, "qkv_bias": False} if kind == "qwen2_moe" else {})})
              for kind in ("llama", "mixtral", "qwen2_moe")}
    for key, *expected in (("rms_norm_eps", 1e-6, 1e-5, 1e-6), ("num_key_value_heads", 32, 8, 16), ("num_local_experts", 0, 8, 60), ("num_experts_per_tok", 2, 2, 4),
                           ("intermediate_size", 11008, 14336, 1408), ("max_position_embeddings", 2048, 131072, 32768), ("vocab_size", 32000, 32000, 151936)):
        if [config[key] for config in silent.values()] != expected:
            sys.exit(f"{key} is {[config[key] for config in silent.values()]} where files are silent, expected {expected}")
    if [config["rope"]["theta"] for config in silent.values()] != [1e4, 1e6, 1e4]:
        sys.exit("rope_theta where files are silent")
    print(f"{len(REFUSED)} configurations that C++ refuses are refused, and defaults are those of the kind", flush=True)


MIXED = """
import torch
from torch import nn
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(5, 4)
        self.norm = nn.LayerNorm(4)
    def forward(self, x):
        return self.norm(self.table(x).float())
def make():
    return Net()
"""


def check_types(options, folder):
    """Parameters of a user's model keep their types: the first one is of bfloat16, and those of the norm have digits that it lacks."""
    torch.manual_seed(6)
    tensors = {"table.weight": torch.randn(5, 4).bfloat16(), "norm.weight": 1 + torch.randn(4) * 1e-3, "norm.bias": torch.randn(4) * 1e-3 + 3}
    twin, weights = os.path.join(folder, "mixed.py"), os.path.join(folder, "mixed.safetensors")
    with open(twin, "w", encoding="utf-8") as file:
        file.write(MIXED)
    write_tensors(weights, tensors)
    ids = torch.tensor([[0, 1, 4], [2, 3, 3]])
    norm = lambda scale, bias: torch.nn.functional.layer_norm(tensors["table.weight"][ids].float(), (4,), scale, bias)  # noqa: E731
    expected = norm(tensors["norm.weight"], tensors["norm.bias"])
    if (norm(tensors["norm.weight"].bfloat16().float(), tensors["norm.bias"].bfloat16().float()) - expected).abs().max() < 1e-4:
        sys.exit("rounded norms give the same: the test cannot fail")
    for format in options.formats:
        output = os.path.join(folder, "mixed" + SUFFIX[format])
        must(options, "export", weights, "--twin", twin, "--input", "x=int64:batch,sequence", "--to", format, "--check", "--output", output, "--python", sys.executable)
        found = opened(output)(ids)
        if found.dtype != torch.float32:
            sys.exit(f"a model of two types, {format}: gives {found.dtype}")
        same(f"a model of two types, {format}", found, expected)
    print(f"a model of two types keeps them, in {', '.join(options.formats)}", flush=True)


# Forwards of x [batch, 4]: what TorchScript's trace of it says, or None where it is written.
FORWARDS = (
    ("return x if x.sum() > 0 else -x", "decides by its data in Python, which TorchScript's trace freezes (twin.py, line 4:"),
    ("return x * x.sum().item()", "decides by its data in Python"),
    ("return sum(x[i] for i in range(x.shape[0])) + x", "decides by its sizes in Python, which TorchScript's trace freezes (it computes otherwise at batch 5)"),
    ("return x * x.shape[0]", None),
    ("assert x.shape[1] == 4; return x * 2", None),
    ("return x, x", "forward gives a tuple, and what is exported gives one tensor"),
    ("return {'y': x}", "forward gives a dict"),
    ("return x @ x", "does not compute x float32 [batch, 4]: RuntimeError: mat1 and mat2"),
)


def check_twin_refusals(options, folder):
    import formats as writers
    import twins

    place = os.path.join(folder, "forwards")
    os.makedirs(place)
    twin, weights, output = (os.path.join(place, name) for name in ("twin.py", "none.safetensors", "out.pt"))
    write_tensors(weights, {})
    for line, expected in FORWARDS:
        with open(twin, "w", encoding="utf-8") as file:
            file.write(f"import torch\nclass Net(torch.nn.Module):\n    def forward(self, x):\n        {line}\ndef make(): return Net()\n")
        made = twins.of_user(weights, twin, ["x=float32:batch,4"])
        if expected is None:
            writers.write(made, "torchscript", output)
            writers.compare(made, "torchscript", output)
            os.remove(output)
            continue
        said = export_error(writers.write, made, "torchscript", output)
        if expected not in said:
            sys.exit(f"{line}: said {said}, expected {expected}")
        if "if x.sum()" in line or "gives" in expected:
            export_error(writers.write, made, "pt2", output)
        if os.path.exists(output):
            sys.exit(f"{line}: is refused, and written")
    # What others raise while the new file is compared is one line, too.
    with open(output, "w", encoding="utf-8") as file:
        file.write("nothing")
    for format in options.formats:
        said = export_error(writers.compare, made, format, output)
        if "the written file cannot be compared with Net: " not in said:
            sys.exit(f"a damaged file of {format}: {said}")
    print(f"{len(FORWARDS)} forwards are exported or refused as they should", flush=True)


def refused(options, code, expected, *words):
    ended = lockstep(options, "export", *words)
    lines = ended.stderr.strip().splitlines()
    if ended.returncode != code or len(lines) != 1 or expected not in lines[0]:
        sys.exit(f"lockstep export {' '.join(words)} ended with {ended.returncode} and said: {ended.stderr}")


def check_refusals(options, folder, run):
    place = os.path.join(folder, "refusals")
    os.makedirs(place)
    python, output = ("--python", sys.executable), os.path.join(place, "model.pt")
    with open(output, "w", encoding="utf-8") as file:
        file.write("mine")
    to = ("--to", "torchscript", "--output", output, *python)
    refused(options, 2, "exists; give --force", run, *to)
    if open(output, encoding="utf-8").read() != "mine":
        sys.exit("an existing file was changed")
    must(options, "export", run, *to, "--force")
    if os.path.getsize(output) < 1000:
        sys.exit("--force replaced nothing")
    fresh = ("--to", "torchscript", "--output", os.path.join(place, "fresh.pt"), *python)
    refused(options, 2, "does not exist", os.path.join(place, "absent"), *fresh)
    # A pickle is not looked at.
    pickled = os.path.join(place, "pickled")
    os.makedirs(pickled)
    torch.save({"weight": torch.zeros(1)}, os.path.join(pickled, "pytorch_model.bin"))
    refused(options, 2, "holds no model.safetensors", pickled, *fresh)
    checkpoint = lockstep_checkpoint.find(run)
    damaged = os.path.join(place, "damaged")
    os.makedirs(damaged)
    for name in ("config.json", "model.safetensors"):
        with open(os.path.join(checkpoint, name), "rb") as source, open(os.path.join(damaged, name), "wb") as target:
            data = source.read()
            target.write(data[:-4000] if name.endswith("safetensors") else data)
    refused(options, 2, "lies outside the file", damaged, *fresh)
    with open(os.path.join(damaged, "config.json"), "w", encoding="utf-8") as file:
        json.dump({"model_type": "gpt2"}, file)
    refused(options, 2, "is of no model of Lockstep's recipes", damaged, *fresh)
    # Twins: of another model, and one whose file cannot be what the twin is.
    twin = os.path.join(place, "twin.py")
    with open(twin, "w", encoding="utf-8") as file:
        file.write("from torch import nn\ndef make(): return nn.Sequential(nn.Linear(2, 3))\n")
    weights = os.path.join(checkpoint, "model.safetensors")
    refused(options, 2, "which the model has", weights, "--twin", twin, "--input", "x=float32:batch,2", *fresh)
    refused(options, 2, "--twin needs --input", weights, "--twin", twin, *fresh)
    with open(twin, "w", encoding="utf-8") as file:
        file.write("import torch\nclass Net(torch.nn.Module):\n    def __init__(self):\n        super().__init__()\n        self.net = torch.nn.Linear(2, 3)\n"
                   "    def forward(self, x): return self.net(x) + torch.rand_like(x[:, :1])\ndef make(): return Net()\n")
    if "safetensors" not in options.missing:
        from safetensors.torch import save_file

        save_file({"net.weight": torch.ones(3, 2), "net.bias": torch.zeros(3)}, os.path.join(place, "drawn.safetensors"))
        refused(options, 2, "nothing is written", os.path.join(place, "drawn.safetensors"), "--twin", twin, "--input", "x=float32:batch,2", "--check", *fresh)
    other = os.path.join(place, "python")
    with open(other, "w", encoding="utf-8") as file:
        file.write("#!/bin/sh\necho 1.2.3\n")
    os.chmod(other, 0o755)
    refused(options, 2, f"{other} has torch 1.2.3", run, "--to", "onnx", "--output", os.path.join(place, "fresh.onnx"), "--python", other)
    refused(options, 2, "No such file or directory", run, "--to", "onnx", "--output", os.path.join(place, "fresh.onnx"), "--python", os.path.join(place, "none"))
    left = set(os.listdir(place)) - {"model.pt", "pickled", "damaged", "twin.py", "drawn.safetensors", "python"}
    if left:
        sys.exit(f"refused exports left {left}")
    print("refusals are one line, and leave nothing")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lockstep", default=os.path.join(ROOT, "build/release/bin/lockstep"))
    parser.add_argument("--llama", help="the program llama_parity, for further shapes")
    parser.add_argument("--bert", help="the program bert_parity, for further shapes")
    parser.add_argument("--short", action="store_true", help="one trained model, and the further shapes in TorchScript")
    options = parser.parse_args()
    options.missing = missing_packages()
    options.formats = [name for name in SUFFIX if name != "onnx" or not {"onnx", "onnxscript", "onnxruntime"} & options.missing.keys()]
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        run = check_pictures(options, folder)
        if not options.short:
            check_resnet(options, folder)
            check_texts(options, folder)
            check_language(options, folder)
            check_types(options, folder)
        check_shapes(options, folder, ["torchscript"] if options.short else options.formats)
        check_language_configs(folder)
        check_twin_refusals(options, folder)
        check_refusals(options, folder, run)
    if options.missing:
        print("skipped: parts of it, the rest holds: " + "; ".join(f"{sys.executable} cannot import {name} ({why})" for name, why in options.missing.items()))
        sys.exit(SKIPPED)


if __name__ == "__main__":
    main()
