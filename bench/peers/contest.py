"""PyTorch's side of the part "steps": the models of contest.cpp in plain PyTorch, eagerly and as a CUDA graph.

argument: the address of bench/turns.h. Tasks and answers are lines of JSON.
"""
import json
import sys
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

BATCHES, CLASSES = 4, 10


class SimpleCnn(nn.Module):
    def __init__(self, case):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 32, 3, padding=1), nn.Conv2d(32, 64, 3, padding=1)
        self.dropout1, self.dropout2 = nn.Dropout(0.25), nn.Dropout(0.5)
        self.fc1, self.fc2 = nn.Linear(64 * 7 * 7, 128), nn.Linear(128, CLASSES)

    def forward(self, x, y):
        x = F.relu(F.max_pool2d(self.conv1(x), 2))
        x = F.relu(F.max_pool2d(self.conv2(x), 2))
        x = self.dropout1(x.flatten(1))
        x = self.dropout2(F.relu(self.fc1(x)))
        return F.nll_loss(F.log_softmax(self.fc2(x), dim=1), y)


class Bottleneck(nn.Module):
    def __init__(self, inputs, planes, stride):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(inputs, planes, 1, bias=False), nn.BatchNorm2d(planes)
        self.conv2, self.bn2 = nn.Conv2d(planes, planes, 3, stride, 1, bias=False), nn.BatchNorm2d(planes)
        self.conv3, self.bn3 = nn.Conv2d(planes, planes * 4, 1, bias=False), nn.BatchNorm2d(planes * 4)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = None
        if stride != 1 or inputs != planes * 4:
            self.downsample = nn.Sequential(nn.Conv2d(inputs, planes * 4, 1, stride, bias=False),
                                            nn.BatchNorm2d(planes * 4))

    def forward(self, x):
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.relu(self.bn2(self.conv2(y)))
        y = self.bn3(self.conv3(y))
        y += x if self.downsample is None else self.downsample(x)
        return self.relu(y)


class ResNet50(nn.Module):
    def __init__(self, case):
        super().__init__()
        stem = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)]
        blocks, inputs = [], 64
        for planes, count, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
            for i in range(count):
                blocks.append(Bottleneck(inputs, planes, stride if i == 0 else 1))
                inputs = planes * 4
        self.net = nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2048, CLASSES))

    def forward(self, x, y):
        return F.cross_entropy(self.net(x).float(), y)


class BertLayer(nn.Module):
    def __init__(self, case):
        super().__init__()
        width = case["width"]
        self.heads = case["heads"]
        self.query, self.key, self.value, self.output = (nn.Linear(width, width) for _ in range(4))
        self.up, self.down = nn.Linear(width, case["inner"]), nn.Linear(case["inner"], width)
        self.norm1, self.norm2 = nn.LayerNorm(width, 1e-12), nn.LayerNorm(width, 1e-12)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = (m(x).view(b, t, self.heads, c // self.heads).transpose(1, 2)
                   for m in (self.query, self.key, self.value))
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=0.1 if self.training else 0.0)
        x = self.norm1(x + self.dropout(self.output(y.transpose(1, 2).reshape(b, t, c))))
        return self.norm2(x + self.dropout(self.down(F.gelu(self.up(x)))))


class Bert(nn.Module):
    def __init__(self, case):
        super().__init__()
        width = case["width"]
        self.words, self.places = nn.Embedding(case["vocabulary"], width), nn.Embedding(512, width)
        self.types, self.norm = nn.Embedding(2, width), nn.LayerNorm(width, 1e-12)
        self.layers = nn.ModuleList(BertLayer(case) for _ in range(case["layers"]))
        self.pooler, self.classifier = nn.Linear(width, width), nn.Linear(width, CLASSES)
        self.dropout = nn.Dropout(0.1)
        self.register_buffer("positions", torch.arange(case["length"]))

    def forward(self, ids, y):
        x = self.words(ids) + self.places(self.positions) + self.types(torch.zeros_like(ids))
        x = self.dropout(self.norm(x))
        for layer in self.layers:
            x = layer(x)
        return F.cross_entropy(self.classifier(self.dropout(torch.tanh(self.pooler(x[:, 0])))).float(), y)


