#!/usr/bin/env python3
"""Distributed autograd and optimizers of Lockstep's rpc against PyTorch's (torch.distributed.rpc), and against one process.

A model of three parts: the first and the last one belong to other processes, the middle one to the caller; of two processes, both others' to one. From the
same weights and inputs: every loss of five steps, every gradient of the first one, and every parameter after the last one are equal in every bit, with
SGD and momentum. So they are with Adam, but for what PyTorch's own Adam, which rounds otherwise than libtorch's, has touched: that is within 1e-5. Needs torch with its rpc, and safetensors; exit status 77 where they are missing.

    tests/oracle/rpc_parity.py [--program build/release/bin/tests/rpc_parity]
"""
import argparse
import os
import subprocess
import sys
import tempfile

SKIPPED = 77
STEPS = 5
SIZES = ((5, 7), (7, 4), (4, 3))
OPTIMIZERS = {"sgd": dict(lr=0.05, momentum=0.9), "adam": dict(lr=0.05)}

try:
    import torch
    import torch.distributed.autograd as dist_autograd
    import torch.distributed.rpc as rpc
    from safetensors.torch import load_file, save_file
    from torch.distributed.optim import DistributedOptimizer
except (ImportError, OSError) as missing:
    print(f"skipped: {sys.executable} cannot import what the oracle needs: {missing}")
    sys.exit(SKIPPED)


class Part(torch.nn.Module):
    def __init__(self, weight, bias):
        super().__init__()
        self.layer = torch.nn.Linear(weight.shape[1], weight.shape[0])
        with torch.no_grad():
            self.layer.weight.copy_(weight)
            self.layer.bias.copy_(bias)

    def forward(self, x):
        return self.layer(x).tanh()


def forward(part, x):
    return part.local_value().forward(x)


def parameters_of(part):
    return [rpc.RRef(one) for one in part.local_value().parameters()]


def trained_of(part):
    return [one.detach() for one in part.local_value().parameters()]


def gradients_of(part, context):
    found = dist_autograd.get_gradients(context)
    return [found[one] for one in part.local_value().parameters()]


def train(folder, processes, name):
    """On the caller."""
    case = load_file(os.path.join(folder, "case.safetensors"))
    owners = ["worker1", None, "worker2" if processes == 3 else "worker1"]
    local = Part(case["weight1"], case["bias1"])
    parts = [rpc.remote(owner, Part, args=(case[f"weight{i}"], case[f"bias{i}"])) if owner else rpc.RRef(local)
             for i, owner in enumerate(owners)]
    references = [one for part in parts for one in rpc.rpc_sync(part.owner(), parameters_of, args=(part,))]
    kind = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}[name]
    optimizer = DistributedOptimizer(kind, references, **OPTIMIZERS[name])
    results = {}
    for step in range(STEPS):
        with dist_autograd.context() as context:
            h = rpc.rpc_sync(parts[0].owner(), forward, args=(parts[0], case["inputs"][step].clone()))  # a tensor of its own, as in rpc_parity.cpp
            h = local(h)
            loss = rpc.rpc_sync(parts[2].owner(), forward, args=(parts[2], h)).pow(2).sum()
            dist_autograd.backward(context, [loss])
            if step == 0:
                for i, part in enumerate(parts):
                    gradients = rpc.rpc_sync(part.owner(), gradients_of, args=(part, context))
                    results[f"gradient.weight{i}"], results[f"gradient.bias{i}"] = gradients
            optimizer.step(context)
            results[f"loss{step}"] = loss.detach().reshape(1)
    for i, part in enumerate(parts):
        results[f"weight{i}"], results[f"bias{i}"] = rpc.rpc_sync(part.owner(), trained_of, args=(part,))
    return {key: value.contiguous() for key, value in results.items()}


def theirs(folder, processes, name, rank):
    torch.set_num_threads(1)
    rendezvous = os.path.join(folder, f"meet-{processes}-{name}")
    options = rpc.TensorPipeRpcBackendOptions(num_worker_threads=4, rpc_timeout=60, init_method=f"file://{rendezvous}")
    rpc.init_rpc(f"worker{rank}", rank=rank, world_size=processes, rpc_backend_options=options)
    if rank == 0:
        save_file(train(folder, processes, name), os.path.join(folder, f"theirs-{processes}-{name}.safetensors"))
    rpc.shutdown()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    parser.add_argument("--program", default=os.path.join(root, "build/release/bin/tests/rpc_parity"))
    parser.add_argument("--rank", nargs=4, metavar=("FOLDER", "PROCESSES", "NAME", "RANK"))
    options = parser.parse_args()
    if options.rank:
        folder, processes, name, rank = options.rank
        return theirs(folder, int(processes), name, int(rank))
    torch.manual_seed(5)
    failures = 0
    with tempfile.TemporaryDirectory() as folder:
        case = {"inputs": torch.rand(STEPS, 6, SIZES[0][0])}
        for i, (inputs, outputs) in enumerate(SIZES):
            case[f"weight{i}"], case[f"bias{i}"] = torch.rand(outputs, inputs) - 0.5, torch.rand(outputs) - 0.5
        save_file(case, os.path.join(folder, "case.safetensors"))
        for processes in (2, 3):
            for name in OPTIMIZERS:
                jobs = [subprocess.Popen([sys.executable, "-W", "ignore", os.path.abspath(__file__), "--rank", folder, str(processes), name, str(rank)])
                        for rank in range(processes)]
                try:
                    if any(job.wait(timeout=120) for job in jobs):
                        sys.exit(f"PyTorch's job of {processes} processes failed")
                finally:
                    for job in jobs:
                        job.kill()
                subprocess.run([options.program, folder, str(processes), name], check=True, timeout=120)
                ours = load_file(os.path.join(folder, f"ours-{processes}-{name}.safetensors"))
                alone = load_file(os.path.join(folder, f"alone-{processes}-{name}.safetensors"))
                expected = load_file(os.path.join(folder, f"theirs-{processes}-{name}.safetensors"))
                if set(ours) != set(expected) or set(alone) != set(expected):
                    sys.exit(f"other tensors: {sorted(set(ours) ^ set(expected))}, {sorted(set(alone) ^ set(expected))}")
                for other, values in (("PyTorch's", expected), ("one process's", alone)):
                    rounded = name == "adam" and values is expected
                    different = [key for key in sorted(ours) if not torch.equal(ours[key], values[key]) and not (
                        rounded and key not in ("loss0",) and not key.startswith("gradient")
                        and torch.allclose(ours[key], values[key], rtol=1e-5, atol=1e-6))]
                    failures += len(different)
                    print(f"{processes} processes, {name}: {len(ours) - len(different)} of {len(ours)} tensors are {other}" + (" (parameters within 1e-5)" if rounded else " in every bit")
                          + (f"; not {', '.join(different)}" if different else ""))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
