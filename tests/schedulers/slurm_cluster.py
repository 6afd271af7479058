"""Slurm on this machine alone, for a test: munged, slurmctld and slurmd as this user, all of it in one folder, on free ports.

    with SlurmCluster(folder) as slurm:
        job = slurm.submit(["--time", "5", "train.sbatch"], {"OUTPUT": "out"})
        slurm.await_state(job, "COMPLETED", 60)

When it is left nothing of it runs any more, jobs included. Daemons end with the thread that has started them as well; a job
whose test is ended by SIGKILL goes on to its own end. unavailable() says what a machine lacks.
"""
import ctypes
import os
import pwd
import re
import shutil
import signal
import socket
import subprocess
import time

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol", "scancel")
START_S = 30  # generous: the machine may be busy
PR_SET_PDEATHSIG = 1  # linux/prctl.h
LIBC = ctypes.CDLL(None, use_errno=True)
SBIN = os.pathsep.join(("/usr/sbin", "/sbin", "/usr/local/sbin"))


def which(program):
    return shutil.which(program) or shutil.which(program, path=SBIN)


def unavailable():
    """Why there is no Slurm here; "": there is."""
    missing = [program for program in PROGRAMS if which(program) is None]
    if missing:
        return f"no {', '.join(missing)} (Debian's slurm-wlm and munge)"
    return "" if user_name() else f"uid {os.getuid()} has no name in passwd, and slurm.conf needs one (SlurmUser)"


def user_name():
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return ""


def end_with_parent(parent):
    """In a child: it gets SIGTERM when its parent ends, however that does."""
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:  # it has ended already
        os._exit(1)


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class SlurmError(Exception):
    pass


