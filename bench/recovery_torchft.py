"""What bench/recovery.py starts for torchft: a lighthouse and replica groups of one rank each.

Started without a number it keeps the lighthouse and starts each group's process, again as soon as it dies: less
than torchrun around every group would take. Heartbeats are ten times closer than torchft's own setting, so that a dead
group is missed sooner. Gradients are averaged as one buffer with Manager.allreduce: the hook of torchft 0.2.0's own
DistributedDataParallel ends the survivors, too ("assert fut._fut"), when another group dies in the middle of it.
"""

import os
import subprocess
import sys
import time
from datetime import timedelta

from recovery_peer import SimpleCNN, batch, die_if_told, flags, note

LIMIT = timedelta(seconds=10)  # of torchft's waits
MISSED_MS = 500  # without a heartbeat for so long, a group counts as dead; torchft's own setting: 5000
TICK_MS = 10  # how often the lighthouse looks; torchft's own: 100
FEWEST = 2  # groups with which training goes on
JOIN_MS = 1000  # how long a quorum waits for a group that beats and has not asked; torchft's own: 60000


def train(arguments, group, first_life):
    import torch
    import torch.nn.functional as F
    from torch.distributed import TCPStore
    from torch.nn.utils import parameters_to_vector, vector_to_parameters
    from torchft import Manager, Optimizer, ProcessGroupGloo

    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    torch.manual_seed(1234)
    model = SimpleCNN()
    torch.manual_seed(1234 + group)  # dropout differs from rank to rank
    plain = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.5)

    def load(state):
        model.load_state_dict(state["model"])
        plain.load_state_dict(state["optimizer"])

    manager = Manager(pg=ProcessGroupGloo(timeout=LIMIT), load_state_dict=load,
                      state_dict=lambda: {"model": model.state_dict(), "optimizer": plain.state_dict()},
                      min_replica_size=FEWEST, replica_id=f"group_{group}", rank=0, world_size=1,
                      store_addr="127.0.0.1", store_port=store.port, hostname="127.0.0.1",
                      timeout=LIMIT, quorum_timeout=LIMIT, connect_timeout=LIMIT, init_sync=False)
    optimizer = Optimizer(manager, plain)
    while manager.current_step() < arguments.steps:
        before = manager.current_step()
        image, label = batch(group, arguments.ranks, before)
        optimizer.zero_grad()
        loss = F.nll_loss(model(image), label)
        die_if_told(arguments, group, before, first_life)
        loss.backward()
        gradients = [parameter.grad for parameter in model.parameters()]
        flat = parameters_to_vector(gradients)
        manager.allreduce(flat).wait()
        vector_to_parameters(flat, gradients)
        optimizer.step()
        if manager.current_step() > before and manager.is_participating():
            note(arguments.times, group, manager.current_step())
    manager.shutdown(wait=False)


def keep(arguments):
    """Starts the groups and starts again those that die, until all have ended well."""
    from torchft.coordination import LighthouseServer

    lighthouse = LighthouseServer(bind="127.0.0.1:0", min_replicas=FEWEST, join_timeout_ms=JOIN_MS, quorum_tick_ms=TICK_MS,
                                  heartbeat_timeout_ms=MISSED_MS)

    def start(group, life):
        environment = dict(os.environ, RANK=str(group), TORCHFT_LIGHTHOUSE=lighthouse.address())
        return subprocess.Popen([sys.executable, *sys.argv, "--group", str(group), "--life", str(life)], env=environment)

    lives = [0] * arguments.ranks
    running = {group: start(group, 0) for group in range(arguments.ranks)}
    while running:
        time.sleep(0.01)
        for group, process in list(running.items()):
            code = process.poll()
            if code == 0:
                del running[group]
            elif code is not None:
                lives[group] += 1
                print(f"group {group} ended with {code}; it is started again", flush=True)
                running[group] = start(group, lives[group])
    lighthouse.shutdown()


def main():
    parser = flags(__doc__)
    parser.add_argument("--ranks", type=int, default=3)
    parser.add_argument("--group", type=int, default=-1)
    parser.add_argument("--life", type=int, default=0)
    arguments = parser.parse_args()
    if arguments.group < 0:
        keep(arguments)
    else:
        train(arguments, arguments.group, arguments.life == 0)


if __name__ == "__main__":
    main()
