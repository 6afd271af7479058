#!/usr/bin/env python3
"""Tutorial 003's nine methods on the built-in sentences, a few steps each: the tutorial's lines, the result file, a checkpoint that
`lockstep eval` and `lockstep predict` take, and that transformers opens with the same logits; and without dropout, with the same texts
in a step, the losses of one process.

    examples/methods_test.py --bin build/release/bin [METHOD...]
"""
import argparse
import json
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile

STEPS, SAME_STEPS, DEVICE_STEPS = 4, 12, 3
METHODS = {  # the way it is started, the steps of an epoch of 4,000 sentences
    "single": ("alone", 125), "data_parallel": ("alone", 125), "distributed": ("run", 63), "distributed_spawn": ("alone", 63),
    "distributed_amp": ("run", 63), "horovod": ("run", 63), "zero_engine": ("run", 63), "accelerator": ("run", 63),
    "trainer": ("run", 63)}
LOSS_TOLERANCE = {"distributed_amp": 2e-2, "horovod": 1e-3}  # bfloat16; gradients sent in 16 bits
TEXT = "今天 真是 太 开心 了"


def fail(message, output=""):
    sys.exit(f"{message}\n{output}")


def run(command, folder):
    done = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=300,
                          env={**os.environ, "OMP_NUM_THREADS": "1"})
    if done.returncode != 0:
        fail(f"{' '.join(command)} ended with {done.returncode}", done.stdout)
    return done.stdout


def command_of(bin_dir, method, output, steps=STEPS, device=False):
    way, _ = METHODS[method]
    start = [os.path.join(bin_dir, "lockstep"), "run", "--nproc-per-node", "2"] if way == "run" else []
    if device:  # two, that the host plays
        library = os.path.join(os.path.dirname(bin_dir), "lib/lockstep/liblockstep_fake_cuda.so")
        start += ["env", f"LD_PRELOAD={library}", "LOCKSTEP_FAKE_CUDA=2", "LOCKSTEP_DEVICE=cuda"]
    return start + [os.path.join(bin_dir, "examples/text_classification", method), "--max-steps", str(steps), "--recipe", "tutorial",
                    "--max-length", "24", "--output", output, "--json", output + ".json"]


def losses(bin_dir, method, model, folder, steps=SAME_STEPS, device=False):
    """Of 32 texts a step over all ranks."""
    output = os.path.join(folder, ("device_" if device else "same_") + method)
    batch = 32 // (2 if METHODS[method][1] == 63 else 1)
    printed = run(command_of(bin_dir, method, output, steps, device) + ["--model", model, "--batch-size", str(batch)], folder)
    if "race: " in printed:
        fail(f"{method} has races on devices", printed)
    with open(output + ".json") as file:
        return json.load(file)["losses"]


def model_without_dropout(bin_dir, folder):
    """single's checkpoint as a model to start from, with dropout 0; made once."""
    model = os.path.join(folder, "without_dropout")
    if os.path.isdir(model):
        return model
    saved = os.path.join(folder, "single", "checkpoints", "best")
    if not os.path.isdir(saved):
        run(command_of(bin_dir, "single", os.path.join(folder, "single")), folder)
    os.mkdir(model)
    for name in ("model.safetensors", "vocab.txt"):
        shutil.copy(os.path.join(saved, name), model)
    with open(os.path.join(saved, "config.json")) as file:
        settings = json.load(file)
    settings["hidden_dropout_prob"] = settings["attention_probs_dropout_prob"] = 0.0
    with open(os.path.join(model, "config.json"), "w") as file:
        json.dump(settings, file)
    return model


def check_same_losses(bin_dir, method, folder, of_single):
    """`of_single`: single's losses, which the first method to be compared fills in."""
    model = model_without_dropout(bin_dir, folder)
    if not of_single:
        of_single += losses(bin_dir, "single", model, folder)
        check_on_devices(bin_dir, "single", model, folder, of_single)
    together = losses(bin_dir, method, model, folder)
    worst = max(abs(a - b) for a, b in zip(of_single, together))
    if len(of_single) != SAME_STEPS or len(together) != len(of_single) or worst > LOSS_TOLERANCE.get(method, 1e-5):
        fail(f"{method}: losses differ from single's by up to {worst}: {together} and {of_single}")
    print(f"single's losses within {worst:.1e}")
    check_on_devices(bin_dir, method, model, folder, of_single)


