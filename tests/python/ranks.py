"""Runs a function on several ranks, each a process, for the tests of this folder."""
import contextlib
import multiprocessing
import os
import socket
import sys
import tempfile
import time
import traceback
import warnings
from datetime import timedelta

import torch
import torch.distributed as dist

import lockstep_c10d  # noqa: F401  registers the backend


class RankFailed(Exception):
    """A rank raised or died; the message has what is known of every rank."""


def _rank(function, rank, size, folder, pipe, backend, timeout, args):
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", FutureWarning)  # torch.distributed renames its functions
    outcome = None
    try:
        dist.init_process_group(backend, init_method=f"file://{folder}/store", rank=rank, world_size=size,
                                timeout=timedelta(seconds=timeout))
        outcome = ("returned", function(rank, *args))
        dist.destroy_process_group()
    except BaseException:
        outcome = ("raised", traceback.format_exc())
    pipe.send(outcome)
    pipe.close()
    sys.stdout.flush()
    os._exit(0)  # no teardown of a group that may be broken


class Job:
    """Ranks that run `function(rank, *args)` in a default group. `results()` waits for all of them."""

    def __init__(self, size, function, *args, backend="lockstep", timeout=60):
        self.folder = tempfile.TemporaryDirectory()
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["torch", "torch.distributed", "lockstep_c10d"])
        self.pipes, self.processes = [], []
        for rank in range(size):
            mine, theirs = context.Pipe(duplex=False)
            process = context.Process(
                target=_rank, args=(function, rank, size, self.folder.name, theirs, backend, timeout, args), daemon=True)
            process.start()
            theirs.close()
            self.pipes.append(mine)
            self.processes.append(process)

    def outcomes(self, within=120):
        """For every rank ("returned", value), ("raised", traceback) or ("died", exit code); None for one still running."""
        deadline = time.monotonic() + within
        found = []
        try:
            for pipe, process in zip(self.pipes, self.processes):
                outcome = None
                if pipe.poll(max(0.0, deadline - time.monotonic())):
                    with contextlib.suppress(EOFError):
                        outcome = pipe.recv()
                    if outcome is None:
                        process.join(5)
                        outcome = ("died", process.exitcode)
                found.append(outcome)
        finally:
            for process in self.processes:
                process.kill()
                process.join()
            self.folder.cleanup()
        return found

    def results(self, within=120):
        outcomes = self.outcomes(within)
        if all(o is not None and o[0] == "returned" for o in outcomes):
            return [o[1] for o in outcomes]
        lines = [f"rank {r}: " + ("still runs" if o is None else f"{o[0]} {o[1]}") for r, o in enumerate(outcomes)]
        raise RankFailed("\n".join(lines))


def run(size, function, *args, within=120, **options):
    """The ranks' return values."""
    return Job(size, function, *args, **options).results(within)


@contextlib.contextmanager
def free_port():
    """A port that was free a moment ago."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        yield listener.getsockname()[1]
