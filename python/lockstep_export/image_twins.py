"""SimpleCnn and the ResNets in PyTorch, by the names of lockstep/model/."""
from collections import OrderedDict

import torch
from torch import nn
from torch.nn import functional as F


class SimpleCnn(nn.Module):
    def __init__(self, channels, side, classes):
        super().__init__()
        self.conv1 = nn.Conv2d(channels, 32, 3, padding=1)
        self.conv2 = nn.Conv2d(32, 64, 3, padding=1)
        self.fc1 = nn.Linear(64 * (side // 4) ** 2, 128)
        self.fc2 = nn.Linear(128, classes)

    def forward(self, images):
        x = F.relu(F.max_pool2d(self.conv1(images), 2))
        x = F.relu(F.max_pool2d(self.conv2(x), 2))
        return self.fc2(F.relu(self.fc1(x.flatten(1))))


class Block(nn.Module):
    """Two convolutions 3x3, or the bottleneck's three, and what they are added to."""

    def __init__(self, channels, planes, stride, deep):
        super().__init__()
        out = planes * (4 if deep else 1)
        shapes = [(channels, planes, 1, 1), (planes, planes, 3, stride), (planes, out, 1, 1)] if deep else [(channels, planes, 3, stride), (planes, out, 3, 1)]
        for number, (before, after, size, step) in enumerate(shapes, start=1):
            self.add_module(f"conv{number}", nn.Conv2d(before, after, size, step, size // 2, bias=False))
            self.add_module(f"bn{number}", nn.BatchNorm2d(after))
        self.count = len(shapes)
        self.downsample = None
        if stride != 1 or channels != out:
            self.downsample = nn.Sequential(nn.Conv2d(channels, out, 1, stride, bias=False), nn.BatchNorm2d(out))

    def forward(self, given):
        x = given
        for number in range(1, self.count + 1):
            x = getattr(self, f"bn{number}")(getattr(self, f"conv{number}")(x))
            if number < self.count:
                x = F.relu(x)
        return F.relu(x + (given if self.downsample is None else self.downsample(given)))


class ResNet(nn.Module):
    def __init__(self, depth, small, classes):
        super().__init__()
        deep = depth == 50
        self.small = small
        self.conv1 = nn.Conv2d(3, 64, 3, 1, 1, bias=False) if small else nn.Conv2d(3, 64, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        channels = 64
        for number, blocks in enumerate((3, 4, 6, 3) if deep else (2, 2, 2, 2), start=1):
            planes = 32 * 2 ** number
            layer = OrderedDict()
            for i in range(blocks):
                layer[str(i)] = Block(channels, planes, 2 if number > 1 and i == 0 else 1, deep)
                channels = planes * (4 if deep else 1)
            self.add_module(f"layer{number}", nn.Sequential(layer))
        self.fc = nn.Linear(channels, classes)

    def forward(self, images):
        x = F.relu(self.bn1(self.conv1(images)))
        if not self.small:
            x = F.max_pool2d(x, 3, 2, 1)
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(F.adaptive_avg_pool2d(x, 1).flatten(1))


class OfPixels(nn.Module):
    """What `lockstep predict` does around the model: pixels of 0 to 255 are scaled as in training, logits become log-probabilities."""

    def __init__(self, model, mean, stddev):
        super().__init__()
        self.model = model
        self.register_buffer("mean", torch.tensor(mean).view(1, -1, 1, 1), persistent=False)
        self.register_buffer("stddev", torch.tensor(stddev).view(1, -1, 1, 1), persistent=False)

    def forward(self, pixels):
        return F.log_softmax(self.model((pixels.to(torch.float32) / 255 - self.mean) / self.stddev), 1)