def check_on_devices(bin_dir, method, model, folder, of_single):
    if DEVICE_STEPS == 0:
        return
    on_devices = losses(bin_dir, method, model, folder, DEVICE_STEPS, device=True)
    worst = max(abs(a - b) for a, b in zip(of_single, on_devices))
    if len(on_devices) != DEVICE_STEPS or worst > max(LOSS_TOLERANCE.get(method, 0), 1e-4):
        fail(f"{method}: losses on devices differ from single's by up to {worst}: {on_devices} and {of_single}")
    print(f"{method} on devices: single's losses within {worst:.1e}")


def check_lines(method, output):
    ranks = METHODS[method][1] == 63
    wanted = [r"【dev】 loss：\d\.\d{6} accuracy：0\.\d{4}", r"【best accuracy】 0\.\d{4}", r"耗时：\d\.\d{4}分钟"]
    wanted += [rf"【train】 epoch：1/1 step：{step}/{STEPS} loss：\d\.\d{{6}}" for step in range(1, STEPS + 1)]
    if ranks:
        wanted += [r"\[\d+\] Initializing process group with: \{'MASTER_ADDR': '127\.0\.0\.1', 'MASTER_PORT': '\d+', 'RANK': '1', "
                   r"'WORLD_SIZE': '2', 'LOCAL_RANK': '1'\}",
                   r"\[\d+\] rank = 1, world_size = 2, n = 1, device_ids = \[1\] "]
    for line in wanted:
        if not re.search(f"^{line}$", output, re.MULTILINE):
            fail(f"{method}: no line like {line}", output)


def check_result(method, folder):
    with open(os.path.join(folder, method + ".json")) as file:
        result = json.load(file)
    ranks = 2 if METHODS[method][1] == 63 else 1
    expected = {"method": method, "steps": STEPS, "samples": STEPS * 32 * ranks, "batch_size": 32, "padding": "max_length",
                "dtype": "bfloat16" if method == "distributed_amp" else "float32"}
    for name, value in expected.items():
        if result[name] != value:
            fail(f"{method}: {name} is {result[name]}, expected {value}")
    if len(result["losses"]) != STEPS or sum(map(sum, result["confusion"])) != 500:
        fail(f"{method}: {len(result['losses'])} losses, {sum(map(sum, result['confusion']))} texts evaluated")
    if len(result["peak_memory_mib"]) != ranks or not all(value > 0 for value in result["peak_memory_mib"]):
        fail(f"{method}: peak_memory_mib is {result['peak_memory_mib']}")
    return result


def check_use(bin_dir, method, folder, result):
    lockstep = os.path.join(bin_dir, "lockstep")
    checkpoint = os.path.join(folder, method)
    found = os.path.join(folder, "eval.json")
    run([lockstep, "eval", "--checkpoint", checkpoint, "--data", "data/sentences", "--json", found], folder)
    with open(found) as file:
        evaluation = json.load(file)
    # An evaluation in 16 bits need not agree to the last text.
    if abs(evaluation["accuracy"] - result["dev_accuracy"]) > (0.01 if result["dtype"] != "float32" else 1e-9):
        fail(f"{method}: eval says {evaluation['accuracy']}, the run {result['dev_accuracy']}")
    answers = os.path.join(folder, "predict.json")
    printed = run([lockstep, "predict", "--checkpoint", checkpoint, "--text", TEXT, "--json", answers], folder)
    line = "=" * 100
    table = rf"checkpoint +text +label +probability\n[ -]+\n{method} +1 +\d \(\1\) +\d+\.\d\d %\n"
    if not re.fullmatch(rf"{line}\n{method}\n文本： {TEXT}\n预测： (\S+)\n{line}\n\n{table}", printed):
        fail(f"{method}: predict does not print the tutorial's block", printed)
    with open(answers) as file:
        return json.load(file)[0]


def check_launch_lines(bin_dir, folder):
    """Tutorial 003's two lines for `distributed`, after "python -m torch.distributed.launch", and what contradicts them."""
    program = os.path.join(bin_dir, "examples/text_classification/distributed")
    lockstep, rest = os.path.join(bin_dir, "lockstep"), ["--max-steps", "1", "--max-length", "8", "--output", os.path.join(folder, "lines")]
    start = [lockstep, "run", "--nnode=1", "--node_rank=0", "--nproc_per_node=2"]
    for flag in ("--use_env", "--no-use-env"):
        printed = run([*start, flag, program, "--local_world_size=2", *rest], folder)
        if "world_size = 2" not in printed:
            fail(f"the tutorial's line with {flag} does not start two ranks", printed)
    wrong = subprocess.run([*start, program, "--local_world_size=3", *rest], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                           text=True, timeout=300)
    if wrong.returncode != 2 or "--local_world_size is 3, but the launcher has started 2 ranks here" not in wrong.stderr:
        fail("a wrong --local_world_size is not refused", wrong.stderr)


