"""PyTorch's side of `lockstep bench step`: one process of one contender, as step_rank.cpp is.

arguments: MODEL STRATEGY BATCH THREADS DEVICE TURNS, strategies pytorch-ddp, pytorch-ddp-bf16, pytorch-fsdp2,
pytorch-fsdp2-bf16, pytorch-average, pytorch-independent, pytorch-single, deepspeed-zero3
"""
import json
import os
import sys
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

BATCHES, SEED = 4, 123


class SimpleCnn(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 32, 3, padding=1), nn.Conv2d(32, 64, 3, padding=1)
        self.dropout1, self.dropout2 = nn.Dropout(0.25), nn.Dropout(0.5)
        self.fc1, self.fc2 = nn.Linear(64 * 7 * 7, 128), nn.Linear(128, 10)

    def forward(self, x):
        x = F.relu(F.max_pool2d(self.conv1(x), 2))
        x = F.relu(F.max_pool2d(self.conv2(x), 2))
        x = self.dropout1(x.flatten(1))
        x = self.dropout2(F.relu(self.fc1(x)))
        return F.log_softmax(self.fc2(x), dim=1)


class Block(nn.Module):
    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs)
        self.conv2, self.bn2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False), nn.BatchNorm2d(outputs)
        self.downsample = None
        if stride != 1 or inputs != outputs:
            self.downsample = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x):
        y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)), inplace=True)))
        y += x if self.downsample is None else self.downsample(x)
        return F.relu(y, inplace=True)


def resnet18(cifar):
    stem = [nn.Conv2d(3, 64, 3, 1, 1, bias=False)] if cifar else [nn.Conv2d(3, 64, 7, 2, 3, bias=False)]
    stem += [nn.BatchNorm2d(64), nn.ReLU(inplace=True)] + ([] if cifar else [nn.MaxPool2d(3, 2, 1)])
    blocks, inputs = [], 64
    for outputs, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
        blocks += [Block(inputs, outputs, stride), Block(outputs, outputs, 1)]
        inputs = outputs
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10))


class Bert(nn.Module):
    SIZES = {"bert-base": dict(hidden_size=768, num_hidden_layers=12, num_attention_heads=12, intermediate_size=3072),
             "bert-mini": dict(hidden_size=256, num_hidden_layers=4, num_attention_heads=4, intermediate_size=1024)}

    def __init__(self, size):
        super().__init__()
        from transformers import BertConfig, BertForSequenceClassification
        self.model = BertForSequenceClassification(BertConfig(vocab_size=21128, num_labels=6, **self.SIZES[size]))

    def forward(self, ids):
        return self.model(input_ids=ids).logits


class Llama(nn.Module):
    SIZES = {"lm-tiny": (4, 128, 4, 384), "lm-mini": (6, 384, 6, 1024), "lm-small": (12, 768, 12, 2048)}

    def __init__(self, size):
        super().__init__()
        from transformers import LlamaConfig, LlamaForCausalLM
        layers, width, heads, inner = self.SIZES[size]
        self.model = LlamaForCausalLM(LlamaConfig(num_hidden_layers=layers, hidden_size=width, num_attention_heads=heads,
                                                  intermediate_size=inner, tie_word_embeddings=True, use_cache=False))

    def forward(self, ids):
        return self.model(input_ids=ids).logits


def next_token_loss(logits, targets):
    return F.cross_entropy(logits.float().flatten(0, 1), targets.flatten())


def make(model, batch):
    """-> the module, its loss, data, labels, and the optimizer's options: SGD's, or AdamW's for a transformer."""
    classes = torch.randint(0, 10, (BATCHES, batch))
    if model == "simple-cnn":
        return SimpleCnn(), F.nll_loss, torch.randn(BATCHES, batch, 1, 28, 28), classes, dict(lr=0.01, momentum=0.5)
    if model in ("resnet18", "resnet18-cifar"):
        return (resnet18(model == "resnet18-cifar"), F.cross_entropy, torch.randn(BATCHES, batch, 3, 32, 32), classes,
                dict(lr=0.1, momentum=0.9, weight_decay=5e-4))
    if model in Bert.SIZES:
        return Bert(model), F.cross_entropy, torch.randint(1, 21128, (BATCHES, batch, 128)), classes % 6, dict(lr=3e-5)
    if model in Llama.SIZES:
        ids = torch.randint(1, 32000, (BATCHES, batch, 256))
        return Llama(model), next_token_loss, ids, ids.roll(-1, 2), dict(lr=3e-5)
    wide = 3162
    return (nn.Sequential(*(nn.Linear(wide, wide) for _ in range(10))), F.mse_loss, torch.randn(BATCHES, batch, wide),
            torch.randn(BATCHES, batch, wide), dict(lr=0.01))


