"""How agents on other hosts are reached: ssh or srun starts them, or an engine has done it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import IO, Protocol, runtime_checkable

# One task on the host, beside whatever runs there, with all that the job has on it; its output is
# passed on byte by byte.
_SRUN = (
    *("srun", "--nodes=1", "--ntasks=1", "--ntasks-per-node=1", "--overlap", "--mem=0"),
    *("--cpu-bind=none", "--mpi=none", "--unbuffered", "--kill-on-bad-exit=0", "--quiet"),
)


@runtime_checkable
class RemoteShell(Protocol):
    """What runs a command on another host, with its input and output here."""

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
        """What else is said of it."""

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
        """Returns the connection to an agent; it is asked for once.

        Raises:
            OSError: There is none, or it has ended.
        """


@dataclass(frozen=True)
class SrunOptions:
    """Steps of the Slurm job around."""

    def command(self, host: str, remote: list[str]) -> list[str]:
        """Returns the command line that runs ``remote`` on ``host``. It contains no secret."""
        return [*_SRUN, f"--nodelist={host}", *remote]
