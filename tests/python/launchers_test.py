"""The example program under torchrun and under `lockstep run`, and process groups from every kind of store."""
import os
import re
import subprocess
import sys
import unittest
from datetime import timedelta

import torch
import torch.distributed as dist

import ranks

ROOT = os.path.normpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../.."))
EXAMPLE = os.path.join(ROOT, "examples/python/data_parallel.py")
LOCKSTEP = os.environ.get("LOCKSTEP_COMMAND", os.path.join(ROOT, "build/release/bin/lockstep"))


def launch(command):
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)


class Launchers(unittest.TestCase):
    def check(self, result):
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(sorted(line for line in result.stdout.splitlines() if line.startswith("rank")),
                         [f"rank {r} of 2: [[12.0, 12.0, 12.0, 12.0]]" for r in range(2)])

    def test_the_lines_of_the_page(self):
        """As docs/python.md has them, of this build and with this Python."""
        with open(os.path.join(ROOT, "docs/python.md"), encoding="utf-8") as f:
            lines = re.search(r"```sh\n(\. \.venv/bin/activate\n.*?)```", f.read(), re.S)[1].splitlines()
        self.assertEqual(lines[:2], [". .venv/bin/activate", "export PYTHONPATH=build/release/python"])
        self.assertEqual(len(lines), 4)
        names = {"build/release/bin/lockstep": LOCKSTEP, "python3": sys.executable, "examples/python/data_parallel.py": EXAMPLE}
        for line in lines[2:]:
            command = [names.get(word, word) for word in line.split()]
            if command[0] == "torchrun":  # of this Python, and at a port of its own, since tests run side by side
                command[:1] = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
            done = launch(command)
            self.check(done)
            self.assertNotIn("NumPy", done.stderr, "torch warns where it is missing")


def sum_over(group, rank):
    tensor = torch.tensor([rank + 1.0])
    dist.all_reduce(tensor, group=group)
    return tensor.item()


def many_groups(rank):
    groups = [dist.new_group([0, 1]) for _ in range(5)]
    odd = dist.new_group([1, 2])
    results = [sum_over(g, rank) for g in groups] if rank < 2 else [3.0] * 5
    results.append(sum_over(odd, rank) if rank > 0 else 5.0)
    for group in groups if rank < 2 else []:
        dist.destroy_process_group(group)
    return results + [sum_over(None, rank), len(os.listdir("/proc/self/fd"))]


def one_rank(rank):
    alone = dist.new_group([0])
    return sum_over(alone, rank)


def mixed_backends(rank):
    group = dist.new_group(backend="cpu:lockstep")
    return dist.get_backend(group), sum_over(group, rank)



def over_store(rank, port):
    store = dist.TCPStore("127.0.0.1", port, 2, rank == 0, timedelta(seconds=30))
    dist.destroy_process_group()
    dist.init_process_group("lockstep", store=store, rank=rank, world_size=2)
    return sum_over(None, rank)


class Groups(unittest.TestCase):
    def test_every_group_is_its_own(self):
        for result in ranks.run(3, many_groups):
            self.assertEqual(result[:-1], [3.0] * 5 + [5.0, 6.0])

    def test_a_group_of_one(self):
        self.assertEqual(ranks.run(1, one_rank), [1.0])

    def test_named_by_device(self):
        self.assertEqual(ranks.run(2, mixed_backends), [("cpu:lockstep", 3.0)] * 2)

    def test_a_tcp_store(self):
        with ranks.free_port() as port:
            pass
        self.assertEqual(ranks.run(2, over_store, port), [3.0, 3.0])


if __name__ == "__main__":
    unittest.main(verbosity=2)
