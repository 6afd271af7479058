"""What torch.distributed's users meet over lockstep when a rank dies, is late, or calls something else; and threads."""
import os
import signal
import sys
import threading
import time
import unittest
from datetime import timedelta

import torch
import torch.distributed as dist

import lockstep_c10d
import ranks

SIZE = 3
VICTIM = 1
WITHIN = 2.0  # seconds from a fault to an error on every other rank


def all_reduce(rank):
    dist.all_reduce(torch.ones(1 << 20))


def all_gather(rank):
    dist.all_gather([torch.zeros(3) for _ in range(SIZE)], torch.ones(3))


def barrier(rank):
    dist.barrier()


def waited(rank):
    dist.all_reduce(torch.ones(100), async_op=True).wait()


def future(rank):
    dist.all_reduce(torch.ones(100), async_op=True).get_future().then(lambda f: f.value()).wait()


def polled(rank):
    work = dist.broadcast(torch.ones(100), VICTIM, async_op=True)
    while not work.is_completed():
        time.sleep(0.01)
    work.wait()


def received(rank):
    dist.recv(torch.ones(5), VICTIM)


def received_from_any(rank):
    dist.recv(torch.ones(5))


def monitored(rank):
    lockstep_c10d.monitored_barrier(timeout=timedelta(seconds=30))


CALLS = [all_reduce, all_gather, barrier, waited, future, polled, received, received_from_any, monitored]


def with_a_victim(rank, call, fault):
    """How long after the fault the call failed, and with what."""
    dist.barrier()
    if rank == VICTIM:
        time.sleep(0.3)  # the others are inside
        if fault == "leaves":
            dist.destroy_process_group()
            time.sleep(WITHIN + 1)
            dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # what the harness takes down
            return None
        os.kill(os.getpid(), signal.SIGKILL) if fault == "killed" else os._exit(7)
    start = time.monotonic()
    try:
        call(rank)
    except RuntimeError as error:
        return time.monotonic() - start - 0.3, type(error).__name__, str(error)
    return "no error"


class Deaths(unittest.TestCase):
    def check(self, fault, calls):
        for call in calls:
            with self.subTest(call=call.__name__, fault=fault):
                outcomes = ranks.Job(SIZE, with_a_victim, call, fault).outcomes(60)
                for rank in set(range(SIZE)) - {VICTIM}:
                    self.assertEqual(outcomes[rank][0], "returned", outcomes[rank])
                    seconds, kind, text = outcomes[rank][1]
                    self.assertIn(kind, ("DistBackendError", "RuntimeError"))
                    self.assertLess(seconds, WITHIN)
                    self.assertIn(f"rank {VICTIM}", text)

    def test_killed(self):
        self.check("killed", CALLS)

    def test_exited(self):
        self.check("exited", [all_reduce, received])

    def test_left(self):
        self.check("leaves", [all_reduce, received])


def late(rank):
    group = dist.new_group(timeout=timedelta(seconds=1))
    dist.barrier()
    if rank == VICTIM:
        time.sleep(4)
        return None
    start = time.monotonic()
    try:
        dist.all_reduce(torch.ones(3), group=group)
    except RuntimeError as error:
        return time.monotonic() - start, str(error)
    return "no error"


def late_for_a_call(rank):
    dist.barrier()
    if rank == VICTIM:
        time.sleep(4)
        return None
    start = time.monotonic()
    try:
        dist.barrier(timeout=timedelta(seconds=0.5))
    except RuntimeError as error:
        return time.monotonic() - start, str(error)
    return "no error"


def impatient_wait(rank):
    """wait(timeout) gives up waiting, not the operation."""
    tensor = torch.full((10,), rank + 1.0)
    dist.barrier()
    if rank == VICTIM:
        time.sleep(3)
    work = dist.all_reduce(tensor, async_op=True)
    gave_up = False
    if rank != VICTIM:
        try:
            work.wait(timedelta(milliseconds=200))
        except RuntimeError:
            gave_up = True
    work.wait()
    return gave_up, tensor.tolist()


def line_here():
    return sys._getframe(1).f_lineno


def different_calls(rank):
    dist.barrier()
    start = time.monotonic()
    reduces, broadcasts = line_here() + 3, line_here() + 5
    try:
        if rank != VICTIM:
            dist.all_reduce(torch.ones(4))
        else:
            dist.broadcast(torch.ones(4), 0)
        dist.barrier()
    except RuntimeError as error:
        return time.monotonic() - start, str(error), reduces, broadcasts
    return "no error"


def different_gradients(rank):
    """The calls are DistributedDataParallel's, made inside of backward."""
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
    dist.barrier()
    line = line_here() + 3
    try:
        if rank != VICTIM:
            model(torch.ones(2, 4)).sum().backward()
        dist.barrier()
    except RuntimeError as error:
        return str(error), line
    return "no error"


