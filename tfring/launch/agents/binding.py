"""Which cores each rank of a host gets."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

_CPUS = Path("/sys/devices/system/cpu")


def read_places(kind: str, cpus: Iterable[int], root: Path = _CPUS) -> list[list[int]]:
    """Returns the cores or sockets among some processors, each as its processors.

    `kind` is ``core``, whose processors are its hardware threads, or ``socket``.
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
def bound(job: Mapping[str, object]) -> Iterator[list[int]]:
    """Binds this process while it starts a rank; yields the rank's processors.

    The job says `bind_to` ("none", "core" or "socket"), `local_rank` and `local_size`.

    Raises:
        OSError: The system refuses.
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
