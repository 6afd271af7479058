"""What bench/recovery.py reads from a job's rows, (rank, step, seconds): so many steps the rank had done by then; step
-1: it died. Pure."""


def parse(text):
    """The rows of whole lines; one that is still being written is not there yet."""
    lines = text[:text.rfind("\n") + 1].splitlines()
    return [(int(rank), int(step), float(at)) for rank, step, at in map(str.split, lines)]


def death(rows):
    """(rank, seconds) of the first death, None before it."""
    return min(((rank, at) for rank, step, at in rows if step == -1), key=lambda dead: dead[1], default=None)


def done_after(rows, ranks, since, beyond):
    """Seconds from `since` until each of `ranks` has, after it, done one and the same step above `beyond`; None: not yet."""
    first = {}
    for rank, step, at in rows:
        if rank in ranks and step > beyond and at > since:
            by_rank = first.setdefault(step, {})
            by_rank[rank] = min(at, by_rank.get(rank, at))
    whole = [max(by_rank.values()) for by_rank in first.values() if len(by_rank) == len(ranks)]
    return min(whole) - since if whole else None


def recovery(rows, ranks, killed_in):
    """{"others": seconds from the death until the other ranks have done the next step, "all": until all have}; None:
    not yet. `killed_in`: the step, from 0, that the rank died in."""
    dead = death(rows)
    if dead is None:
        return None
    rank, at = dead
    everyone = set(range(ranks))
    whole = done_after(rows, everyone, at, killed_in)
    return None if whole is None else {"others": done_after(rows, everyone - {rank}, at, killed_in), "all": whole}


def all_began(rows, ranks, steps):
    """All ranks have done `steps` of them."""
    return len({rank for rank, step, _ in rows if step >= steps}) == ranks


def progress(rows, at):
    """How many steps the job had done at that time; one that is repeated counts once."""
    return max((step for _, step, when in rows if when <= at), default=0)


def batches(rows, begin, end):
    """How many batches went into steps within that time: as many as ranks took part in each."""
    return len({(rank, step) for rank, step, at in rows if begin < at <= end and step >= 0})
