"""How agents are started on other hosts: by ssh, or within a Slurm job by srun."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

# One task on the host, beside whatever runs there, with all that the job has on it; its output is
# passed on byte by byte.
_SRUN = (
    *("srun", "--nodes=1", "--ntasks=1", "--ntasks-per-node=1", "--overlap", "--mem=0"),
    *("--cpu-bind=none", "--mpi=none", "--unbuffered", "--kill-on-bad-exit=0", "--quiet"),
)


class RemoteShell(Protocol):
    """What runs a command on another host, with its input and output here."""

    def command(self, host: str, remote: list[str]) -> list[str]:
        """Returns the command line that runs ``remote`` on ``host``. It contains no secret."""


@dataclass(frozen=True)
class SrunOptions:
    """Steps of the Slurm job around."""

    def command(self, host: str, remote: list[str]) -> list[str]:
        """Returns the command line that runs ``remote`` on ``host``. It contains no secret."""
        return [*_SRUN, f"--nodelist={host}", *remote]
