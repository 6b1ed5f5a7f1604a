"""Tells the workers of a job who they are."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping, Sequence

import ray

from tfring.integration import (
    Where,
    fresh_secret,
    job_variables,
    open_rendezvous,
    rank_variables,
    use_shim,
)


def here() -> Where:
    """Returns where this process runs, a worker of Ray."""
    context = ray.get_runtime_context()
    gpus = tuple(map(str, context.get_accelerator_ids().get("GPU", [])))
    return Where(context.get_node_id(), ray.util.get_node_ip_address(), gpus)


def listen(interface: str | None, towards: str | None) -> dict[str, str]:
    """On rank 0, opens the rendezvous socket for the other ranks; returns it as variables.

    Args:
        interface: the network interfaces to use; None: tfring chooses.
        towards: the address of another node of the job; None: there is none.
    """
    sock = open_rendezvous(interface, towards)
    address, port = sock.getsockname()[:2]
    os.environ["TFRING_X_RENDEZVOUS_FD"] = str(sock.detach())  # init uses it
    return {"TFRING_RENDEZVOUS_ADDR": address, "TFRING_RENDEZVOUS_PORT": str(port)}


def prepare(variables: Mapping[str, str], horovod: bool) -> None:
    """Prepares this process for functions.

    Args:
        variables: to set.
        horovod: whether `import horovod` means tfring.
    """
    os.environ.update(variables)
    if horovod:
        use_shim()


def other_node(places: Sequence[Where]) -> str | None:
    """Returns the address of a node without rank 0; None if all ranks are on one node."""
    others = [place.address for place in places if place.node != places[0].node]
    return others[0] if others else None


def fresh_job(
    start_timeout: float, interface: str | None, extra: Mapping[str, str], secret: str | None = None
) -> dict[str, str]:
    """Returns the variables that are equal for all workers of a new job.

    Args:
        start_timeout: seconds that ranks wait for each other.
        interface: the network interfaces to use; None: tfring chooses.
        extra: the user's.
        secret: of the job; None: a new one.
    """
    job_id = f"ray-{secrets.token_hex(8)}"
    return job_variables(secret or fresh_secret(), job_id, start_timeout, interface, extra)


def ranks_of_job(
    places: Sequence[Where], meeting: Mapping[str, str], job: Mapping[str, str]
) -> list[dict[str, str]]:
    """Returns all variables of each rank.

    Args:
        places: Where each rank runs.
        meeting: What `listen` has returned on rank 0.
        job: What `fresh_job` has returned.
    """
    return [{**own, **meeting, **job} for own in rank_variables(places)]
