"""The variables with which a rank finds its job, and which GPUs it sees."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple


class Where(NamedTuple):
    """Where a worker runs.

    Attributes:
        node: Its node, as the engine names it.
        address: The address of that node.
        gpus: The GPUs that the engine has given to it.
    """

    node: str
    address: str
    gpus: tuple[str, ...] = ()


class Place(NamedTuple):
    """The place of a rank among those of its node, and across nodes."""

    local_rank: int
    local_size: int
    cross_rank: int
    cross_size: int


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

    Args:
        workers: Where each rank runs.
    """
    found = []
    for rank, (worker, place) in enumerate(zip(workers, places(workers), strict=True)):
        ranks = {"RANK": rank, "LOCAL_RANK": place.local_rank, "CROSS_RANK": place.cross_rank}
        sizes = {"LOCAL_SIZE": place.local_size, "CROSS_SIZE": place.cross_size}
        numbers = {**ranks, **sizes, "SIZE": len(workers)}
        values = {f"TFRING_X_{name}": str(number) for name, number in numbers.items()}
        values |= {f"HOROVOD_{name}": str(number) for name, number in numbers.items()}
        values["HOROVOD_HOSTNAME"] = worker.address
        if gpus := gpus_of_node(workers, worker.node):
            values["CUDA_VISIBLE_DEVICES"] = gpus
        found.append(values)
    return found


def places(workers: Sequence[Where]) -> list[Place]:
    """Returns the place of each rank among those of its node and across nodes.

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
        found.append(Place(local, len(neighbours), cross.index(worker.node), len(cross)))
    return found


def gpus_of_node(workers: Sequence[Where], node: str) -> str:
    """Returns CUDA_VISIBLE_DEVICES with the GPUs of all ranks of a node; "" if they have none.

    Args:
        workers: Where each rank runs.
        node: The node.
    """
    return ",".join(gpu for worker in workers if worker.node == node for gpu in worker.gpus)


def elastic_variables(
    *, worker: int, host: str, slot: int, first: bool, size: int, rank: int, store: str
) -> dict[str, str]:
    """Returns the variables of a worker of an elastic job.

    Args:
        worker: Its id in the job.
        host: Its node, as the coordinator names it.
        slot: Its slot there.
        first: Whether it is for the first generation, whose init waits for all.
        size: How many ranks the job has, or begins with.
        rank: Which one it is likely to be.
        store: Where the store of the job is, as host:port.
    """
    return {
        "TFRING_X_ELASTIC_WORKER": str(worker),
        "TFRING_X_ELASTIC_STORE": store,
        "TFRING_X_ELASTIC_HOST": host,
        "TFRING_X_ELASTIC_SLOT": str(slot),
        "TFRING_X_ELASTIC_FIRST": str(int(first)),
        "HOROVOD_ELASTIC": "1",
        "HOROVOD_HOSTNAME": host,
        "HOROVOD_RANK": str(rank),
        "HOROVOD_SIZE": str(size),
        "HOROVOD_LOCAL_RANK": str(slot),
    }


def with_own_first(gpus: int, own: Sequence[str], slot: int) -> str:
    """Returns CUDA_VISIBLE_DEVICES with all GPUs of a node, in which `gpus[slot]` is our own.

    In an elastic job nobody knows which GPUs the other workers of a node will get.

    Args:
        gpus: How many GPUs the node has.
        own: Those that the engine has given to us.
        slot: Our slot on the node, which is our local rank.
    """
    order = [str(number) for number in range(gpus)]
    if not own or own[0] not in order or slot >= gpus:
        return ",".join(own)
    at = order.index(own[0])
    order[at], order[slot] = order[slot], order[at]
    return ",".join(order)


def interfaces(nics: str | Sequence[str] | None) -> str | None:
    """Returns network interfaces as one text.

    Args:
        nics: A text such as "eth0,eth1", or several names; None: what fits.
    """
    return nics if nics is None or isinstance(nics, str) else ",".join(nics)
