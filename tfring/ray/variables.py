"""The variables with which a worker finds its job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple


class Where(NamedTuple):
    """Where a worker runs.

    Attributes:
        node: The id of its node in Ray.
        address: The address of that node.
        gpus: The GPUs that Ray has given to it.
    """

    node: str
    address: str
    gpus: tuple[str, ...] = ()


def job_variables(
    secret: str, job_id: str, start_timeout: float, interface: str | None, extra: Mapping[str, str]
) -> dict[str, str]:
    """Returns the variables that are the same for all workers of a job.

    Args:
        secret: What all its processes know, and nobody else.
        job_id: Tells jobs apart.
        start_timeout: Seconds that ranks wait for each other.
        interface: The network interfaces to use; None: what fits.
        extra: The user's; these go before ours.
    """
    given = {"TFRING_INTERFACE": interface} if interface else {}
    return {
        "PYTHONUNBUFFERED": "1",
        "TFRING_PARENT": "",  # of a rank that starts this job
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

    Args:
        workers: Where each rank runs.
    """
    nodes = list(dict.fromkeys(worker.node for worker in workers))
    by_node = {node: [r for r, one in enumerate(workers) if one.node == node] for node in nodes}
    found = []
    for rank, worker in enumerate(workers):
        neighbours = by_node[worker.node]
        local = neighbours.index(rank)
        cross = [node for node in nodes if len(by_node[node]) > local]
        ranks = {"RANK": rank, "LOCAL_RANK": local, "CROSS_RANK": cross.index(worker.node)}
        sizes = {"SIZE": len(workers), "LOCAL_SIZE": len(neighbours), "CROSS_SIZE": len(cross)}
        numbers = {**ranks, **sizes}
        values = {f"TFRING_{name}": str(number) for name, number in numbers.items()}
        values |= {f"HOROVOD_{name}": str(number) for name, number in numbers.items()}
        values["HOROVOD_HOSTNAME"] = worker.address
        if gpus := [gpu for other in neighbours for gpu in workers[other].gpus]:
            values["CUDA_VISIBLE_DEVICES"] = ",".join(gpus)
        found.append(values)
    return found


def elastic_variables(
    *, worker: int, host: str, slot: int, first: bool, size: int, store: str
) -> dict[str, str]:
    """Returns the variables of a worker of an elastic job.

    Args:
        worker: Its id in the job.
        host: Its node, as the coordinator names it.
        slot: Its slot there.
        first: Whether it is for the first generation, whose init waits for all.
        size: How many ranks the job has, or begins with.
        store: Where the store of the job is, as host:port.
    """
    rank = worker - 1 if first else size - 1
    return {
        "TFRING_ELASTIC_WORKER": str(worker),
        "TFRING_ELASTIC_STORE": store,
        "TFRING_ELASTIC_HOST": host,
        "TFRING_ELASTIC_SLOT": str(slot),
        "TFRING_ELASTIC_FIRST": str(int(first)),
        "HOROVOD_ELASTIC": "1",
        "HOROVOD_HOSTNAME": host,
        "HOROVOD_RANK": str(min(rank, size - 1)),
        "HOROVOD_SIZE": str(size),
        "HOROVOD_LOCAL_RANK": str(slot),
    }


def with_own_first(gpus: int, own: Sequence[str], slot: int) -> str:
    """Returns CUDA_VISIBLE_DEVICES with all GPUs of a node, in which `gpus[slot]` is our own.

    In an elastic job nobody knows which GPUs the other workers of a node will get.

    Args:
        gpus: How many GPUs the node has.
        own: Those that Ray has given to us.
        slot: Our slot on the node, which is our local rank.
    """
    order = [str(number) for number in range(gpus)]
    if not own or own[0] not in order or slot >= gpus:
        return ",".join(own)
    at = order.index(own[0])
    order[at], order[slot] = order[slot], order[at]
    return ",".join(order)
