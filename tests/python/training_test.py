"""Training through torch over lockstep gives the parameters that it gives over gloo, bit for bit on two ranks."""
import contextlib
import unittest

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.algorithms.join import Join
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

import ranks

SIZE = 2


class Net(torch.nn.Module):
    def __init__(self, sparse=False, unused=False):
        super().__init__()
        self.words = torch.nn.Embedding(50, 16, sparse=sparse)
        self.body = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.BatchNorm1d(64), torch.nn.ReLU(),
                                        torch.nn.Linear(64, 64), torch.nn.ReLU())
        self.heads = torch.nn.ModuleList(torch.nn.Linear(64, 5) for _ in range(2 if unused else 1))

    def forward(self, ids, step):
        head = self.heads[(step + dist.get_rank()) % len(self.heads)]  # ranks leave out different ones
        return head(self.body(self.words(ids).mean(1)))


def batch(rank, step):
    generator = torch.Generator().manual_seed(100 * step + rank)
    return torch.randint(0, 50, (8, 6), generator=generator), torch.randint(0, 5, (8,), generator=generator)


def train(rank, group, net, wrap, optimizer_of=None, steps=6, accumulate=False, uneven=False):
    torch.manual_seed(1)
    model = wrap(Net(**net), group)
    optimizer = (optimizer_of or (lambda p, g: torch.optim.SGD(p, lr=0.1)))(model.parameters(), group)
    losses = []
    mine = steps - 2 * rank if uneven else steps
    with Join([model]) if uneven else contextlib.nullcontext():
        for step in range(mine):
            ids, labels = batch(rank, step)
            with model.no_sync() if accumulate and step % 2 == 0 else contextlib.nullcontext():
                loss = torch.nn.functional.cross_entropy(model(ids, step), labels)
                loss.backward()
            if not (accumulate and step % 2 == 0):
                optimizer.step()
                optimizer.zero_grad()
            losses.append(loss.item())
    state = [p.full_tensor() if hasattr(p, "full_tensor") else p.detach() for p in model.parameters()]
    return losses, [p.to_dense().clone() for p in state]


def ddp(hook=None, bucket_cap_mb=0.02, **options):
    def wrap(net, group):
        model = DistributedDataParallel(net, process_group=group, bucket_cap_mb=bucket_cap_mb, **options)
        if hook:
            model.register_comm_hook(group, hook)
        return model

    return wrap


def sharded(net, group):
    mesh = dist.device_mesh.DeviceMesh.from_group(group, "cpu")
    for part in (net.words, net.body, *net.heads):
        fully_shard(part, mesh=mesh)
    return fully_shard(net, mesh=mesh)


def averaging_hook(state, bucket):
    """Goes on with another collective when the first is over; right for one bucket only, whatever the backend."""
    buffer = bucket.buffer().div_(SIZE)
    count = torch.ones(1)
    first = dist.all_reduce(buffer, group=state, async_op=True).get_future()

    def then(future):
        dist.all_reduce(count, group=state)
        assert count.item() == SIZE
        return future.value()[0]

    return first.then(then)


def adam(parameters, group):
    return ZeroRedundancyOptimizer(parameters, torch.optim.Adam, process_group=group, lr=0.01)


KINDS = {
    "plain": dict(net={}, wrap=ddp()),
    "bucket views": dict(net={}, wrap=ddp(gradient_as_bucket_view=True)),
    "static graph": dict(net={}, wrap=ddp(static_graph=True)),
    "unused parameters": dict(net={"unused": True}, wrap=ddp(find_unused_parameters=True)),
    "sparse gradients": dict(net={"sparse": True}, wrap=ddp()),
    "accumulation": dict(net={}, wrap=ddp(), accumulate=True),
    "uneven inputs": dict(net={}, wrap=ddp(), uneven=True),
    "float16 hook": dict(net={}, wrap=ddp(hook=default_hooks.fp16_compress_hook)),
    "all-reduce hook": dict(net={}, wrap=ddp(hook=default_hooks.allreduce_hook)),
    "chained hook": dict(net={}, wrap=ddp(hook=averaging_hook, bucket_cap_mb=25)),
    "sharded optimizer": dict(net={}, wrap=ddp(), optimizer_of=adam),
    "fully sharded": dict(net={}, wrap=sharded),
}


def compare(rank, gloo, kind):
    losses, parameters = train(rank, dist.group.WORLD, **KINDS[kind])
    gloo_losses, gloo_parameters = train(rank, gloo, **KINDS[kind])
    return (losses == gloo_losses, all(torch.equal(a, b) for a, b in zip(parameters, gloo_parameters)),
            losses, gloo_losses, max((a - b).abs().max().item() for a, b in zip(parameters, gloo_parameters)))


def compare_all(rank):
    gloo = dist.new_group(backend="gloo")
    return {kind: compare(rank, gloo, kind) for kind in KINDS}


class Training(unittest.TestCase):
    def test_the_same_as_over_gloo(self):
        for results in ranks.run(SIZE, compare_all, within=300):
            for kind, result in results.items():
                with self.subTest(kind):
                    self.assertEqual(result[:2], (True, True), result)


if __name__ == "__main__":
    unittest.main(verbosity=2)
