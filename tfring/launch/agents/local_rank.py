"""A rank as the agent of its host starts and sees it, and which cores it gets."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from tfring.launch.agents.out_of_memory import OutOfMemoryWatch
from tfring.launch.agents.processes import end_with_parent, take_orphans

_CPUS = Path("/sys/devices/system/cpu")


class LocalRank:
    """One rank that this process has started. Its output pipes never block.

    The job has `argv`, `env`, `cwd`, and how to bind it to cores. The rank inherits some
    descriptors under the same numbers. OSError: it cannot be started.
    """

    def __init__(self, job: dict[str, Any], inherited: Sequence[int]) -> None:
        agent = os.getpid()

        def before_exec() -> None:
            end_with_parent(agent, signal.SIGKILL)
            # What a process below the rank leaves behind becomes the rank's child, and this
            # agent's when the rank has ended: so the agent knows whose it is.
            take_orphans()

        with _bound(job) as cores:
            self._process = subprocess.Popen(
                job["argv"],
                env={**os.environ, **job["env"]},
                cwd=job["cwd"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                start_new_session=True,
                preexec_fn=before_exec,
                pass_fds=inherited,
            )
        self.pid = self._process.pid
        # What is known of it: see protocol.py.
        self.facts: dict[str, Any] = {"pid": self.pid, "cores": cores}
        self.code: int | None = None  # how it ended, negative for a signal; None while it runs
        self.ended_at = 0.0  # when that was seen (time.monotonic)
        self._killed = False  # by this agent
        self._memory = OutOfMemoryWatch(self.pid)
        for _, pipe in self.streams():
            os.set_blocking(pipe.fileno(), False)

    def streams(self) -> tuple[tuple[bytes, IO[bytes]], ...]:
        """Returns its output streams with their letters: see protocol.py."""
        assert self._process.stdout is not None and self._process.stderr is not None
        return (b"o", self._process.stdout), (b"e", self._process.stderr)

    def signal(self, number: int) -> None:
        """Sends a signal to its process group, unless it has ended."""
        if self.code is None:
            self._killed = self._killed or number == signal.SIGKILL
            with contextlib.suppress(OSError):
                os.killpg(self.pid, number)

    def poll(self) -> bool:
        """Returns whether it has ended since the last call."""
        if self.code is not None or self._process.poll() is None:
            return False
        self.code, self.ended_at = self._process.returncode, time.monotonic()
        by_others = self.code == -signal.SIGKILL and not self._killed
        oom = self._memory.verdict() if by_others else ""
        self.facts.update(code=self.code, oom=oom, kernel_log=self._memory.log_read)
        return True


def read_places(kind: str, cpus: Iterable[int], root: Path = _CPUS) -> list[list[int]]:
    """Returns the cores or sockets among some processors, each as its processors.

    Those of a ``core`` are its hardware threads; the other kind is ``socket``.
    """
    places: dict[tuple[str, str], list[int]] = {}
    for cpu in sorted(cpus):
        topology = root / f"cpu{cpu}" / "topology"
        try:
            socket = (topology / "physical_package_id").read_text().strip()
            core = (topology / "core_id").read_text().strip() if kind == "core" else ""
        except OSError:  # a system that does not say: each processor by itself, in one socket
            socket, core = "", str(cpu) if kind == "core" else ""
        places.setdefault((socket, core), []).append(cpu)
    return list(places.values())


def share_of(places: list[list[int]], local_rank: int, local_size: int) -> list[int]:
    """Returns the processors of one rank of a host.

    Ranks get blocks of neighbouring places, of the same size or one more; where there are fewer
    places than ranks, neighbouring ranks share one.
    """
    first = local_rank * len(places) // local_size
    end = max(first + 1, (local_rank + 1) * len(places) // local_size)
    return sorted(cpu for place in places[first:end] for cpu in place)


@contextlib.contextmanager
def _bound(job: Mapping[str, object]) -> Iterator[list[int]]:
    """Binds this process while it starts a rank; yields the rank's processors.

    The job says `bind_to` ("none", "core" or "socket"), `local_rank` and `local_size`. OSError: the
    system refuses.
    """
    own = sorted(os.sched_getaffinity(0))
    kind = str(job.get("bind_to", "none"))
    if kind == "none":
        yield own
        return
    places = read_places(kind, own)
    mine = share_of(places, int(str(job["local_rank"])), int(str(job["local_size"])))
    os.sched_setaffinity(0, mine)
    try:
        yield mine
    finally:
        os.sched_setaffinity(0, own)
