#!/usr/bin/env python3
"""Runs one example one way and checks what it prints and leaves.

usage: examples_test.py --bin FOLDER [--launcher FILE] EXAMPLE alone|run|openmpi|mpich|torchrun|device

FOLDER holds lockstep and examples/. `alone` starts the program itself, `run` is lockstep run; `openmpi`, `mpich` and
`torchrun` use the launcher FILE, an mpirun or torchrun. Exit status 77: it is not installed. `device` is lockstep run with
LOCKSTEP_DEVICE=cuda, on devices that the host plays.
"""
import argparse
import json
import os
import random
import re
import struct
import subprocess
import sys
import tempfile
import time

SKIPPED = 77
MPIRUNS = {"openmpi": ("Open MPI", "openmpi-bin", "Open MPI|OpenRTE"), "mpich": ("MPICH", "mpich", "HYDRA")}
EPOCHS = 2
# On how many ranks one runs under `lockstep run`, where that is not 2 and 3. Those that call each other have work of their own for each.
# Those that train long run once there: `alone` trains on two ranks as threads, and three are no other mesh for context_parallel.
RUN_RANKS = {"reinforce": [2, 4], "parameter_server": [2, 4], "pipeline_resnet": [3], "ddp_embedding": [3, 4],
             "language_model": [3], "context_parallel": [2], "divided_models": [2]}

# Ranks and devices of the way `device`, where they are not 2 and 2.
ON_DEVICES = {"data_parallel": (1, 2), "model_parallel": (2, 4), "primitives": (4, 4), "groups": (4, 4), "products": (4, 4),
              "divided_checkpoint": (4, 4), "divided_models": (4, 4)}

MATRIX = {
    1: ["[0 1 2 3 4 5 6 7]", "[[ 0  1  4  9 16 25 36 49]]"],
    2: ["[0 1 2 3]", "[4 5 6 7]", "[[ 0  1  4  9]\n [16 25 36 49]]"],
    3: ["[0 1 2]", "[3 4 5]", "[6 7]", "[[ 0  1  4]\n [ 9 16 25]\n [36 49]]"],
}


def write_mnist(folder):
    """MNIST's four files with a few pictures: noise, a little brighter at the place of the label."""
    os.makedirs(folder)
    rng = random.Random(1)
    for name, count in (("train", 256), ("t10k", 64)):
        labels = bytes(i % 10 for i in range(count))
        images = bytearray(rng.randbytes(count * 784))
        for i, label in enumerate(labels):
            images[i * 784 + label * 78:i * 784 + label * 78 + 78] = b"\xff" * 78
        with open(f"{folder}/{name}-images-idx3-ubyte", "wb") as f:
            f.write(struct.pack(">4i", 0x803, count, 28, 28) + images)
        with open(f"{folder}/{name}-labels-idx1-ubyte", "wb") as f:
            f.write(struct.pack(">2i", 0x801, count) + labels)


