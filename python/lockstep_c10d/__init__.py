"""Lockstep's collectives for torch.distributed.

    import lockstep_c10d
    torch.distributed.init_process_group("lockstep")

Importing registers the backend "lockstep" for CPU tensors. Every process group is a communicator of its own: shared
memory where its ranks share a host, else what lockstep::init() would choose. LOCKSTEP_BACKEND names another one.
"""

import functools as _functools
import os as _os

import torch as _torch
import torch.distributed as _dist
from torch.nn.parallel import DistributedDataParallel as _Ddp

from . import _C

# Errors name the program's lines, not those through which its calls come.
_C.set_foreign_folders([_os.path.dirname(_torch.__file__), _os.path.dirname(__file__)])


def _connect(options, _backend_options):
    world = not options.global_ranks_in_group  # torch.distributed lists the ranks of every other group
    return _C.connect_group(options.store, options.group_rank, options.group_size, options.timeout, world)


def monitored_barrier(group=None, timeout=None, wait_all_ranks=False):
    """torch.distributed.monitored_barrier, which asks for gloo by name: rank 0 names the ranks that did not arrive."""
    if _dist.distributed_c10d._rank_not_in_group(group):
        return
    group = group or _dist.group.WORLD
    if timeout is None:
        timeout = _dist.distributed_c10d._get_default_timeout("gloo")
    group.monitored_barrier(timeout, wait_all_ranks=wait_all_ranks)


_dist.Backend.register_backend("lockstep", _connect, extended_api=True, devices=["cpu"])


def _name_backend(get_logging_data):
    """In DistributedDataParallel's logging data every backend from outside torch is "custom"; it gets its name."""

    @_functools.wraps(get_logging_data)
    def named(self):
        data = get_logging_data(self)
        if data.get("backend_name") == "custom":
            data["backend_name"] = _dist.get_backend(self.process_group)
        return data

    return named


_Ddp._get_ddp_logging_data = _name_backend(_Ddp._get_ddp_logging_data)