class LmLayer(nn.Module):
    def __init__(self, case):
        super().__init__()
        width, inner = case["width"], case["inner"]
        self.heads = case["heads"]
        self.qkv, self.output = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.gate, self.up = nn.Linear(width, inner, bias=False), nn.Linear(width, inner, bias=False)
        self.down = nn.Linear(inner, width, bias=False)
        self.norm1, self.norm2 = nn.RMSNorm(width, 1e-6), nn.RMSNorm(width, 1e-6)

    def forward(self, x, cos, sin):
        b, t, c = x.shape
        q, k, v = (m.view(b, t, self.heads, c // self.heads).transpose(1, 2)
                   for m in self.qkv(self.norm1(x)).chunk(3, dim=-1))

        def turned(m):
            left, right = m.chunk(2, dim=-1)
            return (m * cos + torch.cat((-right, left), dim=-1) * sin).to(v.dtype)
        y = F.scaled_dot_product_attention(turned(q), turned(k), v, is_causal=True)
        x = x + self.output(y.transpose(1, 2).reshape(b, t, c))
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Lm(nn.Module):
    def __init__(self, case):
        super().__init__()
        width, half = case["width"], case["width"] // case["heads"] // 2
        self.words = nn.Embedding(case["vocabulary"], width)
        nn.init.normal_(self.words.weight, std=0.02)
        self.layers = nn.ModuleList(LmLayer(case) for _ in range(case["layers"]))
        self.norm = nn.RMSNorm(width, 1e-6)
        turns = torch.outer(torch.arange(case["length"]).float(), 10000 ** (-torch.arange(half) / half))
        turns = torch.cat((turns, turns), dim=-1)
        self.register_buffer("cos", turns.cos())
        self.register_buffer("sin", turns.sin())

    def forward(self, ids, targets):
        x = self.words(ids)
        for layer in self.layers:
            x = layer(x, self.cos, self.sin)
        logits = F.linear(self.norm(x), self.words.weight)
        return F.cross_entropy(logits.float().flatten(0, 1), targets.flatten())


KINDS = {"simple-cnn": SimpleCnn, "resnet-50": ResNet50, "bert": Bert, "lm": Lm}


class Contest:
    def __init__(self, case, graph):
        torch.manual_seed(123)
        self.case, kind = case, case["kind"]
        self.model = KINDS[kind](case).cuda()
        batch, length = case["batch"], case["length"]
        labels = torch.randint(0, CLASSES, (BATCHES, batch), device="cuda")
        if kind in ("bert", "lm"):
            data = torch.randint(1, case["vocabulary"], (BATCHES, batch, length), device="cuda")
            self.batches = [(x, x.roll(-1, 1) if kind == "lm" else y) for x, y in zip(data, labels)]
            self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=3e-5, fused=True, capturable=graph)
        else:
            data = torch.randn(BATCHES, batch, 3 if kind == "resnet-50" else 1, length, length, device="cuda")
            if kind == "resnet-50":
                self.model.to(memory_format=torch.channels_last)
                data = [x.contiguous(memory_format=torch.channels_last) for x in data]
                rates = {"lr": 0.1, "momentum": 0.9, "weight_decay": 5e-4}
            else:
                rates = {"lr": 0.01, "momentum": 0.5}
            self.batches = list(zip(data, labels))
            self.optimizer = torch.optim.SGD(self.model.parameters(), fused=True, **rates)
        self.number, self.graph = 0, None
        if graph:
            self.capture()

    def eager(self, x, y):
        self.optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", torch.bfloat16, enabled=self.case["half"], cache_enabled=self.graph is None):
            loss = self.model(x, y)
        loss.backward()
        self.optimizer.step()

    def capture(self):
        self.inputs = [t.clone() for t in self.batches[0]]
        graph = self.graph = torch.cuda.CUDAGraph()
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                self.eager(*self.inputs)
        torch.cuda.current_stream().wait_stream(side)
        self.optimizer.zero_grad(set_to_none=True)
        with torch.cuda.graph(graph):
            self.eager(*self.inputs)

    def step(self):
        x, y = self.batches[self.number % BATCHES]
        self.number += 1
        if self.graph is None:
            self.eager(x, y)
        else:
            self.inputs[0].copy_(x)
            self.inputs[1].copy_(y)
            self.graph.replay()


def main():
    parent, fds = sys.argv[1].split(":")
    to_here, back = fds.split(",")[:2]
    go = open(f"/proc/{parent}/fd/{to_here}", encoding="ascii")
    answers = open(f"/proc/{parent}/fd/{back}", "w", encoding="ascii")
    held, case = {}, None
    for line in iter(go.readline, ""):
        if line.strip() == "0":
            break
        task = json.loads(line)
        try:
            if not torch.cuda.is_available():
                raise RuntimeError("Python's torch sees no CUDA device")
            if task["case"] != case:
                held.clear()
                torch.cuda.empty_cache()
                case = task["case"]
            way = task["way"]
            if way not in held:
                torch.cuda.reset_peak_memory_stats()
                held[way] = Contest(case, way == "graph")
            torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(task["steps"]):
                held[way].step()
            torch.cuda.synchronize()
            answer = {"ms": (time.perf_counter() - start) * 1e3 / task["steps"],
                      "peak_mb": torch.cuda.max_memory_allocated() / 1e6}
        except Exception as error:  # the others' figures are worth having
            held.pop(task["way"], None)
            answer = {"error": f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"}
        print(json.dumps(answer), file=answers, flush=True)


main()