def check_output(bin_dir, method, folder):
    """What is in the way of the output is said before the first step, and a run that fails before it leaves no folder."""
    with open(os.path.join(folder, "file"), "w"):
        pass

    def refuse(output, says, more=(), **how):
        command = command_of(bin_dir, method, os.path.join(folder, output)) + list(more)
        done = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=300, **how)
        if done.returncode != 2 or says not in done.stderr or "【train】" in done.stdout:
            fail(f"{' '.join(command)} ended with {done.returncode}", done.stdout + done.stderr)

    refuse("file", "output " + os.path.join(folder, "file") + " cannot be made")
    refuse("new/deep", "nothing", ["--data", os.path.join(folder, "nothing")])
    if method == "single":  # a full disk: no file may grow
        refuse("new/deep", "cannot be written", restore_signals=False,
               preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.getrlimit(resource.RLIMIT_FSIZE)[1])))
    if os.path.exists(os.path.join(folder, "new")):
        fail("a folder without anything in it is left")


def check_recipe(bin_dir, folder):
    """`lockstep train text` is the program distributed: the same losses to the last bit, dropout and schedule included."""
    small = os.path.join(folder, "small")
    os.mkdir(small)
    for name in ("labels.txt", "vocab.txt"):
        shutil.copy(os.path.join(folder, "data/sentences", name), small)
    for name, count in (("train", 250), ("dev", 20)):
        with open(os.path.join(folder, "data/sentences", name + ".json"), encoding="utf-8") as file:
            rows = json.load(file)[:count]
        with open(os.path.join(small, name + ".json"), "w", encoding="utf-8") as file:
            json.dump(rows, file, ensure_ascii=False)
    lockstep, same = os.path.join(bin_dir, "lockstep"), ["--data", small, "--epochs", "2", "--batch-size", "16"]
    run([lockstep, "run", "--nproc-per-node", "2", os.path.join(bin_dir, "examples/text_classification/distributed"), *same,
         "--output", os.path.join(folder, "program"), "--json", os.path.join(folder, "program.json")], folder)
    run([lockstep, "train", "text", *same, "--nproc", "2", "--log-every", "1", "--output", os.path.join(folder, "recipe"), "--quiet"], folder)
    with open(os.path.join(folder, "program.json")) as file:
        program = json.load(file)["losses"]
    with open(os.path.join(folder, "recipe", "metrics.jsonl")) as file:
        recipe = [line["loss"] for line in map(json.loads, file) if line["type"] == "train"]
    if len(program) != 16 or recipe != program:
        fail(f"lockstep train text: losses {recipe}, those of distributed are {program}")
    print("lockstep train text: the same losses, bit for bit")


def check_former_run(bin_dir, method, folder):
    """A second run into one output moves what the first has left."""
    output = os.path.join(folder, method)
    run(command_of(bin_dir, method, output, 1), folder)
    left = ["checkpoints/best/model.safetensors"] + (["trainer/metrics.jsonl"] if method == "trainer" else [])
    for place in ("", "previous"):
        for file in left:
            if not os.path.exists(os.path.join(output, place, file)):
                fail(f"{method}: {place or 'the run'} has no {file}")