class SlurmCluster:
    def __init__(self, folder, cpus=2):
        self.folder, self.cpus = folder, cpus
        self.daemons = []  # (name, Popen), in the order of their start

    def path(self, name):
        return os.path.join(self.folder, name)

    def __enter__(self):
        try:
            self.configure()
            self.start_munge()
            self.start("slurmctld", [which("slurmctld"), "-D", "-i"])
            self.await_command(["scontrol", "ping"], "is UP")
            self.start("slurmd", [which("slurmd"), "-D"])
            self.await_command(["scontrol", "show", "node"], "State=IDLE")
        except BaseException:
            self.__exit__()
            raise
        return self

    def configure(self):
        # Where a requeued job waits for its credential to run out, the least that Slurm allows.
        # Nothing here asks for rights that an ordinary user lacks.
        host = socket.gethostname().split(".")[0]
        user = user_name()
        for name in ("state", "spool"):
            os.mkdir(self.path(name))
        settings = {
            "ClusterName": "test", "SlurmctldHost": f"{host}(127.0.0.1)", "SlurmUser": user, "SlurmdUser": user,
            "AuthType": "auth/munge", "CredType": "cred/munge", "AuthInfo": f"socket={self.path('munge.socket')},cred_expire=5",
            "SlurmctldPort": free_port(), "SlurmdPort": free_port(),
            "StateSaveLocation": self.path("state"), "SlurmdSpoolDir": self.path("spool"),
            "SlurmctldPidFile": self.path("slurmctld.pid"), "SlurmdPidFile": self.path("slurmd.pid"),
            "SlurmctldLogFile": self.path("slurmctld.log"), "SlurmdLogFile": self.path("slurmd.log"),
            "ProctrackType": "proctrack/pgid", "TaskPlugin": "task/none", "SwitchType": "switch/none", "MpiDefault": "none",
            "JobAcctGatherType": "jobacct_gather/none", "AccountingStorageType": "accounting_storage/none",
            "SchedulerType": "sched/builtin", "SelectType": "select/cons_tres", "SelectTypeParameters": "CR_CPU",
            "ReturnToService": 2, "JobRequeue": 1, "KillWait": 30, "MinJobAge": 3600, "InactiveLimit": 0, "SlurmdParameters": "config_overrides",
        }
        with open(self.path("slurm.conf"), "w", encoding="utf-8") as f:
            f.writelines(f"{name}={value}\n" for name, value in settings.items())
            f.write(f"NodeName={host} NodeAddr=127.0.0.1 CPUs={self.cpus} State=UNKNOWN\n")
            f.write(f"PartitionName=test Nodes={host} Default=YES MaxTime=INFINITE State=UP\n")
        self.env = dict(os.environ, SLURM_CONF=self.path("slurm.conf"))
        for name in [name for name in self.env if name.startswith(("SLURM_JOB", "SBATCH_"))]:
            del self.env[name]

    def start(self, name, command):
        with open(self.path(name + ".out"), "w", encoding="utf-8") as out:
            parent = os.getpid()
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=self.env, preexec_fn=lambda: end_with_parent(parent))
            self.daemons.append((name, process))

    def start_munge(self):
        os.chmod(self.folder, 0o755)  # munged looks whether anybody else could write there
        key = self.path("munge.key")
        with open(os.open(key, os.O_WRONLY | os.O_CREAT, 0o600), "wb") as f:
            f.write(os.urandom(128))
        # --force: the folder of a test may lie where others can write.
        self.start("munged", [which("munged"), "--foreground", "--force", "--num-threads", "2", "--key-file", key,
                              "--socket", self.path("munge.socket"), "--pid-file", self.path("munge.pid"), "--seed-file", self.path("munge.seed"),
                              "--log-file", self.path("munge.log")])
        deadline = time.monotonic() + START_S
        while not os.path.exists(self.path("munge.socket")):
            self.check_daemons()
            if time.monotonic() > deadline:
                raise SlurmError("munged makes no socket\n" + self.logs())
            time.sleep(0.02)

    def check_daemons(self):
        for name, process in self.daemons:
            if process.poll() is not None:
                raise SlurmError(f"{name} has ended with {process.returncode}\n" + self.logs())

    def logs(self):
        text = ""
        for name in ("munged.out", "munge.log", "slurmctld.out", "slurmctld.log", "slurmd.out", "slurmd.log"):
            if os.path.exists(self.path(name)):
                with open(self.path(name), encoding="utf-8", errors="replace") as f:
                    text += f"--- {name}\n" + "".join(f.readlines()[-30:])
        return text

    def run(self, command):
        done = subprocess.run([which(command[0]), *command[1:]], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              env=self.env, timeout=60, check=False)
        return done.returncode, done.stdout

    def await_command(self, command, text):
        deadline = time.monotonic() + START_S
        while True:
            self.check_daemons()
            code, said = self.run(command)
            if code == 0 and text in said:
                return
            if time.monotonic() > deadline:
                raise SlurmError(f"{' '.join(command)} said {said!r}, not {text!r}\n" + self.logs())
            time.sleep(0.05)

    def submit(self, words, variables):
        """The number of a job: of `sbatch WORDS` with variables in its environment."""
        command = [which("sbatch"), "--parsable", *words]
        done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              env={**self.env, **variables}, timeout=60, check=False)
        if done.returncode != 0:
            raise SlurmError(f"sbatch: {done.stdout}\n" + self.logs())
        return done.stdout.strip().split(";")[0]

    def show(self, job):
        """What `scontrol show job` says of it: {"JobState": "RUNNING", ...}."""
        _, said = self.run(["scontrol", "show", "job", job])
        return dict(re.findall(r"(\w+)=(\S*)", said))

    def state(self, job):
        """Its JobState. Asked again where slurmctld was too busy for an answer."""
        deadline = time.monotonic() + START_S
        while True:
            found = self.show(job).get("JobState")
            if found is not None:
                return found
            if time.monotonic() > deadline:
                raise SlurmError(f"scontrol says nothing of job {job}\n" + self.logs())
            time.sleep(0.1)

    def await_state(self, job, state, seconds, restarts=None):
        deadline = time.monotonic() + seconds
        while True:
            self.check_daemons()
            found = self.show(job)
            if found.get("JobState") == state and (restarts is None or found.get("Restarts") == str(restarts)):
                return found
            if time.monotonic() > deadline:
                raise SlurmError(f"job {job} is {found.get('JobState')} (restarts {found.get('Restarts')}), not {state}\n" + self.logs())
            time.sleep(0.1)

    def processes(self):
        """Whoever has this cluster's slurm.conf in the environment: jobs, their steps, daemons."""
        mine, found = f"SLURM_CONF={self.path('slurm.conf')}".encode(), []
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{pid}/environ", "rb") as f:
                    if int(pid) != os.getpid() and mine in f.read().split(b"\0"):
                        found.append(int(pid))
            except OSError:
                pass  # it has ended, or is another user's
        return found

    def __exit__(self, *_):
        daemons = {process.pid for _, process in self.daemons}
        if len(self.daemons) > 1 and self.daemons[1][1].poll() is None:
            try:
                self.run(["scancel", "--full", "--user", str(os.getuid())])
            except subprocess.TimeoutExpired:
                pass
        for number, wait_s in ((signal.SIGTERM, 5), (signal.SIGKILL, 5)):
            # Jobs first: the daemons would start them anew.
            for pid in [pid for pid in self.processes() if pid not in daemons]:
                try:
                    os.kill(pid, number)
                except ProcessLookupError:
                    pass
            for _, process in reversed(self.daemons):
                if process.poll() is None:
                    process.send_signal(number)
            deadline = time.monotonic() + wait_s
            for _, process in self.daemons:
                try:
                    process.wait(max(0.1, deadline - time.monotonic()))
                except subprocess.TimeoutExpired:
                    pass
            while [pid for pid in self.processes() if pid not in daemons] and time.monotonic() < deadline:
                time.sleep(0.05)
