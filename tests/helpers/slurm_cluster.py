"""A cluster of real Slurm daemons for one test file: each node is a host that the test made.

It does not use the machine's own Slurm or munge.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from launcher_tools import LIMIT_SECONDS, environment, wait_until
from network_namespaces import DIES_WITH_US, Hosts, hosts

_PROGRAMS = ("slurmctld", "slurmd", "srun", "sbatch", "scontrol", "squeue", "munged", "munge")
CPUS = 4  # of each node, independent of the machine
GPUS = 4  # of each node: devices that Slurm counts and names; no process opens them
_START_SECONDS = 120.0
# The states of a job that is not over.
UNDER_WAY = ("PENDING", "CONFIGURING", "RUNNING", "COMPLETING", "SIGNALING", "STOPPED", "SUSPENDED")

# cred_expire: the wait of a requeued job, by default two minutes. The periods of the
# scheduler are a minute by default. config_overrides: nodes have the CPUs of this file.
# TmpFS: PMIx makes a folder for each step there; each node needs its own.
_CONFIGURATION = """\
ClusterName=tfring
SlurmctldHost=h0
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
TmpFS={folder}/spool.%n
GresTypes=gpu
JobAcctGatherType=jobacct_gather/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=sched_interval=1,bf_interval=1,batch_sched_delay=0
SlurmdParameters=config_overrides
SlurmdTimeout=120
MessageTimeout=60
KillWait=60
ReturnToService=2
NodeName=h[0-{last}] CPUs={cpus} RealMemory=1000 Gres=gpu:{gpus} State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


