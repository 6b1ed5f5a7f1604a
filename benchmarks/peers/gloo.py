"""PyTorch's gloo: the program of a process beside each rank."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.peers.task import Call, Place, serve
from tfring.bench.options import shape_of


class Gloo:
    """torch.distributed with the backend gloo, on tensors in place.

    Args:
        place: The place of this process.
    """

    def __init__(self, place: Place) -> None:
        os.environ["GLOO_SOCKET_IFNAME"] = place.interface
        torch.set_num_threads(place.threads)
        self._place = place
        self._store: Any = None
        port = 0
        if place.rank == 0:
            self._store = dist.TCPStore(
                place.host, 0, place.size, is_master=True, wait_for_workers=False
            )
            port = self._store.port
        self.address = f"{place.host}:{port}"

    def join(self, addresses: list[str]) -> None:
        """Connects the processes."""
        if self._store is None:
            host, _, port = addresses[0].rpartition(":")
            self._store = dist.TCPStore(host, int(port), self._place.size, is_master=False)
        rank, size = self._place.rank, self._place.size
        dist.init_process_group("gloo", store=self._store, rank=rank, world_size=size)

    def barrier(self) -> None:
        """Waits for all ranks."""
        dist.barrier()

    def prepare(self, spec: dict[str, Any]) -> tuple[Call, Call | None]:
        """Returns a function that runs a case."""
        kind, dtype = spec["kind"], getattr(torch, spec["dtype"])
        if kind == "step":
            raise NotImplementedError("a training step in PyTorch is another program")
        if kind == "set":
            tensors = [torch.zeros(count, dtype=dtype) for count in spec["counts"]]
            return lambda: _all(tensors), None
        shape = shape_of(kind, spec["bytes"], spec["dtype"], self._place.size)
        given = torch.zeros(shape.given, dtype=dtype)
        received = torch.zeros(shape.received, dtype=dtype)
        return self._calls(given, received)[kind], None

    def _calls(self, given: Any, received: Any) -> dict[str, Callable[[], object]]:
        root = self._place.rank == 0
        parts = list(received.chunk(self._place.size))
        given_parts = list(given.chunk(self._place.size))
        return {
            "allreduce": lambda: dist.all_reduce(given),
            "allgather": lambda: dist.all_gather(parts, given),
            "reducescatter": lambda: dist.reduce_scatter_tensor(received, given),
            "alltoall": lambda: dist.all_to_all_single(received, given),
            "broadcast": lambda: dist.broadcast(given, 0),
            "reduce": lambda: dist.reduce(given, 0),
            "gather": lambda: dist.gather(given, parts if root else None, 0),
            "scatter": lambda: dist.scatter(received, given_parts if root else None, 0),
        }


def _all(tensors: list[Any]) -> None:
    for work in [dist.all_reduce(tensor, async_op=True) for tensor in tensors]:
        work.wait()


if __name__ == "__main__":
    serve(Gloo)
