"""How agents on other hosts are reached: ssh or srun starts them, or an engine has done it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import IO, Protocol, runtime_checkable

# One task on the host, beside whatever runs there, with all that the job has on it; its output is
# passed on byte by byte.
_SRUN = (
    "srun",
    "--nodes=1",
    "--ntasks=1",
    "--ntasks-per-node=1",
    "--overlap",
    "--mem=0",
    "--cpu-bind=none",
    "--mpi=none",
    "--unbuffered",
    "--kill-on-bad-exit=0",
    "--quiet",
)
# What sbatch was asked for, for each task or in all. srun may take it for options of its own step,
# whose one task would get the GPUs and cores of one rank.
_OF_SBATCH = (
    "SLURM_GPUS",
    "SLURM_GPUS_PER_NODE",
    "SLURM_GPUS_PER_SOCKET",
    "SLURM_GPUS_PER_TASK",
    "SLURM_GPU_BIND",
    "SLURM_TRES_BIND",
    "SLURM_TRES_PER_TASK",
    "SLURM_NTASKS_PER_GPU",
    "SLURM_NTASKS_PER_TRES",
    "SLURM_NTASKS_PER_CORE",
    "SLURM_NTASKS_PER_SOCKET",
    "SLURM_CPUS_PER_GPU",
    "SLURM_CPUS_PER_TASK",
    "SRUN_CPUS_PER_TASK",
    "SLURM_HINT",
    "SLURM_THREADS_PER_CORE",
    "SLURM_EXACT",
    "SLURM_EXCLUSIVE",
    "SLURM_DISTRIBUTION",
)


@runtime_checkable
class RemoteShell(Protocol):
    """What runs a command on another host, with its input and output here."""

    @property
    def program(self) -> str:
        """The name of what it starts here."""

    def command(self, host: str, remote: list[str]) -> list[str]:
        """Returns the command line that runs ``remote`` on ``host``. It contains no secret."""


class Tunnel(Protocol):
    """A connection to an agent that runs already, in the shape of a subprocess.Popen."""

    @property
    def stdin(self) -> IO[bytes] | None:
        """What is written to it goes to the agent."""

    @property
    def stdout(self) -> IO[bytes] | None:
        """What comes from the agent."""

    @property
    def stderr(self) -> IO[bytes] | None:
        """What else comes, such as errors of what has made the connection."""

    @property
    def returncode(self) -> int | None:
        """255 after the end of the connection."""

    def poll(self) -> int | None:
        """Returns `returncode`."""

    def kill(self) -> None:
        """Ends the connection."""

    def wait(self, timeout: float | None = None) -> int:
        """Waits for the end of the connection; subprocess.TimeoutExpired if it does not come."""


class Tunnels(Protocol):
    """Hosts on which an engine has started agents, which have connected to this process.

    Their ranks find the secret of the job in the environment of their agents.
    """

    engine: str

    def open(self, host: str) -> Tunnel:
        """Returns the connection to an agent, once; OSError if there is none, or it has ended."""


@dataclass(frozen=True)
class SrunOptions:
    """Steps of the surrounding Slurm job."""

    # How many GPUs a step is to have on a host, where it does not get all by itself.
    gpus: Mapping[str, int] = field(default_factory=dict)
    # This process's variables, without those that srun must not get.
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)

    @property
    def program(self) -> str:
        """The name of what it starts here."""
        return _SRUN[0]

    def command(self, host: str, remote: list[str]) -> list[str]:
        """Returns the command line that runs ``remote`` on ``host``. It contains no secret."""
        step = [*_SRUN, f"--nodelist={host}"]
        if host in self.gpus:
            step.append(f"--gres=gpu:{self.gpus[host]}" if self.gpus[host] else "--gres=none")
        kept = [name for name in _OF_SBATCH if name in self.environ]
        if not kept:
            return [*step, *remote]
        without = [f"--unset={name}" for name in kept]
        again = [f"{name}={self.environ[name]}" for name in kept]  # programs may read them
        return ["env", *without, *step, "env", *again, *remote]
