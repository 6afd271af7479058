"""Ray as a contender of `lockstep bench rpc`: methods of an actor, called by this process; what rpc_work.cpp does in C++.

arguments: TURNS
"""
import json
import os
import sys
import tempfile
import threading
import time

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
import numpy as np
import ray

WARM_UP_CALLS, LEAST_CALLS, MOST_CALLS, LEAST_SENDS = 100, 20, 200_000, 3


class Turns:
    """As TurnTaker of turns.h; the client is the second process of two."""

    def __init__(self, address):
        pid, fds = address.split(":")
        go, back = fds.split(",")[2:4]
        self.go = open(f"/proc/{pid}/fd/{go}")
        self.back = open(f"/proc/{pid}/fd/{back}", "w")

    def take(self):
        line = self.go.readline().strip()
        return json.loads(line) if line not in ("", "0") else None

    def answer(self, text):
        self.back.write(text + "\n")
        self.back.flush()


@ray.remote
class Server:
    def add(self, a, b):
        return a + b

    def take(self, tensor):
        return float(tensor[0]) + float(tensor[len(tensor) // 2]) + float(tensor[-1])


def expect(right, what):
    if not right:
        raise RuntimeError(f"the server's answer to {what} is wrong")


def small(server, task):
    for i in range(WARM_UP_CALLS):
        expect(ray.get(server.add.remote(i, 2)) == i + 2, "add")
    times, start = [], time.perf_counter()
    while len(times) < LEAST_CALLS or (time.perf_counter() - start < task["turn_ms"] / 1e3 and len(times) < MOST_CALLS):
        i, begin = len(times), time.perf_counter()
        total = ray.get(server.add.remote(i, 3))
        times.append(time.perf_counter() - begin)
        expect(total == i + 3, "add")
    return times


def fly(server, calls, threads):
    sums, start = [None] * threads, threading.Barrier(threads + 1)

    def run(t):
        first, end = calls * t // threads, calls * (t + 1) // threads
        start.wait()
        sums[t] = sum(ray.get([server.add.remote(i, 1) for i in range(first, end)]))

    pool = [threading.Thread(target=run, args=(t,)) for t in range(threads)]
    for thread in pool:
        thread.start()
    start.wait()
    begin = time.perf_counter()
    for thread in pool:
        thread.join()
    seconds = time.perf_counter() - begin
    expect(None not in sums and sum(sums) == calls * (calls + 1) // 2, "many calls of add")
    return seconds


def flight(server, task):
    fly(server, max(task["threads"], task["calls"] // 50), task["threads"])
    return [fly(server, task["calls"], task["threads"])]


def tensor(server, task):
    data = np.empty(max(1, task["bytes"] // 4), dtype=np.float32)

    def send(value):
        data.fill(value % 100 + 1)
        begin = time.perf_counter()
        found = ray.get(server.take.remote(data))
        seconds = time.perf_counter() - begin
        expect(found == 3.0 * (value % 100 + 1), "a tensor")
        return seconds

    send(0)
    times, start = [], time.perf_counter()
    while len(times) < LEAST_SENDS or time.perf_counter() - start < task["turn_ms"] / 1e3:
        times.append(send(len(times) + 1))
    return times


def main():
    turns = Turns(sys.argv[1])
    with tempfile.TemporaryDirectory(prefix="ray-") as folder:
        ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR",
                 object_store_memory=2 << 30, _temp_dir=folder)
        server = Server.remote()
        expect(ray.get(server.add.remote(1, 2)) == 3, "add")
        turns.answer("ready")
        while task := turns.take():
            times = {"small": small, "flight": flight, "tensor": tensor}[task["what"]](server, task)
            p50, p99 = np.quantile(np.array(times) * 1e6, [0.5, 0.99])
            turns.answer(json.dumps({"operations": len(times), "p50_us": p50, "p99_us": p99}))
        ray.shutdown()


main()