class SlurmCluster:
    """The daemons, and commands on the first node. They end with the context."""

    def __init__(self, folder: Path, made: Hosts) -> None:
        self.hosts = made
        self._folder = folder
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}
        # The environment of a user on a node: this tfring, and munge's commands with our munged.
        bin_folder = folder / "bin"
        bin_folder.mkdir()
        programs = {"tfring": f"{sys.executable} -m tfring", "python": sys.executable}
        for name in ("munge", "unmunge"):
            programs[name] = f"{shutil.which(name)} --socket={folder}/munge.socket"
        for name, command in programs.items():
            path = bin_folder / name
            path.write_text(f'#!/bin/sh\nexec {command} "$@"\n')
            path.chmod(0o755)
        self.variables: Mapping[str, str] = {
            "SLURM_CONF": str(folder / "slurm.conf"),
            "PATH": f"{bin_folder}{os.pathsep}{os.environ['PATH']}",
        }

    def up(self) -> None:
        """Starts all daemons, and waits until all nodes are idle."""
        folder, count = self._folder, self.hosts.count
        self.hosts.name_all(folder)
        for name in ("state", *(f"spool.h{node}" for node in range(count))):
            (folder / name).mkdir()
        text = _CONFIGURATION.format(folder=folder, last=count - 1, cpus=CPUS, gpus=GPUS)
        (folder / "slurm.conf").write_text(text)
        for gpu in range(GPUS):
            os.mknod(folder / f"gpu{gpu}", stat.S_IFCHR | 0o600, os.makedev(1, 3))
        devices = f"Name=gpu File={folder}/gpu[0-{GPUS - 1}]"
        (folder / "gres.conf").write_text(f"AutoDetect=off\n{devices}\n")
        key = folder / "munge.key"
        key.write_bytes(secrets.token_bytes(128))
        key.chmod(0o600)
        names = ("key-file", "socket", "pid-file", "log-file", "seed-file")
        files = [f"--{name}={folder}/munge.{name.removesuffix('-file')}" for name in names]
        # --force: munge wants a more private folder than one for temporary files.
        self._start("munged", 0, "munged", "--foreground", "--force", *files)
        assert wait_until((folder / "munge.socket").exists, _START_SECONDS), self.logs()
        self._start("slurmctld", 0, "slurmctld", "-D")
        for node in range(count):
            self.start_node(node)
        assert wait_until(self._all_idle, _START_SECONDS), self.logs()

    def down(self) -> None:
        """Ends the jobs and the daemons."""
        self.hosts.kill_all()
        for daemon in self._daemons.values():
            daemon.communicate()

    def start_node(self, node: int) -> None:
        """Starts the daemon of a node."""
        self._start(f"slurmd.h{node}", node, "slurmd", "-D", "-N", f"h{node}")

    def popen(self, node: int, *command: object, **more: str) -> subprocess.Popen[str]:
        """Starts a command on a node, with `more` in its environment."""
        return subprocess.Popen(
            [*self.hosts.inside(node), *map(str, command)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(**self.variables, **more),
        )

    def run(self, *command: object, **more: str) -> subprocess.CompletedProcess[str]:
        """Runs a command on the first node to its end."""
        started = self.popen(0, *command, **more)
        try:
            out, errors = started.communicate(timeout=LIMIT_SECONDS)
        except subprocess.TimeoutExpired:
            started.kill()
            out, errors = started.communicate()
            pytest.fail(f"{command[0]} did not end: {out}{errors}{self.logs()}")
        return subprocess.CompletedProcess(started.args, started.returncode, out, errors)

    def submit(self, script: Path, *options: object, program: tuple[object, ...] = ()) -> str:
        """Submits a batch script.

        Args:
            script: The file.
            *options: Options of sbatch.
            program: Arguments of the script.

        Returns:
            The number of the job.
        """
        done = self.run("sbatch", "--parsable", *options, script, *program)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def state(self, job: str) -> str:
        """Returns the state of a job: PENDING, RUNNING, COMPLETED, FAILED, ..."""
        return self.field("job", job, "JobState")

    def field(self, kind: str, name: str, field: str) -> str:
        """Returns a field of a job or node in `scontrol show`; "" if it is missing."""
        shown = self.run("scontrol", "--oneliner", "show", kind, name).stdout
        words = (word.partition("=") for word in shown.split())
        return next((value for key, _, value in words if key == field), "")

    def wait_for_end(self, job: str) -> str:
        """Waits until a job is over, and returns its state."""
        assert wait_until(lambda: self.state(job) not in UNDER_WAY, LIMIT_SECONDS), self.logs()
        return self.state(job)

    def logs(self) -> str:
        """Returns the last lines of the daemons' logs."""
        texts = [self.run_quietly("sinfo", "--long", "--Node"), self.run_quietly("squeue")]
        for path in sorted(self._folder.glob("*.log")):
            lines = path.read_text(errors="replace").splitlines()[-15:]
            texts.append("\n".join([f"--- {path.name}", *lines]))
        return "\n".join(texts)

    def run_quietly(self, *command: str) -> str:
        """Returns the output of a command; "" if it does not end soon."""
        started = self.popen(0, *command)
        with contextlib.suppress(subprocess.TimeoutExpired):
            return "".join(started.communicate(timeout=20))
        started.kill()
        started.communicate()
        return ""

    def _all_idle(self) -> bool:
        shown = self.run_quietly("sinfo", "--noheader", "--Node", "--format=%T").split()
        return shown == ["idle"] * self.hosts.count

    def _start(self, name: str, node: int, *command: str) -> None:
        with (self._folder / f"{name}.out.log").open("ab") as out:
            self._daemons[name] = subprocess.Popen(
                [*DIES_WITH_US, *self.hosts.inside(node), *command],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env=environment(**self.variables),
                start_new_session=True,
            )


@contextlib.contextmanager
def slurm_cluster(folder: Path, nodes: int) -> Iterator[SlurmCluster]:
    """Makes a cluster; skips the test if Slurm is missing or hosts cannot be made.

    Args:
        folder: An empty folder for the configuration, logs and state.
        nodes: The number of nodes; they are named h0, h1, ...
    """
    missing = [name for name in _PROGRAMS if shutil.which(name) is None]
    if missing:
        pytest.skip(
            f"needs {', '.join(missing)}: apt-get install slurmctld slurmd slurm-client munge"
        )
    with hosts(nodes) as made:
        cluster = SlurmCluster(folder, made)
        try:
            cluster.up()
            yield cluster
        finally:
            cluster.down()
