"""The recipe of tutorial 000 in PyTorch: what Lockstep's numbers are held against.

SimpleCNN, MNIST's four idx files, DistributedDataParallel over gloo with one process a rank. Nothing of Lockstep is used here.
"""
import gzip
import os
import socket

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data.distributed import DistributedSampler

SEED, BATCH, LR, MOMENTUM, MEAN, STDDEV = 1234, 128, 0.01, 0.5, 0.1307, 0.3081


class SimpleCNN(nn.Module):
    def __init__(self, dropout=(0.25, 0.5)):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 32, kernel_size=3, padding=1)
        self.conv2 = nn.Conv2d(32, 64, kernel_size=3, padding=1)
        self.dropout1, self.dropout2 = nn.Dropout(dropout[0]), nn.Dropout(dropout[1])
        self.fc1, self.fc2 = nn.Linear(64 * 7 * 7, 128), nn.Linear(128, 10)

    def forward(self, x):
        x = F.relu(F.max_pool2d(self.conv1(x), 2))
        x = F.relu(F.max_pool2d(self.conv2(x), 2))
        x = self.dropout1(x.view(-1, 64 * 7 * 7))
        x = self.dropout2(F.relu(self.fc1(x)))
        return F.log_softmax(self.fc2(x), dim=1)


def read_idx(path):
    import numpy as np  # only here: bench/recovery_torch.py needs the model alone

    for name, opener in ((path, open), (path + ".gz", gzip.open)):
        if os.path.exists(name):
            with opener(name, "rb") as file:
                data = file.read()
            dims = data[3]
            shape = np.frombuffer(data, ">i4", dims, 4)
            return torch.from_numpy(np.frombuffer(data, np.uint8, -1, 4 + 4 * dims).reshape(shape).copy())
    raise SystemExit(f"{path}: no such file, plain or .gz")


def load(data, part):
    images = read_idx(os.path.join(data, f"{part}-images-idx3-ubyte")).unsqueeze(1)
    labels = read_idx(os.path.join(data, f"{part}-labels-idx1-ubyte")).long()
    return (images.float() / 255 - MEAN) / STDDEV, labels


def _rank(rank, size, port, options, queue):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // size))
    dist.init_process_group("gloo", rank=rank, world_size=size)
    images, labels = load(options["data"], "train")
    torch.manual_seed(SEED)
    model = SimpleCNN(options["dropout"])
    if options["init_from"]:
        from safetensors.torch import load_file
        model.load_state_dict(load_file(options["init_from"]))
    torch.manual_seed(SEED + rank)
    ddp = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=LR, momentum=MOMENTUM)
    sampler = DistributedSampler(range(len(labels)), size, rank, shuffle=True, seed=SEED)
    batch, losses = BATCH // size, []
    for epoch in range(options["epochs"]):
        sampler.set_epoch(epoch)
        order = torch.tensor(list(sampler))
        for begin in range(0, len(order), batch):
            if options["max_steps"] and len(losses) == options["max_steps"]:
                break
            part = order[begin:begin + batch]
            optimizer.zero_grad()
            loss = F.nll_loss(ddp(images[part]), labels[part])
            loss.backward()
            optimizer.step()
            mean = loss.detach().double().clone()
            dist.all_reduce(mean)
            losses.append(mean.item() / size)
    if rank == 0:
        model.eval()
        images, labels = load(options["data"], "t10k")
        with torch.no_grad():
            right = sum((model(images[i:i + 500]).argmax(1) == labels[i:i + 500]).sum().item()
                        for i in range(0, len(labels), 500))
        queue.put((losses, right / len(labels)))
    dist.barrier()
    dist.destroy_process_group()


def train(data, ranks, epochs=1, max_steps=0, dropout=(0.25, 0.5), init_from=""):
    """Returns the loss of every step, averaged over ranks, and the accuracy on the test set."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    context = mp.get_context("spawn")
    queue = context.SimpleQueue()
    options = dict(data=data, epochs=epochs, max_steps=max_steps, dropout=dropout, init_from=init_from)
    running = mp.spawn(_rank, args=(ranks, port, options, queue), nprocs=ranks, join=False)
    result = queue.get()
    while not running.join():
        pass
    return result
