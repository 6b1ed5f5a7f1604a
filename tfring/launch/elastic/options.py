"""What an elastic job is asked for: how many workers, where, and how its nodes meet."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from tfring.launch.hosts.placement import Hosts

ELASTIC_SECONDS = 600.0
# A job without a limit has as many workers as its hosts have slots.
NO_LIMIT = 1 << 20


@dataclass(frozen=True)
class ElasticOptions:
    """How many workers an elastic job has, and where. Times are in seconds."""

    np: int  # ranks that the first generation waits for, at most start_timeout
    min_np: int
    max_np: int
    spares: int = 0
    hosts: Hosts = ()  # where no script says them
    script: str | None = None  # a command for the shell that prints the hosts
    slots: int | None = None  # of a host for which the script says none
    timeout: float = ELASTIC_SECONDS  # for which there may be fewer than min_np
    reset_limit: int = -1
    cooldown: tuple[float, float] | None = None
    blacklist: bool = False  # the first failure bars a host for the rest of the job
    only_failures_count: bool = False  # for the reset limit; else each change of the ranks


@dataclass(frozen=True)
class NodeOptions:
    """Where the nodes of a job meet that are started one by one, and what this one gives."""

    host: str
    port: int
    job: str  # nodes of another job that meet at the same place are refused
    slots: int  # of this node
    apart: bool = False  # a process of its own serves there, which may be started again

    @property
    def job_id(self) -> str:
        """The id of the job, the same on all of its nodes."""
        where = f"{self.job} at {self.host} port {self.port}"
        return hashlib.sha256(where.encode()).hexdigest()[:16]
