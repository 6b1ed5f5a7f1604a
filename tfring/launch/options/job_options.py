"""What a job of `tfring run` is."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tfring.job.security.secret import fresh_secret
from tfring.launch.agents.host import AGENT_TIMEOUT_SECONDS
from tfring.launch.agents.shells import RemoteShell, Tunnels
from tfring.launch.elastic.options import ElasticOptions, NodeOptions
from tfring.launch.hosts.placement import Slot
from tfring.runtime.settings.environment import Settings
from tfring.runtime.ssh import SshOptions

# The ranks have this long after a signal to the launcher to write a last checkpoint.
STOP_SECONDS = 30.0
BINDINGS = ("none", "core", "socket")
SHELLS = ("auto", "ssh", "srun")


@dataclass(frozen=True)
class Share:
    """The job has more ranks than those that this `tfring run` starts: others start the rest."""

    size: int  # of the whole job
    address: str  # where rank 0 listens
    port: int

    def variables(self) -> dict[str, str]:
        """Returns what ranks get to know of rank 0."""
        return {
            "TFRING_RENDEZVOUS_ADDR": self.address,
            "TFRING_RENDEZVOUS_PORT": str(self.port),
        }


@dataclass(frozen=True)
class JobOptions:
    """What to run, and how. Times are in seconds."""

    slots: list[Slot]
    argv: list[str]
    environment: Mapping[str, str] = field(default_factory=dict)
    # Starts agents on other hosts, or reaches them.
    shell: RemoteShell | Tunnels = field(default_factory=SshOptions)
    folder: str | None = None  # in which ranks start; None: that of this process
    interface: str | None = None
    start_timeout: float = Settings.start_timeout
    stop_timeout: float = STOP_SECONDS
    # After this time without a sign of life a host and the launcher count as gone; 0: never.
    agent_timeout: float = AGENT_TIMEOUT_SECONDS
    bind_to: str = "none"  # one of BINDINGS
    output_folder: Path | None = None
    exit_report: Path | None = None
    events: Path | None = None
    # What ranks on other hosts get beside `environment`; None: what sent_variables() chooses.
    sent: Mapping[str, str] | None = None
    verbose: bool = False
    tells: bool = True  # whether it is said on the screen why the job has failed
    secret: str = field(default_factory=fresh_secret, repr=False)
    job_id: str = field(default_factory=lambda: fresh_secret()[:16])
    share: Share | None = None  # None: all ranks are in `slots`
    max_restarts: int = 0  # how often all ranks start again after one has failed
    elastic: ElasticOptions | None = None  # None: its ranks stay; else `slots` is empty
    node: NodeOptions | None = None  # of an elastic job with a launcher on each node
    stopped_exit_code: int = 0  # where a signal to the launcher has ended the job in good order

    @property
    def folds(self) -> bool:
        """Whether tracebacks that end ranks are shown once, without frames of libraries."""
        return {**os.environ, **self.environment}.get("TFRING_TRACEBACK") != "full"

    @property
    def size(self) -> int:
        """How many ranks the whole job has."""
        return len(self.slots) if self.share is None else self.share.size
