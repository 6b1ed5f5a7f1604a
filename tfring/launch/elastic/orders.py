"""What the coordinator of an elastic job wants of the launcher that starts its workers."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import queue
from dataclasses import dataclass
from typing import Protocol

from tfring.elastic.records import Member
from tfring.runtime.texts.ranks import rank_ranges

# In place of the exit code of a worker that was not started, because its launcher ends.
NOT_STARTED = -1


@dataclass(frozen=True)
class StartWorker:
    """Start a worker."""

    worker: int  # its id, one for each life of a process
    host: str  # its host
    slot: int  # its slot there
    first: bool  # whether it is for the first generation, whose init waits for all
    size: int  # how many ranks the job has, or begins with
    rank: int  # which one it is likely to be
    restarts: int = 0  # how often all workers have started again

    def variables(self) -> dict[str, str]:
        """Returns the worker's variables, but for those that say where its coordinator is.

        HOROVOD_RANK and the like are what Horovod's launcher sets for scripts that read them before
        `init`: what the rank is likely to be. The truth comes with the generation.
        """
        return {
            "TFRING_X_ELASTIC_WORKER": str(self.worker),
            "TFRING_X_ELASTIC_HOST": self.host,
            "TFRING_X_ELASTIC_SLOT": str(self.slot),
            "TFRING_X_ELASTIC_FIRST": str(int(self.first)),
            "TFRING_X_RESTART_COUNT": str(self.restarts),
            "HOROVOD_ELASTIC": "1",
            "HOROVOD_HOSTNAME": self.host,
            "HOROVOD_RANK": str(self.rank),
            "HOROVOD_SIZE": str(self.size),
            "HOROVOD_LOCAL_RANK": str(self.slot),
        }


@dataclass(frozen=True)
class KillWorker:
    """End what is left of a worker's process."""

    worker: int


@dataclass(frozen=True)
class Restart:
    """All workers end, and others are started in their places."""

    number: int  # of this restart, from 1 on
    most: int  # restarts that the job may have
    reason: str  # why, in a line

    def text(self) -> str:
        """Returns ``rank 2 ... ended with exit code 1; all ranks start again (restart 1 of 3)``."""
        return f"{self.reason}; all ranks start again (restart {self.number} of {self.most})"


@dataclass(frozen=True)
class Note:
    """A line for people."""

    text: str


@dataclass(frozen=True)
class HostsFound:
    """The discovery script has named other hosts than before, which get workers from now on."""

    hosts: list[tuple[str, int]]


@dataclass(frozen=True)
class EndJob:
    """The job is over."""

    code: int  # its exit code
    reason: str  # why, in a line
    # Whether its members have to be asked to end, and may save first; else they were told.
    ask: bool = False


@dataclass(frozen=True)
class Generation:
    """A generation was proposed: rank r is members[r]."""

    number: int
    members: tuple[Member, ...]

    def text(self) -> str:
        """Returns ``ranks 0-1 are workers 1,3 on node1, rank 2 is worker 2 on node2``."""
        hosts: dict[str, list[int]] = {}
        for rank, member in enumerate(self.members):
            hosts.setdefault(member.host, []).append(rank)
        parts = []
        for host, ranks in hosts.items():
            workers = ",".join(str(self.members[rank].worker) for rank in ranks)
            if len(ranks) == 1:
                parts.append(f"rank {ranks[0]} is worker {workers} on {host}")
            else:
                parts.append(f"ranks {rank_ranges(ranks)} are workers {workers} on {host}")
        return ", ".join(parts)


Order = StartWorker | KillWorker | Restart | Note | EndJob | Generation
_KINDS = {kind.__name__: kind for kind in (StartWorker, KillWorker, Restart, EndJob, Generation)}


def order_text(order: Order) -> str:
    """Returns an order as JSON, for another process."""
    return json.dumps({"order": type(order).__name__, **dataclasses.asdict(order)})


def order_from(text: bytes) -> Order:
    """Reads what `order_text` has written."""
    fields = json.loads(text)
    if "members" in fields:
        fields["members"] = tuple(Member(*member) for member in fields["members"])
    order: Order = _KINDS[fields.pop("order")](**fields)
    return order


class Orders:
    """Orders on their way to the thread that carries them out, which `fd` wakes.

    put() may be called from any thread.
    """

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Order | HostsFound] = queue.SimpleQueue()
        self.fd, self._write = os.pipe()
        os.set_blocking(self.fd, False)
        os.set_blocking(self._write, False)

    def put(self, order: Order | HostsFound) -> None:
        """Adds an order."""
        self._queue.put(order)
        with contextlib.suppress(OSError):  # full: the thread will wake; closed: nobody waits
            os.write(self._write, b"x")

    def take_all(self) -> list[Order | HostsFound]:
        """Returns the orders that have come, in order."""
        with contextlib.suppress(BlockingIOError):
            os.read(self.fd, 4096)
        found = []
        with contextlib.suppress(queue.Empty):
            while True:
                found.append(self._queue.get_nowait())
        return found

    def close(self) -> None:
        """Closes the descriptors; orders that come later are lost."""
        fd, write = self.fd, self._write
        self.fd = self._write = -1
        os.close(fd)
        os.close(write)


class Head(Protocol):
    """Where the orders come from: the coordinator in this process, or that of another node."""

    def variables(self, start: StartWorker) -> dict[str, str]:
        """Returns how a worker finds the coordinator, as variables."""

    def connection(self, host: str) -> str:
        """Returns what to connect to for starting workers on a host that the coordinator names."""

    def stop(self) -> None:
        """Says that this launcher starts no more workers, as a signal ends it."""

    def ended(self, worker: int, exit_code: int, cause: str) -> None:
        """Says that a worker's process is over.

        The exit code is as a shell reports it, or NOT_STARTED; the cause is the exception that
        ended it, "" if none is known.
        """

    def close(self) -> None:
        """Ends the coordinator, or the connection to it."""