class Job:
    """How a program is started: `ranks` of them by a launcher, or as many as it likes (None) by itself."""

    def __init__(self, options, way, ranks):
        self.options, self.way, self.ranks = options, way, ranks

    def launcher(self):
        if self.way == "device":
            library = os.path.join(os.path.dirname(self.options.bin), "lib/lockstep/liblockstep_fake_cuda.so")
            devices = ON_DEVICES.get(self.options.example, (2, 2))[1]
            return [f"{self.options.bin}/lockstep", "run", "--nproc-per-node", str(self.ranks), "env", f"LD_PRELOAD={library}",
                    f"LOCKSTEP_FAKE_CUDA={devices}", "LOCKSTEP_DEVICE=cuda"]
        if self.way == "run":
            return [f"{self.options.bin}/lockstep", "run", "--nproc-per-node", str(self.ranks)]
        if self.way == "hosts":
            return [f"{self.options.bin}/lockstep", "run", "-np", str(self.ranks), "-H", f"localhost:{self.ranks}"]
        if self.way == "roles":
            return [f"{self.options.bin}/lockstep", "run", "--role", "ps=1", "--role", f"trainer={self.ranks - 1}"]
        if self.way == "openmpi":
            root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
            return [self.options.launcher, *root, "--oversubscribe", "-n", str(self.ranks)]
        if self.way == "mpich":
            return [self.options.launcher, "-n", str(self.ranks)]
        if self.way == "torchrun":
            return [self.options.launcher, "--no-python", "--nproc-per-node", str(self.ranks)]
        return []

    def output(self, example, *arguments):
        command = [*self.launcher(), f"{self.options.bin}/examples/{example}", *arguments]
        # One thread a rank, so that two ways to run the same ranks give the same numbers.
        done = subprocess.run(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8", timeout=120)
        noise = done.stderr if self.way in ("alone", "run", "hosts", "roles", "device") else ""
        if done.returncode != 0 or noise:
            sys.exit(f"{' '.join(command)}\nexit status {done.returncode}\n{done.stdout}{done.stderr}")
        return done.stdout


def expect(what, got, expected):
    if got != expected:
        sys.exit(f"{what}:\n{got}\nexpected:\n{expected}")


def expect_lines(what, got, expected):
    """The same lines in any order: ranks need not take turns."""
    expect(what, sorted(got.splitlines()), sorted(expected))


def partitioner(job):
    text = "Training set: [3, 9, 4, 6, 7, 5, 10]\nValidation set: [1, 2]\nTest set: [8]\n"
    expect("partitioner", job.output("partitioner"), text * (job.ranks or 1))


def hello_world(job):
    expect_lines("hello_world", job.output("hello_world"),
                 [f"Hello world from process {r}" for r in range(job.ranks or 1)])


def matrix(job):
    ranks = job.ranks or 1
    *parts, squares = MATRIX[ranks]
    text = f"当前的world_size为： {ranks}\n原始数据为：\n [0 1 2 3 4 5 6 7]\n"
    for rank, part in enumerate(parts):
        text += f"rank-{rank} 拿到的数据为：\n {part}\n"
    text += f"元素和为： 28\n按元素平方后的结果为：\n {squares}\n"
    expect("matrix", job.output("matrix"), text)


def primitives(job):
    expect("primitives", job.output("primitives"), f"five primitives on {job.ranks or 4} ranks: as expected\n")


def groups(job):
    expect("groups", job.output("groups"), f"groups of {job.ranks or 4} ranks: as expected\n")


def data_parallel(job):
    lines = job.output("data_parallel").splitlines()
    ranks = job.ranks or 1
    # On one GPU or none: there is a line that says so. Ranks and replicas take no turns.
    expect("lines", len(lines), (5 if job.way == "device" else 6) * ranks)
    expect_lines("data_parallel", "\n".join(line for line in lines if not line.startswith("Fewer than two GPUs")), ranks * [
        "You have 2 GPUs!",
        "Outside: torch.Size([17, 2]) torch.Size([15, 3])",
        "In Model: torch.Size([9, 2]) torch.Size([8, 3])",
        "In Model: torch.Size([8, 2]) torch.Size([7, 3])",
        "torch.Size([8, 10])"])


def model_parallel(job):
    ranks = job.ranks or 2
    got = job.output("model_parallel").replace(" (too few GPUs)", "")
    if job.way != "device":
        got = re.sub(r"on cuda:\d", "on cpu", got)
    places = [(f"cuda:{2 * r}", f"cuda:{2 * r + 1}") if job.way == "device" else ("cpu", "cpu") for r in range(ranks)]
    expect_lines("model_parallel", got,
                 [f"rank {r} of {ranks}: net1 on {places[r][0]}, net2 on {places[r][1]}; alone and under DDP the same parameters"
                  for r in range(ranks)])


def ddp_linear(job):
    ranks = job.ranks or 2
    got = re.sub(r"loss \d\.\d{4}", "loss #", job.output("ddp_linear"))
    expect_lines("ddp_linear", got,
                 [f"rank {r} of {ranks}: loss #, parameters equal on all ranks" for r in range(ranks)])


# Writes a model for the example, and says how well what the example saved has learned.
SCRIPTED = """
import sys, torch
torch.manual_seed(1)
model = torch.nn.Sequential(torch.nn.Linear(2, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
if sys.argv[1] == "write":
    torch.jit.script(model).save(sys.argv[2])
else:
    x = torch.rand(1000, 2) * 2 - 1
    print((torch.jit.load(sys.argv[2])(x) - x.prod(1, keepdim=True)).square().mean().item())
"""


def torchscript(job):
    def losses(text):
        got = re.fullmatch(r"step 0: loss (\d\.\d{3})\nstep 300: loss (\d\.\d{3})\n(saved as trained.pt\n)?", text)
        if not got or float(got[2]) > 0.02 or float(got[2]) > float(got[1]) / 4:
            sys.exit(f"torchscript has not learned:\n{text}")

    losses(job.output("torchscript"))
    if job.way != "run" or job.ranks != 2:
        return
    try:
        subprocess.run([job.options.python, "-c", SCRIPTED, "write", "model.pt"], check=True, stderr=subprocess.PIPE)
    except (OSError, subprocess.CalledProcessError):
        print(f"torchscript: {job.options.python} has no torch, so no file of Python's was trained")
        return
    losses(job.output("torchscript", "model.pt", "trained.pt"))
    error = subprocess.run([job.options.python, "-c", SCRIPTED, "read", "trained.pt"], check=True, stdout=subprocess.PIPE, encoding="utf-8")
    if float(error.stdout) > 0.02:
        sys.exit(f"Python finds an error of {error.stdout} in what torchscript has saved")


def check_trace(file, ranks):
    """That the file is as the Trace Event Format asks for, and that the events of a track lie within each other or apart.
    Returns its complete events."""
    with open(file, encoding="utf-8") as f:
        trace = json.load(f)
    tracks, complete = {}, []
    for event in trace["traceEvents"]:
        where = (event["pid"], event["tid"])
        if event["ph"] == "M":
            if event["name"] == "thread_name":
                tracks[where] = (event["args"]["name"], [])
            continue
        expect("phase", event["ph"], "X")
        for field, kind in (("name", str), ("cat", str), ("ts", (int, float)), ("dur", (int, float))):
            if not isinstance(event[field], kind):
                sys.exit(f"{file}: {field} of {event}")
        tracks[where][1].append(event)
        complete.append(event)
    expect("ranks with a loop", sorted(pid for (pid, _), (name, _) in tracks.items() if name == "loop"), list(range(ranks)))
    for (pid, _), (name, events) in tracks.items():
        open_until = []
        for event in sorted(events, key=lambda e: (e["ts"], -e["dur"])):
            end = event["ts"] + event["dur"]
            # Times are nanoseconds, written with three digits behind the point.
            while open_until and open_until[-1] <= event["ts"] + 1e-4:
                open_until.pop()
            if open_until and end > open_until[-1] + 1e-4:
                sys.exit(f"{file}: {event} crosses another event of track {name} of rank {pid}")
            open_until.append(end)
    return complete


def timeline(job):
    ranks = job.ranks or 2
    expect("timeline", job.output("timeline"), f"wrote trace.json of {ranks} ranks\n")
    events = check_trace("trace.json", ranks)
    for rank in range(ranks):
        own = [event for event in events if event["pid"] == rank]
        expect("steps", [event["args"]["number"] for event in own if event["name"] == "step" and event["cat"] == "loop"], [3, 4, 5])
        for part in ("forward", "backward", "optimizer"):
            expect(part, sum(event["name"] == part and event["cat"] == "loop" for event in own), 3)
            # When the device did it.
            expect(f"{part} on a device", sum(event["name"] == part and event["cat"] == "device" for event in own),
                   3 if job.way == "device" else 0)
        if not any(event["cat"] == "collective" and "bucket" in event["name"] for event in own):
            sys.exit(f"rank {rank} has no bucket")
    done = subprocess.run([f"{job.options.bin}/lockstep", "doctor", "--trace", "."], stdout=subprocess.PIPE, encoding="utf-8", timeout=60)
    expect("doctor", done.returncode, 0)
    if f"Timeline of {ranks} ranks, steps 3:5" not in done.stdout or "hidden behind the ranks' own work" not in done.stdout:
        sys.exit(done.stdout)


def mixed_precision(job):
    ranks = job.ranks or 2
    losses = re.findall(r"loss (\d\.\d\d) to (\d\.\d\d)", job.output("mixed_precision"))
    expect("lines", len(losses), 2 * ranks)
    for before, after in losses:
        expect(f"the loss falls from {before} to {after}", float(after) < 0.7 * float(before), True)


def uneven_inputs(job):
    ranks = job.ranks or 2
    lines = re.findall(r"rank (\d): (\d+) batches, weight (\d\.\d+), bias (\d\.\d+)", job.output("uneven_inputs"))
    expect("batches", sorted((int(r), int(n)) for r, n, _, _ in lines),
           [(r, 40 * -(-max(1, 10 - 3 * r) // 4)) for r in range(ranks)])
    expect("the same model everywhere", len({line[2:] for line in lines}), 1)
    expect("weight and bias", [round(float(x)) for x in lines[0][2:]], [2, 1])


def fine_tuning(job):
    trained, every, first, last, largest = re.search(
        r"trained (\d+) of (\d+) parameters, loss (\S+) to (\S+), layer4 up to (\S+)", job.output("fine_tuning")).groups()
    expect("parameters of the new head, and all", (int(trained), int(every)), (512 * 3 + 3, 11168832 + 512 * 3 + 3))
    if not float(last) < float(first) or not float(largest) > 0:
        sys.exit(f"the loss goes from {first} to {last}, layer4 up to {largest}")


def language_model(job):
    # On devices that the host plays all of them would take minutes.
    steps = "20" if job.way == "device" else "300"
    first, last, ranks, right, sums = re.search(rf"loss (\S+) to (\S+) after {steps} steps on (\d+) ranks; (\d+) of (\d+) sums are right",
                                                job.output("language_model", steps)).groups()
    expect("ranks and sums", (int(ranks), int(sums)), (job.ranks or 2, 66))
    if job.way == "device" and float(last) < float(first):
        return
    if not float(last) < 0.3 * float(first) or int(right) < 55:
        sys.exit(f"the loss goes from {first} to {last}, and {right} sums are right")


def pipeline(job):
    ranks = job.ranks or 2
    if job.way == "device":  # where 60 steps would take long
        lines = re.findall(r"stage (\d) of \d by 1f1b: loss (\d\.\d\d) to (\d\.\d\d);", job.output("pipeline", "15", "1f1b"))
        expect("stages", sorted(int(stage) for stage, *_ in lines), list(range(ranks)))
        for _, first, last in lines:
            expect(f"the loss falls from {first} to {last}", float(last) < float(first), True)
        return
    runs = {}
    for schedule in ("zb-h1", "1f1b"):
        lines = re.findall(r"stage (\d) of (\d) by \S+: loss (\d\.\d\d) to (\d\.\d\d); has (\d+) parameters, "
                           r"holds (\d) activations", job.output("pipeline", "60", schedule))
        expect("stages", sorted((int(s), int(n)) for s, n, *_ in lines), [(s, ranks) for s in range(ranks)])
        runs[schedule] = {float(last) for _, _, _, last, *_ in lines}
        expect("the ranks know one loss", len(runs[schedule]), 1)
        for *_, first, last, _, held in lines:
            expect(f"the loss falls from {first} to {last}", float(last) < 0.7 * float(first), True)
            expect(f"{held} activations are held", int(held) <= ranks, True)
    expect("the loss of both schedules", runs["zb-h1"], runs["1f1b"])
    with tempfile.TemporaryDirectory() as folder:
        file = os.path.join(folder, "step.json")
        job.output("pipeline", "2", "1f1b", file)
        table = subprocess.run([os.path.join(job.options.bin, "lockstep"), "plan", "--measured", file, "--svg", file + ".2.svg"], stdout=subprocess.PIPE,
                               text=True, check=True).stdout
        expect("lines of formula, plan and measurement", [re.match(r"(formula|planned|measured) ", line) is not None
                                                          for line in table.split("\n")[4:7]], [True] * 3)
        with open(file + ".svg") as ours, open(file + ".2.svg") as again:
            expect("the picture of the same step", again.read(), ours.read())


def tensor_parallel(job):
    ranks = job.ranks or 2
    first, last, data, tensor, own, everything, counted = re.search(
        r"loss (\S+) to (\S+) on (\d+) x (\d+) ranks, of which one has (\d+) of (\d+) parameters\n(.*)",
        job.output("tensor_parallel")).groups()
    expect("ranks", (int(data), int(tensor)), (1, 2) if ranks == 2 else (ranks, 1))
    expect("the number", counted, "10 11 12 13 14 15 16")
    if not float(last) < 0.3 * float(first) or not int(own) <= (0.52 if ranks == 2 else 1) * int(everything):
        sys.exit(f"the loss goes from {first} to {last}, with {own} of {everything} parameters")


def expert_parallel(job):
    ranks = job.ranks or 2
    first, last, data, expert, own, everything, share, counted = re.search(
        r"loss (\S+) to (\S+) on (\d+) x (\d+) ranks, of which one has (\d+) of (\d+) parameters\n"
        r"the busiest expert of layer 0 has (\d+) % of the choices\n(.*)", job.output("expert_parallel")).groups()
    expect("ranks", (int(data), int(expert)), (1, 2) if ranks == 2 else (ranks, 1))
    expect("the number", counted, "10 11 12 13 14 15 16")
    if not float(last) < 0.4 * float(first) or not int(own) <= (0.7 if ranks == 2 else 1) * int(everything):
        sys.exit(f"the loss goes from {first} to {last}, with {own} of {everything} parameters")
    if not 12 <= int(share) <= 50:
        sys.exit(f"the busiest expert has {share} %")


def products(job):
    ranks = job.ranks or 4
    output = job.output("products")
    own, everything, first, last, counted = re.search(
        r"rank 0 has (\d+) of (\d+) parameters\nloss (\S+) to (\S+)\n(.*)", output).groups()
    mesh, share = {2: ("tensor=2 of 2 ranks", 0.52), 3: ("data=3 of 3 ranks", 1), 4: ("pipe=2, tensor=2 of 4 ranks", 0.27)}[ranks]
    expect("the mesh", mesh in output, True)
    expect("the number", counted, "10 11 12 13 14 15 16")
    if not float(last) < 0.3 * float(first) or not int(own) <= share * int(everything):
        sys.exit(f"the loss goes from {first} to {last}, with {own} of {everything} parameters")


# Every way by itself, and three products of them.
DIVIDED = (("decoder", "data=1,pipe=2,tensor=2", "1", "zb-h1", "rows"), ("decoder", "context=2,tensor=2"),
           ("encoder", "data=2,context=2", "3"), ("encoder", "pipe=2,context=2", "0", "1f1b"),
           ("vision", "data=2,tensor=2", "2", "1f1b", "rows"), ("vision", "pipe=4"))


def divided_models(job):
    ranks = job.ranks or 4
    runs = DIVIDED if ranks == 4 else (("decoder",), ("vision", "context=2"))
    for arguments in runs[:1] if job.way in ("openmpi", "mpich", "torchrun", "device") else runs:
        output = job.output("divided_models", *arguments)
        first, last = re.search(r"loss (\S+) to (\S+), as one process\n", output).groups()
        if not float(last) < float(first):
            sys.exit(f"{arguments}: the loss goes from {first} to {last}")


def divided_checkpoint(job):
    divided, ranks, alone = re.search(r"loss (\S+) on (\d+) ranks, (\S+) alone",
                                      job.output("divided_checkpoint", "divided")).groups()
    expect("ranks", int(ranks), job.ranks or 4)
    if abs(float(divided) - float(alone)) > 2e-5 or not float(alone) < 2.5:
        sys.exit(f"the loss is {divided} where the layers are divided, and {alone} of one process")
    files = sorted(os.listdir("divided"))
    expect("the model is in slices", "model.slices.json" in files, int(ranks) % 2 == 0)


def context_parallel(job):
    ranks = job.ranks or 2
    for way in ("ring",) if job.way == "device" else ("ring", "heads"):
        first, last, data, context, own, everything, found, names = re.search(
            r"loss (\S+) to (\S+) on (\d+) x (\d+) ranks, of which one has (\d+) of (\d+) tokens\n"
            r"(\d+) of (\d+) names are found", job.output("context_parallel", way)).groups()
        expect("ranks", (int(data), int(context)), (1, 2) if ranks == 2 else (ranks, 1))
        expect("tokens", (int(own), int(everything)), (64 if ranks == 2 else 128, 128))
        expect(f"{found} of {names} names are found", int(found) * 8 >= int(names) * 7, True)
        if not float(last) < 0.5 * float(first):
            sys.exit(f"the loss goes from {first} to {last}")


def checkpoint(job):
    ranks = job.ranks or 2
    expect_lines("checkpoint", job.output("checkpoint", "model.safetensors"),
                 [f"rank {r} of {ranks}: loaded what was saved" for r in range(ranks)])
    expect("names", tensor_names("model.safetensors"), ["bias", "weight"])


def resume(job):
    """Killed half-way, and gone on with, it ends in the bits of a run that nobody disturbed."""
    begun, end = re.fullmatch(r"(begins at step 0)\n(30 steps, scale \S+, parameters [0-9a-f]{16}\n)",
                              job.output("resume", "whole")).groups()
    if job.way not in ("alone", "run"):
        return
    done = subprocess.run([*job.launcher(), f"{job.options.bin}/examples/resume", "parts", "--kill-rank", "1", "--kill-step", "17"],
                          env={**os.environ, "OMP_NUM_THREADS": "1"}, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, encoding="utf-8", timeout=120)
    if done.returncode == 0 or begun not in done.stdout or "30 steps" in done.stdout:
        sys.exit(f"nobody was killed: exit status {done.returncode}\n{done.stdout}{done.stderr}")
    expect("the resumed run", job.output("resume", "parts"), f"begins at step 15\n{end}")


def losses(job, example, *arguments):
    """{(rank, epoch): loss as printed}"""
    ranks = job.ranks or 2
    got = job.output(example, "--data", "data/mnist", "--epochs", str(EPOCHS), *arguments)
    found = re.findall(r"^Rank  (\d+) , epoch  (\d+) :  (\d+\.\d+)$", got, flags=re.M)
    expect(f"the number of lines of {example}", len(got.splitlines()), len(found))
    for rank in range(ranks):
        expect(f"epochs of rank {rank}", [int(e) for r, e, _ in found if int(r) == rank], list(range(EPOCHS)))
    result = {(int(r), int(e)): loss for r, e, loss in found}
    expect("ranks and epochs", len(result), ranks * EPOCHS)
    return result


def mnist_from_scratch(job):
    write_mnist("data/mnist")
    expect("the same again", losses(job, "mnist_from_scratch"), losses(job, "mnist_from_scratch"))


def mnist_ring(job):
    write_mnist("data/mnist")
    by_engine = losses(job, "mnist_from_scratch")
    # The naive ring adds in rank order, as the engine does. The chunked one begins each chunk at another rank, which makes
    # no difference to two numbers.
    expect("naive ring", losses(job, "mnist_ring", "--naive"), by_engine)
    by_ring = losses(job, "mnist_ring")
    if (job.ranks or 2) <= 2:
        expect("ring", by_ring, by_engine)
    for key, loss in by_engine.items():
        expect(f"ring, (rank, epoch) {key}", abs(float(loss) - float(by_ring[key])) < 1e-4, True)


def mnist_ddp(job):
    write_mnist("data/mnist")
    expect("mnist_ddp", job.output("mnist_ddp"), "")
    expect("names", tensor_names("mnist.safetensors"),
           sorted(f"{layer}.{kind}" for layer in ("conv1", "conv2", "fc1", "fc2") for kind in ("weight", "bias")))


def trained_resnet18(job, example):
    """Runs it on a few images; the lines before the last."""
    got = job.output(example, "--limit", "48").splitlines()
    expect("the last line", got[-1], "training finished, saving data")
    names = tensor_names("000.safetensors")
    expect("tensors", len(names), 62 + 60)
    expect("a name as torchvision's", "layer2.0.downsample.1.running_var" in names, True)
    return got[:-1]


def cifar_mpi(job):
    each = 48 // (job.ranks or 2)
    expect("shapes", trained_resnet18(job, "cifar_mpi"),
           [f"data torch.Size([{each}, 3, 32, 32])", f"output torch.Size([{each}, 1000])", f"target torch.Size([{each}])"])


def cifar_ddp(job):
    expect("lines", trained_resnet18(job, "cifar_ddp"), [])


def cifar_horovod(job):
    expect("lines", trained_resnet18(job, "cifar_horovod"), [])
    if job.way == "run" and job.ranks == 2:  # horovodrun's habit
        expect("lines with -H", trained_resnet18(Job(job.options, "hosts", 2), "cifar_horovod"), [])


def cooperation(job):
    ranks = job.ranks or 2
    expect_lines("cooperation", job.output("cooperation", "logs"),
                 [f"rank {r} of {ranks}: from step 100, 4 steps, the same parameters" for r in range(ranks)])
    expect("logs", sorted(n for n in os.listdir("logs") if n.endswith(".log")), [f"{r}.log" for r in range(ranks)])
    for rank in range(ranks):
        with open(f"logs/{rank}.log", encoding="utf-8") as f:
            expect(f"steps of rank {rank}", [int(line.split()[1]) for line in f], [100, 101, 103, 104])
    expect("event files", len(os.listdir("logs/tensorboard")), 1)


def parameter_averaging(job):
    ranks = job.ranks or 2
    got = job.output("parameter_averaging")
    losses = re.findall(r"loss (\d+\.\d\d) to (\d+\.\d\d)", got)
    for before, after in losses:
        expect(f"the loss falls from {before} to {after}", float(after) < 0.3 * float(before), True)
    expect_lines("parameter_averaging", re.sub(r"\d+\.\d\d", "#", got),
                 [f"rank {r} of {ranks}: loss # to #, 10 meetings, parameters equal on all ranks" for r in range(ranks)])


def zero(job):
    ranks = job.ranks or 2
    lines = re.findall(r"rank (\d) of (\d): loss (\d\.\d\d), from global_step5 on (\d\.\d\d); "
                       r"keeps (\d+) elements of state of 2696", job.output("zero"))
    expect("ranks", sorted((int(r), int(n)) for r, n, *_ in lines), [(r, ranks) for r in range(ranks)])
    for *_, before, after, kept in lines:
        expect(f"the loss falls from {before} to {after}", float(after) < 0.7 * float(before), True)
        expect(f"{kept} elements are an N-th", 2696 <= int(kept) * ranks <= 2696 * 1.1, True)


def calls(job):
    expect("calls", job.output("rpc/calls"), "matmul: 12\ntwice: 0\ntwice: 2\ntwice: 4\nmirror: -2\ncounter of worker1: 20\n"
           "ask_back: 41\n'fail' on 'worker1': lockstep::DataError\n'sleep' was given up after 0.1 s\n")


def reinforce(job):
    rates = {}
    for way, words in (("", "one forward each"), ("--batched", "one forward for all observers")):
        first, last, rate, said = re.fullmatch(
            r"reward (\S+) an episode in the first rounds, (\S+) in the last; (\d+) actions a second, (.*)\n",
            job.output("rpc/reinforce", *way.split())).groups()
        expect("the way", said, words)
        # Who pushes by chance keeps the pole up for some 20 steps.
        if not 10 < float(first) < 60 or not float(last) > 90:
            sys.exit(f"{words}: the reward goes from {first} to {last}")
        rates[words] = rate
    print("actions a second:", rates)


def split_rnn(job):
    for text in ("", "text"):
        if text:
            with open(text, "w", encoding="utf-8") as f:
                f.write("she sells sea shells by the sea shore; " * 100)
        first, last, said = re.fullmatch(
            r"loss (\S+) to (\S+) after 60 steps of 384 characters, split over two processes; (.*)\n",
            job.output("rpc/split_rnn", *text.split())).groups()
        expect("the losses", said, "in one process the same, bit for bit")
        expect(f"the loss falls from {first} to {last}", float(last) < 0.5 * float(first), True)


def parameter_server(job):
    rates = {}
    for mode in ("hogwild", "batched", "one-call"):
        got = job.output("rpc/parameter_server", "--mode", mode)
        trainers, first, last, right, rate, rest = re.fullmatch(
            mode + r", trainers: (\d); loss of 500 digits (\S+) to (\S+), (\S+) % right; (\d+) gradients a second\n(.*\n)?",
            got).groups()
        expect("trainers", int(trainers), (job.ranks or 4) - 1)
        if not float(last) < 0.4 * float(first) or not float(right) > 60:
            sys.exit(f"{mode}: the loss goes from {first} to {last}, {right} % are right")
        expect("beside one process", rest,
               "the parameters are those of one process, bit for bit\n" if mode == "batched" else None)
        rates[mode] = rate
    print("gradients a second:", rates)
    if job.way == "run" and job.ranks == 4:  # the server is the first role, rank 0
        parameter_server(Job(job.options, "roles", 3))


def pipeline_resnet(job):
    *lines, last = job.output("rpc/pipeline_resnet").splitlines()
    shown = [re.fullmatch(r"(\d) x (\d+) images: loss \S+, \S+ s a step; one process \S+ s", line) for line in lines]
    expect("micro-batches", [(int(one[1]), int(one[2])) for one in shown], [(parts, 8 // parts) for parts in (1, 2, 4, 8)])
    expect("the end", last, "the losses are those of one process, bit for bit; drawn in pipeline_resnet.svg")
    with open("pipeline_resnet.svg", encoding="utf-8") as f:
        expect("the picture", "micro-batches" in f.read(), True)


def ddp_embedding(job):
    trainers, first, last, off, rows = re.fullmatch(
        r"trainers: (\d); loss (\S+) to (\S+), (\S+) at most from one process's; "
        r"the table's gradient has (\d+) of 5000 rows\n", job.output("rpc/ddp_embedding")).groups()
    expect("trainers", int(trainers), (job.ranks or 4) - 2)
    if not float(off) < 1e-5 or not float(last) < 0.5 * float(first):
        sys.exit(f"the loss goes from {first} to {last}, {off} from one process's")
    expect("rows of a batch's ids", 20 < int(rows) <= 32 * 6, True)


def tensor_names(path):
    with open(path, "rb") as f:
        header = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
    return sorted(name for name in header if name != "__metadata__")


def roles(job):
    def after(trainers):
        steps = 3 * trainers
        return f"weight {3 - 3 * 0.5 ** steps:.6g} after {steps} steps\n"
    expect("roles", job.output("roles"), after((job.ranks or 1) - 1))
    if job.way != "run":
        return
    command = [f"{job.options.bin}/lockstep", "run", "--role", "ps=1,restarts=1", "--role", "trainer=2",
               f"{job.options.bin}/examples/roles"]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8", timeout=120)
    expect("roles with a server that is killed", (done.returncode, done.stdout), (0, after(2)))
    if "rank 0 (ps 0) killed by SIGKILL" not in done.stderr or "it is started again, 1 of 1" not in done.stderr:
        sys.exit(done.stderr)


def with_replacements(job, restarts, flags, program, *words):
    """The example under a launcher that starts dead ranks anew."""
    command = [f"{job.options.bin}/lockstep", "run", "--on-failure", "replace", "--max-restarts", restarts, *flags, "-np",
               str(job.ranks), f"{job.options.bin}/examples/{program}", *words]
    return subprocess.run(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          encoding="utf-8", timeout=120)


def recovery(job):
    steps = ["--steps", "12"]
    undisturbed = job.output("recovery", *steps)
    if not re.fullmatch(r"12 steps, parameters [0-9a-f]{16}\n", undisturbed):
        sys.exit(undisturbed)
    if job.way != "run":
        return
    done = with_replacements(job, "2", [], "recovery", *steps, "--kill-rank", "1", "--kill-step", "7")
    expect("recovery from a rank that is killed", (done.returncode, done.stdout), (0, undisturbed))
    if "rank 1 killed by SIGKILL" not in done.stderr or "it is started again, 1 of 2" not in done.stderr:
        sys.exit(done.stderr)
    if job.ranks < 3:
        return
    # The first failure comes after a half to three halves of `every`: before the end, however fast the machine is, but not before a new
    # rank has had the time to start.
    count, taken = 125, 0
    while taken < 4:
        count *= 2
        steps = ["--steps", str(count)]
        begin = time.monotonic()
        undisturbed = job.output("recovery", *steps)
        taken = time.monotonic() - begin
    every = f"{taken / 3:.2f}"
    done = with_replacements(job, "99", ["--simulate-failures", f"every={every},seed=3"], "recovery", *steps)
    expect("recovery from failures that the launcher makes", (done.returncode, done.stdout), (0, undisturbed))
    if "simulated failure: rank" not in done.stderr:
        sys.exit(done.stderr)


def recovery_divided(job):
    steps = ["--steps", "12"]
    undisturbed = job.output("recovery_divided", *steps)
    if not re.fullmatch(r"12 steps, sum of all parameters' magnitudes \d+\.\d+\n", undisturbed):
        sys.exit(undisturbed)
    if job.way != "run":
        return
    for every, kill_step in (("5", "7"), ("1", "7"), ("100", "3")):
        done = with_replacements(job, "2", [], "recovery_divided", *steps, "--every", every, "--kill-rank", "1", "--kill-step", kill_step)
        expect("divided recovery from a rank that is killed", (done.returncode, done.stdout), (0, undisturbed))
        # The latest, or the one before where that was still on its way.
        latest = int(kill_step) // int(every) * int(every)
        if not any(f"goes on from its copies of step {step} " in done.stderr for step in (latest, max(0, latest - int(every)))):
            sys.exit(done.stderr)


# Those that take words and no flags.
WITH_WORDS = ("checkpoint", "context_parallel", "cooperation", "divided_checkpoint", "divided_models", "language_model", "pipeline", "torchscript", "zero",
              "pipeline_resnet", "split_rnn")


def usage(job, example):
    """A flag is answered with one line, and no file is named after it."""
    path = f"rpc/{example}" if example in ("pipeline_resnet", "split_rnn") else example
    said = job.output(path, "--help")
    if not re.fullmatch(rf"usage: {example} \[.+\]\n", said):
        sys.exit(f"{example} --help says {said!r}")
    expect("files", os.listdir("."), [])


# What prints numbers that follow from seeds, in seconds, and draws nothing on its device.
SAME_NUMBERS = ("ddp_linear", "uneven_inputs", "parameter_averaging", "tensor_parallel", "cooperation", "checkpoint", "matrix")


def same_numbers(job, example):
    """On devices it prints the CPU's numbers."""
    here, there = (sorted(one.output(example).splitlines()) for one in (Job(job.options, "run", job.ranks), job))
    number = r"\d+\.\d+"
    expect("the lines but for their numbers", [re.sub(number, "#", line) for line in there], [re.sub(number, "#", line) for line in here])
    for cpu, device in zip(re.findall(number, "\n".join(here)), re.findall(number, "\n".join(there))):
        # Their last digits may be rounded to two sides.
        if abs(float(cpu) - float(device)) > 1e-3 + 10.0 ** -len(cpu.split(".")[1]):
            sys.exit(f"{example} prints {device} on devices, {cpu} on the CPU")


def missing(options, way):
    """Why `way` cannot be tried here, or None."""
    if way in MPIRUNS:
        name, package, word = MPIRUNS[way]
        if not options.launcher:
            return f"no mpirun of {name}'s is installed (apt-get install {package})"
        version = subprocess.run([options.launcher, "--version"], stdout=subprocess.PIPE, encoding="utf-8").stdout
        if not re.search(word, version):
            return f"{options.launcher} is not {name}'s (apt-get install {package})"
    if way == "torchrun" and not options.launcher:
        return "torchrun is not installed (it comes with PyTorch's Python package)"
    return None


def main():
    examples = {f.__name__: f for f in (partitioner, hello_world, matrix, primitives, groups, data_parallel, model_parallel,
                                        ddp_linear, torchscript, uneven_inputs, mixed_precision, fine_tuning, language_model,
                                        pipeline, checkpoint, resume, mnist_from_scratch, mnist_ring, mnist_ddp, cifar_mpi, cifar_ddp,
                                        cifar_horovod, cooperation, parameter_averaging, zero, tensor_parallel,
                                        expert_parallel, context_parallel, divided_checkpoint, divided_models, products, recovery, recovery_divided, roles, timeline,
                                        calls, reinforce, split_rnn, parameter_server, pipeline_resnet, ddp_embedding)}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", required=True, type=os.path.abspath)
    parser.add_argument("--launcher", default="")
    parser.add_argument("--python", default=sys.executable, help="one that has torch, for what PyTorch reads and writes")
    parser.add_argument("example", choices=examples)
    parser.add_argument("way", choices=["alone", "run", *MPIRUNS, "torchrun", "device"])
    options = parser.parse_args()
    reason = missing(options, options.way)
    if reason:
        print(reason)
        return SKIPPED
    run = RUN_RANKS.get(options.example, [2, 3])
    on_devices = [ON_DEVICES.get(options.example, (2, 2))[0]]
    for ranks in {"alone": [None], "run": run, "device": on_devices}.get(options.way, [2]):
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
            if options.way == "alone" and options.example in WITH_WORDS:
                usage(Job(options, "alone", None), options.example)
            examples[options.example](Job(options, options.way, ranks))
            if options.way == "device" and options.example in SAME_NUMBERS:
                same_numbers(Job(options, options.way, ranks), options.example)
            os.chdir("/")
    return 0


if __name__ == "__main__":
    sys.exit(main())
