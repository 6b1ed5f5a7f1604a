"""Raw MPI through mpi4py, on numpy arrays, in the process of the rank."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tfring.bench.options import shape_of

_WITHOUT_TYPE = ("float16", "bfloat16")  # MPI cannot sum these dtypes


def mpi_call(spec: dict[str, Any], local_step: Callable[[], object] | None) -> Any:
    """Returns a function that runs a case with raw MPI.

    Args:
        spec: The description of the case.
        local_step: The training step without communication.

    Returns:
        The function, or the reason as text if MPI cannot run the case.
    """
    from mpi4py import MPI

    if spec["dtype"] in _WITHOUT_TYPE:
        return f"MPI has no sum of {spec['dtype']}"
    comm = MPI.COMM_WORLD
    if spec["kind"] in ("set", "step"):
        return _set_call(MPI, comm, spec, local_step)
    shape = shape_of(spec["kind"], spec["bytes"], spec["dtype"], comm.size)
    sent = np.ones(shape.given, spec["dtype"])
    received = np.ones(shape.received, spec["dtype"])
    root = comm.rank == 0
    return {
        "allreduce": lambda: comm.Allreduce(sent, received),
        "allgather": lambda: comm.Allgather(sent, received),
        "reducescatter": lambda: comm.Reduce_scatter_block(sent, received),
        "alltoall": lambda: comm.Alltoall(sent, received),
        "broadcast": lambda: comm.Bcast(sent),
        "reduce": lambda: comm.Reduce(sent, received if root else None),
        "gather": lambda: comm.Gather(sent, received if root else None),
        "scatter": lambda: comm.Scatter(sent if root else None, received),
    }[spec["kind"]]


def _set_call(
    mpi: Any, comm: Any, spec: dict[str, Any], local_step: Callable[[], object] | None
) -> Callable[[], object]:
    """Returns one Iallreduce for each tensor, after the step if there is one."""
    sent = [np.ones(count, spec["dtype"]) for count in spec["counts"]]
    received = [np.empty_like(array) for array in sent]

    def call() -> None:
        if local_step is not None:
            local_step()
        pairs = zip(sent, received, strict=True)
        mpi.Request.Waitall([comm.Iallreduce(a, b) for a, b in pairs])

    return call