class Lateness(unittest.TestCase):
    def test_the_group_time_out(self):
        results = ranks.run(SIZE, late)
        for rank in (0, 2):
            seconds, text = results[rank]
            self.assertTrue(0.9 < seconds < 2.5, results[rank])
            self.assertIn(" Timed out ", text)
            self.assertIn(f"rank {VICTIM}", text)

    def test_the_time_out_of_a_call(self):
        results = ranks.run(SIZE, late_for_a_call)
        for rank in (0, 2):
            self.assertTrue(0.4 < results[rank][0] < 2, results[rank])
            self.assertIn(" Timed out ", results[rank][1])

    def test_wait_with_a_time_out(self):
        results = ranks.run(SIZE, impatient_wait)
        for rank in range(SIZE):
            self.assertEqual(results[rank], (rank != VICTIM, [6.0] * 10))

    def test_different_calls_are_named(self):
        for seconds, text, reduces, broadcasts in ranks.run(SIZE, different_calls):
            self.assertLess(seconds, WITHIN)
            self.assertRegex(text, rf"ranks 0, 2: #\d+ all_reduce [^;]* at faults_test.py:{reduces};")
            self.assertRegex(text, rf"rank 1: #\d+ broadcast [^;]* at faults_test.py:{broadcasts};")

    def test_the_line_of_a_backward_is_named(self):
        for text, line in ranks.run(SIZE, different_gradients):
            self.assertRegex(text, rf"#\d+ all_reduce [^;]* at faults_test.py:{line};")


def monitored_barriers(rank):
    short = timedelta(seconds=0.5)
    lockstep_c10d.monitored_barrier()
    lockstep_c10d.monitored_barrier(wait_all_ranks=True)
    texts = []
    for everyone in (False, True):
        if rank == 0:
            try:
                lockstep_c10d.monitored_barrier(timeout=short, wait_all_ranks=everyone)
            except RuntimeError as error:
                texts.append(str(error))
    dist.barrier()
    # The group lives on.
    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    return texts, tensor.item()


def nobody_waits(rank):
    """Operations go on while their caller does something else."""
    dist.barrier()
    start = time.monotonic()
    tensor = torch.ones(1 << 18)
    work = dist.all_reduce(tensor, async_op=True)
    sent = dist.isend(torch.full((1 << 18,), rank + 1.0), (rank + 1) % SIZE) if rank == 0 else None
    if rank == 0:
        time.sleep(4)
        done = work.is_completed()
        work.wait()
        sent.wait()
        return done
    work.wait()
    if rank == 1:
        got = torch.zeros(1 << 18)
        dist.recv(got, 0)
        return time.monotonic() - start < 3 and got[-1].item() == 1
    return time.monotonic() - start < 3


def two_threads(rank):
    """One thread waits for what a peer does only after this process's other thread has sent it something."""
    peer = 1 - rank
    got = [torch.zeros(4), torch.zeros(4)]

    def second():
        time.sleep(0.3)
        dist.send(torch.full((4,), 2.0), peer, tag=2)
        dist.recv(got[1], peer, tag=3)

    thread = threading.Thread(target=second)
    thread.start()
    if rank == 0:
        dist.recv(got[0], peer, tag=1)
        dist.send(torch.full((4,), 3.0), peer, tag=3)
    else:
        dist.recv(got[0], peer, tag=2)
        dist.send(torch.full((4,), 1.0), peer, tag=1)
        dist.send(torch.full((4,), 3.0), peer, tag=3)
        rest = torch.zeros(4)
    if rank == 0:
        rest = torch.zeros(4)
        dist.recv(rest, peer, tag=2)
    thread.join(20)
    return not thread.is_alive(), got[0][0].item(), got[1][0].item()


def in_order(rank):
    """Many operations at once, of two groups, waited for in another order."""
    other = dist.new_group()
    tensors = [torch.full((1 + 977 * (i % 7),), float(rank)) for i in range(200)]
    works = [dist.all_reduce(t, async_op=True, group=other if i % 3 == 0 else None) for i, t in enumerate(tensors)]
    for work in reversed(works):
        work.wait()
    return all(torch.equal(t, torch.full_like(t, 3.0)) for t in tensors)


def after_destruction(rank):
    group = dist.new_group()
    backend = group._get_backend(torch.device("cpu"))
    work = dist.all_reduce(torch.ones(1), group=group, async_op=True) if rank == 0 else None
    dist.barrier()
    dist.destroy_process_group(group)
    texts = []
    for call in (work.wait if work else None, backend.barrier):
        try:
            if call:
                call()
        except RuntimeError as error:
            texts.append(str(error))
    return texts


class Running(unittest.TestCase):
    def test_monitored_barrier(self):
        results = ranks.run(SIZE, monitored_barriers)
        self.assertIn("Rank 1 failed to pass monitoredBarrier", results[0][0][0])
        self.assertIn("Ranks 1, 2 failed to pass monitoredBarrier", results[0][0][1])
        self.assertEqual([r[1] for r in results], [3.0] * SIZE)

    def test_nobody_waits(self):
        self.assertEqual(ranks.run(SIZE, nobody_waits), [True] * SIZE)

    def test_two_threads(self):
        self.assertEqual(ranks.run(2, two_threads), [(True, 1.0, 3.0), (True, 2.0, 3.0)])

    def test_many_at_once(self):
        self.assertEqual(ranks.run(SIZE, in_order), [True] * SIZE)

    def test_destroyed_groups(self):
        results = ranks.run(SIZE, after_destruction)
        self.assertEqual(len(results[0]), 2)
        for texts in results:
            self.assertIn("destroyed", texts[-1])


if __name__ == "__main__":
    unittest.main(verbosity=2)
