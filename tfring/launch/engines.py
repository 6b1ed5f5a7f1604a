"""What jobs on the engines of other projects (Ray, Spark) share.

The variables by which a rank finds its job, the GPUs that it sees, which of several errors is the
cause, and whether `import horovod` means tfring.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from tfring.launch.hosts.placement import Slot

# What a collective raises because another rank has failed: Cancelled, Aborted, Unavailable, as
# TensorFlow and the runtime number them.
_CONSEQUENCES = (1, 10, 14)
# FailedPrecondition has other reasons, too. This is that of a collective after its generation.
_FAILED_PRECONDITION, _AFTER_ITS_GENERATION = 9, " is over on rank "
# Where these numbers mean that, by package and class: other classes have codes of their own. By
# name, so that neither is loaded for it.
_NUMBERED = {("tfring", "CoreError"): "code", ("tensorflow", "OpError"): "error_code"}


class Where(NamedTuple):
    """Where a worker runs."""

    node: str  # its node, as the engine names it
    address: str  # the address of that node
    gpus: tuple[str, ...] = ()  # the GPUs that the engine has given to it


def job_variables(
    secret: str, job_id: str, start_timeout: float, interface: str | None, extra: Mapping[str, str]
) -> dict[str, str]:
    """Returns the variables that are the same for all workers; those in `extra` win."""
    given = {"TFRING_INTERFACE": interface} if interface else {}
    return {
        "PYTHONUNBUFFERED": "1",
        "TFRING_X_PARENT": "",  # of a rank that starts this job
        "TFRING_SECRET": secret,
        "TFRING_JOB_ID": job_id,
        "TFRING_START_TIMEOUT": f"{start_timeout:g}",
        **given,
        **{name: str(value) for name, value in extra.items()},
    }


def rank_variables(workers: Sequence[Where]) -> list[dict[str, str]]:
    """Returns the variables of each rank of a job whose workers stay.

    HOROVOD_RANK and the like are for scripts that read them before `init`. Workers of one node see
    all GPUs of these workers, in the order of their local ranks: NCCL then copies between GPUs
    directly, and `gpus[hvd.local_rank()]` is the worker's own.
    """
    found = []
    for worker, slot in zip(workers, places(workers), strict=True):
        values = slot.variables("TFRING_X_", len(workers))
        values |= slot.variables("HOROVOD_", len(workers))
        values["HOROVOD_HOSTNAME"] = worker.address
        if gpus := gpus_of_node(workers, worker.node):
            values["CUDA_VISIBLE_DEVICES"] = gpus
        found.append(values)
    return found


def places(workers: Sequence[Where]) -> list[Slot]:
    """Returns the place of each rank on its node and across nodes."""
    nodes = list(dict.fromkeys(worker.node for worker in workers))
    by_node = {node: [r for r, one in enumerate(workers) if one.node == node] for node in nodes}
    found = []
    for rank, worker in enumerate(workers):
        neighbours = by_node[worker.node]
        local = neighbours.index(rank)
        cross = [node for node in nodes if len(by_node[node]) > local]
        across = cross.index(worker.node), len(cross)
        found.append(Slot(rank, worker.node, local, len(neighbours), *across))
    return found


def gpus_of_node(workers: Sequence[Where], node: str) -> str:
    """Returns CUDA_VISIBLE_DEVICES with the GPUs of all ranks of a node; "" if they have none."""
    return ",".join(gpu for worker in workers if worker.node == node for gpu in worker.gpus)


def with_own_first(gpus: int, own: Sequence[str], slot: int) -> str:
    """Returns CUDA_VISIBLE_DEVICES with all GPUs of a node, in which `gpus[slot]` is our own.

    In an elastic job nobody knows which GPUs the other workers of a node will get.
    """
    order = [str(number) for number in range(gpus)]
    if not own or own[0] not in order or slot >= gpus:
        return ",".join(own)
    at = order.index(own[0])
    order[at], order[slot] = order[slot], order[at]
    return ",".join(order)


def interfaces(nics: str | Sequence[str] | None) -> str | None:
    """Returns network interfaces as one text, "eth0,eth1"; None: what fits."""
    return nics if nics is None or isinstance(nics, str) else ",".join(nics)


def is_consequence(error: BaseException | None) -> bool:
    """Whether a rank raised an exception because another rank has failed; None: it is not known."""
    for cls in type(error).__mro__:
        attribute = _NUMBERED.get((cls.__module__.split(".")[0], cls.__name__))
        if attribute is not None:
            code = getattr(error, attribute, None)
            late = code == _FAILED_PRECONDITION and _AFTER_ITS_GENERATION in str(error)
            return late or code in _CONSEQUENCES
    return False


def line(error: BaseException) -> str:
    """Returns the class of an exception and the first line of its text."""
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0]}"[:200]
