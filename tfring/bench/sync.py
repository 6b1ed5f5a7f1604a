"""What the ranks of a measurement do together, on one host and on several."""

from __future__ import annotations

import os
import tempfile

import numpy as np

from tfring.bench.samples import Array
from tfring.bench.shared_barrier import SharedBarrier, file_size
from tfring.collectives.allreduce import allreduce
from tfring.collectives.objects import allgather_json
from tfring.collectives.sync import barrier
from tfring.ops.reduce_ops import Max
from tfring.runtime.topology import local_size, rank, size


def shared_file() -> int | None:
    """Returns the file of a SharedBarrier of all ranks; all ranks call it.

    The file has no name any more, so it is gone when the processes are.

    Returns:
        Its descriptor; None: the ranks are on several hosts.
    """
    if any(allgather_json(local_size() != size(), "tfring.bench.hosts")):
        return None
    path, fd = "", -1
    if rank() == 0:
        folder = "/dev/shm" if os.path.isdir("/dev/shm") else None
        fd, path = tempfile.mkstemp(prefix="tfring-bench-", dir=folder)
        os.ftruncate(fd, file_size(size()))
    name = str(allgather_json(path, "tfring.bench.file")[0])
    if rank() != 0:
        fd = os.open(name, os.O_RDWR)
    allgather_json(None, "tfring.bench.opened")
    if path:
        os.unlink(path)
    return fd


class RankSync:
    """The ranks of this job: on one host with a SharedBarrier, else with tfring's barrier."""

    def __init__(self) -> None:
        fd = shared_file()
        self._shared = None if fd is None else SharedBarrier(fd, rank(), size())

    def barrier(self) -> None:
        """Waits until all ranks are here."""
        if self._shared is not None:
            self._shared.wait()
        else:
            barrier()

    def slowest(self, values: Array) -> Array:
        """Returns the largest value of all ranks, for each element."""
        largest = allreduce(np.asarray(values, float), op=Max, name="tfring.bench.slowest")
        return np.asarray(largest)
