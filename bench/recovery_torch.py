"""What bench/recovery.py starts with torchrun: PyTorch's DistributedDataParallel, rank 0 saving every step."""

import argparse
import os
import signal
import sys
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../tests/oracle"))
from torch_mnist import SimpleCNN  # noqa: E402  the model of examples/recovery

def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--kill-rank", type=int, default=-1)
    parser.add_argument("--kill-step", type=int, default=6)
    parser.add_argument("--times", required=True)
    arguments = parser.parse_args()

    def note(step):
        with open(arguments.times, "a") as file:
            file.write(f"{rank} {step} {time.time():.6f}\n")

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(1234)
    model = SimpleCNN()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.5)
    first = 0
    if os.path.exists("checkpoint.pt"):
        saved = torch.load("checkpoint.pt")
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        first = saved["step"]
    ddp = DistributedDataParallel(model)
    for step in range(first, arguments.steps):
        generator = torch.Generator().manual_seed(step * dist.get_world_size() + rank)
        image = torch.randn(32, 1, 28, 28, generator=generator)
        label = torch.randint(0, 10, (32,), generator=generator)
        optimizer.zero_grad()
        F.nll_loss(ddp(image), label).backward()
        if rank == arguments.kill_rank and step == arguments.kill_step and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            note(-1)
            os.kill(os.getpid(), signal.SIGKILL)
        optimizer.step()
        note(step + 1)
        if rank == 0:
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step + 1}, "checkpoint.tmp")
            os.rename("checkpoint.tmp", "checkpoint.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
