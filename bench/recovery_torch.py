"""What bench/recovery.py starts with torchrun: PyTorch's DistributedDataParallel, rank 0 saving every few steps."""

import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

from recovery_peer import SimpleCNN, batch, die_if_told, flags, note


def main():
    parser = flags(__doc__)
    parser.add_argument("--save-every", type=int, default=1, help="steps from one checkpoint to the next")
    arguments = parser.parse_args()
    first_life = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"

    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(1234)
    model = SimpleCNN()
    torch.manual_seed(1234 + rank)  # dropout differs from rank to rank
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.5)
    first = 0
    if os.path.exists("checkpoint.pt"):
        saved = torch.load("checkpoint.pt")
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        first = saved["step"]
    ddp = DistributedDataParallel(model)
    for step in range(first, arguments.steps):
        image, label = batch(rank, ranks, step)
        optimizer.zero_grad()
        loss = F.nll_loss(ddp(image), label)
        die_if_told(arguments, rank, step, first_life)
        loss.backward()
        optimizer.step()
        note(arguments.times, rank, step + 1)
        if rank == 0 and (step + 1) % arguments.save_every == 0:
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step + 1}, "checkpoint.tmp")
            os.rename("checkpoint.tmp", "checkpoint.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
