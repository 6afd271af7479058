"""The jobs of bench/recovery.py: what each contender is started with, and its processes."""

import dataclasses
import os
import pathlib
import re
import signal
import subprocess
import time
import uuid

import recovery_rows

SPARE = b"LOCKSTEP_SPARE_FD="  # in the environment of a spare, and of a rank that was one
STILL = 10  # looks in a row at which a spare sleeps: it waits
MARK = "RECOVERY_BENCH_JOB"  # in the environment of all processes of a job: how they are found, whoever started them
TAKEN = re.compile(r"rank (\d+) is pid (\d+) from now on, which was a spare")
POLL = 0.05  # seconds


class Failed(Exception):
    """A job that ended or did not get on: the words say what it was seen doing."""


@dataclasses.dataclass
class Contender:
    name: str
    command: list  # takes the flags of examples/recovery
    environment: dict = dataclasses.field(default_factory=dict)
    shrinks: bool = False  # steps are made without the dead rank until it is back
    spares: bool = False  # a process that has started beforehand takes the dead rank's place


def last_words(path):
    lines = [line.strip() for line in path.read_text(errors="replace").splitlines()]
    telling = [line for line in lines if "Error" in line and not line.startswith(("raise ", "error_file"))]
    return (telling or [line for line in lines if line] or ["it printed nothing"])[-1][:300]


class Job:
    """A running job; leaving the `with` ends all of its processes."""

    def __init__(self, contender, folder, flags=()):
        folder = pathlib.Path(folder)
        self.times = folder / "times"
        self.output = folder / "output"
        for old in (self.times, *folder.glob("checkpoint*")):
            old.unlink(missing_ok=True)
        self.still = 0
        self.mark = uuid.uuid4().hex
        environment = dict(os.environ, **contender.environment, OMP_NUM_THREADS="1", **{MARK: self.mark})
        with open(self.output, "w") as output:
            self.launcher = subprocess.Popen(
                [*map(str, contender.command), "--steps", str(10**9), "--times", str(self.times), *map(str, flags)],
                cwd=folder, env=environment, stdout=output, stderr=subprocess.STDOUT, start_new_session=True)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.launcher.terminate()
        try:
            self.launcher.wait(20)
        except subprocess.TimeoutExpired:
            pass
        # A launcher that was itself killed leaves ranks behind, which would take time from the next job.
        deadline = time.monotonic() + 20
        while (left := list(self._processes())) and time.monotonic() < deadline:
            for pid, _ in left:
                self._kill(pid)
            time.sleep(POLL)
        self.launcher.wait(20)

    def _processes(self):
        """(pid, rank or None) of each process of this job."""
        taken = self._former_spares()
        for folder in pathlib.Path("/proc").iterdir():
            if not folder.name.isdigit():
                continue
            try:
                words = (folder / "environ").read_bytes().split(b"\0")
            except OSError:
                continue  # it is gone, or somebody else's
            if f"{MARK}={self.mark}".encode() in words:
                ranks = [int(word[5:]) for word in words if word.startswith(b"RANK=")]
                yield int(folder.name), taken.get(int(folder.name), ranks[0] if ranks else None)

    def _former_spares(self):
        """{pid: rank} of ranks that were spares, whose environment, as others see it, has no rank."""
        return {int(pid): int(rank) for rank, pid in TAKEN.findall(self.output.read_text(errors="replace"))}

    def spare_waits(self):
        """Whether a spare has started so far as to wait for a rank; called again and again."""
        asleep = False
        for pid, rank in self._processes():
            try:
                folder = pathlib.Path("/proc") / str(pid)
                if rank is None and SPARE in (folder / "environ").read_bytes():
                    asleep = asleep or (folder / "stat").read_text().rpartition(") ")[2].startswith("S")
            except OSError:
                pass  # it is gone
        self.still = self.still + 1 if asleep else 0
        return self.still >= STILL

    def kill_and_note(self, rank):
        """Kills it from outside, with the row of a rank that kills itself; how many steps had been done."""
        with open(self.times, "a") as times:
            times.write(f"{rank} -1 {time.time():.6f}\n")
        if not self.kill_rank(rank):
            raise Failed(f"no process of rank {rank} was there to be killed")
        rows = self.rows()
        return recovery_rows.progress(rows, recovery_rows.death(rows)[1])

    @staticmethod
    def _kill(pid):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            return False
        return True

    def kill_rank(self, rank):
        """Whether a process of that rank was there to be killed."""
        return any([self._kill(pid) for pid, of in list(self._processes()) if of == rank])

    def rows(self):
        return recovery_rows.parse(self.times.read_text()) if self.times.exists() else []

    def check(self):
        if (code := self.launcher.poll()) is not None:
            raise Failed(f"it ended with {code}: {last_words(self.output)}")

    def wait_for(self, what, condition, limit):
        """What condition(rows) gives as soon as it is true. Throws Failed after `limit` seconds and at the job's end."""
        deadline = time.monotonic() + limit
        while not (found := condition(self.rows())):
            self.check()
            if time.monotonic() > deadline:
                raise Failed(f"{what} took more than {limit} s: {last_words(self.output)}")
            time.sleep(POLL)
        return found
