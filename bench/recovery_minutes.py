"""bench/recovery.py --minutes: what share of its undisturbed steps a job makes while ranks are killed again and again."""

import math
import random
import statistics
import time

import recovery_rows
from recovery_job import POLL, Failed, Job

WARM = 5  # steps that all ranks have done before a slice begins
START_LIMIT = 120  # seconds


def moments(seconds, every):
    """When ranks are killed in a slice of that length: in the middle of each `every`."""
    return [every * (index + 0.5) for index in range(int(seconds / every + 1e-9))]


def slices(total, longest):
    """How many disturbed slices of which length there are."""
    count = math.ceil(total / longest - 1e-9)
    return count, total / count


def share(steps, before, after):
    """Of the steps that the undisturbed slices on both sides lead one to expect; each is (steps, seconds)."""
    rate = statistics.mean(made / seconds for made, seconds in (before, after))
    return steps[0] / (rate * steps[1])


def kill(job, rank, limit=20):
    """A rank that is just being started anew is killed as soon as it is there."""
    deadline = time.monotonic() + limit
    while not job.kill_rank(rank):
        job.check()
        if time.monotonic() > deadline:
            raise Failed(f"no process of rank {rank} was there to be killed for {limit} s")
        time.sleep(POLL)


def run_slice(contender, folder, ranks, seconds, kills):
    """kills: [(seconds from the slice's begin, rank)]. Returns steps, batches and seconds."""
    with Job(contender, folder) as job:
        job.wait_for("the start", lambda rows: recovery_rows.all_began(rows, ranks, WARM), START_LIMIT)
        begin = time.time()
        for at, rank in [*kills, (seconds, None)]:
            while (left := begin + at - time.time()) > 0:
                job.check()
                time.sleep(min(left, POLL))
            if rank is not None:
                kill(job, rank)
        end, rows = time.time(), job.rows()
    made = recovery_rows.progress(rows, end) - recovery_rows.progress(rows, begin)
    return {"steps": made, "batches": recovery_rows.batches(rows, begin, end), "seconds": end - begin, "kills": kills}


def measure(contender, folder, arguments, say):
    """Undisturbed and disturbed slices in turn, one undisturbed more. Throws Failed."""
    chosen = random.Random(arguments.seed)
    calm, disturbed = [], []
    count, seconds = slices(arguments.minutes * 60, arguments.slice)
    for index in range(count):
        calm.append(run_slice(contender, folder, arguments.ranks, arguments.calm, []))
        kills = [(at, chosen.randrange(arguments.ranks)) for at in moments(seconds, arguments.every)]
        disturbed.append(run_slice(contender, folder, arguments.ranks, seconds, kills))
        say(f"{contender.name}: slice {index + 1}: undisturbed {calm[-1]['steps'] / calm[-1]['seconds']:.1f} steps/s, "
            f"{len(kills)} kills: {disturbed[-1]['steps'] / disturbed[-1]['seconds']:.1f}")
    calm.append(run_slice(contender, folder, arguments.ranks, arguments.calm, []))
    return {"calm": calm, "disturbed": disturbed,
            "steps": shares(calm, disturbed, "steps"), "batches": shares(calm, disturbed, "batches")}


def shares(calm, disturbed, what):
    pair = lambda part: (part[what], part["seconds"])
    return [share(pair(part), pair(calm[i]), pair(calm[i + 1])) for i, part in enumerate(disturbed)]


def summary(contender, result):
    def words(values):
        return f"{100 * statistics.mean(values):.1f} % ({100 * min(values):.1f}-{100 * max(values):.1f})"
    kills = sum(len(part["kills"]) for part in result["disturbed"])
    minutes = sum(part["seconds"] for part in result["disturbed"]) / 60
    rates = [part["steps"] / part["seconds"] for part in result["calm"]]
    line = (f"{contender.name:<10} {kills} kills in {minutes:.1f} min: {words(result['steps'])} of the undisturbed steps, "
            f"which were {statistics.median(rates):.1f} a second ({min(rates):.1f}-{max(rates):.1f})")
    if contender.shrinks:
        line += f"; {words(result['batches'])} of the batches: steps are made without the dead rank's"
    return line
