# lockstep run --nproc-per-node 2 python3 examples/python/data_parallel.py     (or torchrun in place of lockstep run)
import lockstep_c10d  # noqa: F401  registers the backend
import torch
import torch.distributed as dist

dist.init_process_group("lockstep")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
model(torch.full((8, 4), dist.get_rank() + 1.0)).sum().backward()  # gradients are averaged meanwhile
print(f"rank {dist.get_rank()} of {dist.get_world_size()}: {model.module.weight.grad.tolist()}\n", end="")  # one write
dist.destroy_process_group()