def pss_bytes():
    with open("/proc/self/smaps_rollup", encoding="ascii") as f:
        return next((int(line.split()[1]) * 1024 for line in f if line.startswith("Pss:")), 0)


def shard(module, half, device):
    """FSDP2 with a unit for each layer, as its tutorial has it; a model without layers is one unit."""
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16 if half else None)
    mesh = dist.init_device_mesh(device.type, (dist.get_world_size(),))
    layers = next((list(m) for m in module.modules() if isinstance(m, nn.ModuleList)), list(module.children()))
    for layer in layers:
        if any(True for _ in layer.parameters()):
            fully_shard(layer, mesh=mesh, mp_policy=policy)
    return fully_shard(module, mesh=mesh, mp_policy=policy)


def device_of(asked, rank):
    """As Lockstep's choose_device(), made the current one."""
    if asked == "auto":
        asked = "cuda" if torch.cuda.is_available() else "cpu"
    if asked == "cuda":
        asked = f"cuda:{rank % torch.cuda.device_count()}"
    device = torch.device(asked)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    return device


class DeepSpeed:
    """DeepSpeed's engine, which takes the place of backward and of the optimizer."""

    def __init__(self, module, batch, optimizer, options):
        import deepspeed
        deepspeed.init_distributed("gloo", verbose=False)
        config = {"train_micro_batch_size_per_gpu": batch,
                  "optimizer": {"type": optimizer.__name__, "params": options},
                  "zero_optimization": {"stage": 3}, "steps_per_print": 10 ** 9}
        self.engine, *_ = deepspeed.initialize(model=module, model_parameters=module.parameters(), config=config)

    def __call__(self, x):
        return self.engine(x)

    def zero_grad(self):
        pass

    def step(self):
        self.engine.step()


def main():
    model_name, strategy, batch, threads, asked, turns = sys.argv[1:7]
    torch.set_num_threads(int(threads))
    rank = int(os.environ.get("LOCAL_RANK", "0"))
    torch.manual_seed(SEED + rank)
    device = device_of(asked, rank)
    parent, fds = turns.split(":")
    fds = fds.split(",")
    go = open(f"/proc/{parent}/fd/{fds[2 * rank]}", encoding="ascii")
    back = open(f"/proc/{parent}/fd/{fds[2 * rank + 1]}", "w", encoding="ascii")
    ddp = strategy in ("pytorch-ddp", "pytorch-ddp-bf16")
    fsdp = strategy.startswith("pytorch-fsdp2")
    deepspeed = strategy == "deepspeed-zero3"
    together = ddp or fsdp or deepspeed or strategy == "pytorch-average"
    if together:
        ranks = int(os.environ["LOCAL_WORLD_SIZE"])
        own_devices = device.type == "cuda" and ranks <= torch.cuda.device_count()  # as NCCL wants it
        dist.init_process_group("nccl" if own_devices else "gloo")
    module, loss_of, data, labels, options = make(model_name, int(batch))
    module, data, labels = module.to(device), data.to(device), labels.to(device)
    half = strategy.endswith("bf16")
    model = DistributedDataParallel(module) if ddp else shard(module, half, device) if fsdp else module
    kind = torch.optim.AdamW if model_name in {*Bert.SIZES, *Llama.SIZES} else torch.optim.SGD
    if deepspeed:
        model = optimizer = DeepSpeed(module, int(batch), kind, options)
    else:
        optimizer = kind(model.parameters(), **options)
    number = 0

    def step():
        nonlocal number
        marks = [time.perf_counter()]
        x, y = data[number % BATCHES], labels[number % BATCHES]
        number += 1
        marks.append(time.perf_counter())
        optimizer.zero_grad()
        with torch.autocast(device.type, torch.bfloat16, enabled=strategy == "pytorch-ddp-bf16"):
            loss = loss_of(model(x), y)
        marks.append(time.perf_counter())
        model.engine.backward(loss) if deepspeed else loss.backward()
        marks.append(time.perf_counter())
        if strategy == "pytorch-average":  # the tutorials' average_gradients
            for p in model.parameters():
                dist.all_reduce(p.grad)
                p.grad /= dist.get_world_size()
        marks.append(time.perf_counter())
        optimizer.step()
        loss.item()
        marks.append(time.perf_counter())
        names = ("data", "forward", "backward", "wait", "optimizer")
        return {name: (b - a) * 1e3 for name, a, b in zip(names, marks, marks[1:])}

    for line in iter(go.readline, ""):
        if int(line) == 0:
            break
        step()
        steps = [step() for _ in range(int(line))]
        print(json.dumps({"steps": steps, "pss_bytes": pss_bytes()}), file=back, flush=True)
    if together:
        dist.destroy_process_group()


main()