def check_english(bin_dir, folder):
    """Spaces stay, so that words are words; --remove-spaces takes them out, and predict does what training did."""
    data = os.path.join(folder, "english")
    os.mkdir(data)
    words = ["a", "film", "gorgeous", "dull", "wit", "##ty", "seductive", ",", "is", "it"]
    with open(os.path.join(data, "vocab.txt"), "w") as file:
        file.write("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words]) + "\n")
    for part, rows in (("train", 32), ("dev", 4)):
        with open(os.path.join(data, part + ".tsv"), "w") as file:
            file.writelines(f"{'a gorgeous, witty film' if row % 2 else 'it is a dull film'}\t{row % 2}\n" for row in range(rows))
    text = "it is a gorgeous, witty film"
    answers = {}
    for flags in ([], ["--remove-spaces"]):
        output = os.path.join(folder, "trained" + "".join(flags))
        run([os.path.join(bin_dir, "examples/text_classification/single"), "--data", data, "--max-steps", "1", "--output", output, *flags],
            folder)
        with open(os.path.join(output, "checkpoints/best/lockstep.json")) as file:
            if json.load(file)["preprocessing"]["remove_spaces"] != bool(flags):
                fail(f"the checkpoint does not record the spaces of {flags}")
        found = os.path.join(folder, "english.json")
        printed = run([os.path.join(bin_dir, "lockstep"), "predict", "--checkpoint", output, "--text", text, text.replace(" ", ""),
                       "--json", found], folder)
        with open(found) as file:
            answers[bool(flags)] = json.load(file)
        # Classes that are numbers are not called anything else, Chinese names least of all.
        if not re.search(r"^trained\S* +1  [01] +\d+\.\d\d %$", printed, re.MULTILINE):
            fail("predict does not say the class and its probability", printed)
        if not re.search(rf"^Text: {answers[bool(flags)][0]['text']}\nPredicted: [01]\n=", printed, re.MULTILINE):
            fail("predict does not speak English of English texts", printed)
    kept, removed = ([one["text"] for one in answers[flag]] for flag in (False, True))
    if kept != [text, text.replace(" ", "")] or removed != [text.replace(" ", "")] * 2:
        fail(f"spaces: {kept}, and without them {removed}")
    for what, split, samples in ((["train.tsv"], "all", 32), (["train.tsv", "--split", "dev"], "dev", 3), (["."], "dev", 4)):
        printed = run([os.path.join(bin_dir, "lockstep"), "eval", "--checkpoint", output, "--data", os.path.join(data, what[0]), *what[1:],
                       "--json", found], folder)
        with open(found) as file:
            evaluation = json.load(file)
        if (evaluation["split"], evaluation["samples"]) != (split, samples) or f"on {samples} texts (" not in printed:
            fail(f"eval of {what} does not measure the {samples} texts of {split}", printed)
    # Words are looked up as such: run together they are one unknown word.
    if answers[False][0]["logits"] == answers[False][1]["logits"]:
        fail("a text without its spaces has the same word pieces")
    print("English keeps its spaces")


def check_transformers(method, folder, answer):
    try:
        import torch
        from transformers import BertForSequenceClassification, BertTokenizer
    except ImportError as missing:
        print(f"skipped: transformers' side: {missing}")
        return
    path = os.path.join(folder, method, "checkpoints", "best")
    model = BertForSequenceClassification.from_pretrained(path).eval()
    tokenizer = BertTokenizer.from_pretrained(path)
    with torch.no_grad():
        logits = model(**tokenizer(TEXT, return_tensors="pt")).logits[0]
    worst = max(abs(mine - theirs) for mine, theirs in zip(answer["logits"], logits.tolist()))
    if worst > 1e-5 or model.config.id2label[answer["label"]] != answer["name"]:
        fail(f"{method}: transformers' logits differ by {worst}")
    print(f"transformers opens the checkpoint: logits within {worst:.1e}")


def check(bin_dir, method, folder, of_single):
    output = run(command_of(bin_dir, method, os.path.join(folder, method)), folder)
    check_lines(method, output)
    result = check_result(method, folder)
    check_output(bin_dir, method, folder)
    answer = check_use(bin_dir, method, folder, result)
    if method == "single":
        check_english(bin_dir, folder)
    if method == "distributed":
        check_launch_lines(bin_dir, folder)
        check_transformers(method, folder, answer)
        check_recipe(bin_dir, folder)
    if method != "single":
        check_same_losses(bin_dir, method, folder, of_single)
    if method in ("single", "trainer"):
        check_former_run(bin_dir, method, folder)
    print(f"{method}: {STEPS} steps, losses {result['losses'][0]:.4f} to {result['losses'][-1]:.4f}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", required=True)
    parser.add_argument("methods", nargs="*", metavar="METHOD", help=f"of {', '.join(METHODS)}; all of them if none is named")
    parser.add_argument("--no-devices", action="store_true", help="not on devices that the host plays, as where libtorch has CUDA")
    options = parser.parse_args()
    global DEVICE_STEPS
    DEVICE_STEPS = 0 if options.no_devices else DEVICE_STEPS
    if unknown := set(options.methods) - set(METHODS):
        parser.error(f"there is no method {', '.join(sorted(unknown))}")
    of_single = []
    with tempfile.TemporaryDirectory() as folder:
        for method in options.methods or METHODS:
            check(os.path.abspath(options.bin), method, folder, of_single)


if __name__ == "__main__":
    main()
