"""ResNet-18 and ResNet-50 in PyTorch alone, with torchvision's names and initialisation: what lockstep/model/resnet.h is held against."""
import torch.nn as nn
import torch.nn.functional as F


def conv(inputs, outputs, size, stride=1):
    return nn.Conv2d(inputs, outputs, size, stride=stride, padding=size // 2, bias=False)


class Block(nn.Module):
    """The convolutions' sizes are (3, 3) at depth 18, (1, 3, 1) at depth 50; the first 3x3 one has the stride."""

    def __init__(self, inputs, planes, outputs, sizes, stride, downsample):
        super().__init__()
        self.count = len(sizes)
        channels = [inputs] + [planes] * (self.count - 1) + [outputs]
        for i, size in enumerate(sizes):
            setattr(self, f"conv{i + 1}", conv(channels[i], channels[i + 1], size, stride if i == sizes.index(3) else 1))
            setattr(self, f"bn{i + 1}", nn.BatchNorm2d(channels[i + 1]))
        self.downsample = downsample

    def forward(self, x):
        y = x
        for i in range(1, self.count + 1):
            y = getattr(self, f"bn{i}")(getattr(self, f"conv{i}")(y))
            if i < self.count:
                y = F.relu(y)
        return F.relu(y + (x if self.downsample is None else self.downsample(x)))


class ResNet(nn.Module):
    def __init__(self, depth=18, stem="imagenet", classes=1000, zero_init_residual=False):
        super().__init__()
        counts, sizes, expansion = {18: ((2, 2, 2, 2), (3, 3), 1), 50: ((3, 4, 6, 3), (1, 3, 1), 4)}[depth]
        self.pool = stem == "imagenet"
        self.conv1 = conv(3, 64, 7, 2) if self.pool else conv(3, 64, 3)
        self.bn1 = nn.BatchNorm2d(64)
        inputs = 64
        for i, count in enumerate(counts):
            planes = 64 * 2 ** i
            blocks = []
            for j in range(count):
                stride, outputs = (2 if i > 0 and j == 0 else 1), planes * expansion
                downsample = None
                if stride != 1 or inputs != outputs:
                    downsample = nn.Sequential(conv(inputs, outputs, 1, stride), nn.BatchNorm2d(outputs))
                blocks.append(Block(inputs, planes, outputs, sizes, stride, downsample))
                inputs = outputs
            setattr(self, f"layer{i + 1}", nn.Sequential(*blocks))
        self.fc = nn.Linear(inputs, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        if zero_init_residual:
            for module in self.modules():
                if isinstance(module, Block):
                    nn.init.zeros_(getattr(module, f"bn{module.count}").weight)

    def forward(self, x):
        x = F.relu(self.bn1(self.conv1(x)))
        if self.pool:
            x = F.max_pool2d(x, 3, 2, 1)
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(F.adaptive_avg_pool2d(x, 1).flatten(1))
