"""Tasks of a Slurm step (srun) without MPI: rank 0 listens on the step's first node."""

from __future__ import annotations

import re
from collections.abc import Mapping

from tfring.job.environments.identity import (
    Identity,
    IdentityError,
    Rendezvous,
    read_optional_int,
    read_rank_and_size,
)

_SOURCE = "a Slurm step"
_NAMES = ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_STEP_ID", "SLURM_JOB_ID")


def detect(environ: Mapping[str, str]) -> Identity | None:
    """Returns the identity of a task that srun started; None outside of a step of several tasks.

    A batch script has SLURM_PROCID too, but no SLURM_STEP_NUM_TASKS: it is a single process.
    """
    if not environ.get("SLURM_STEP_NUM_TASKS") or environ["SLURM_STEP_NUM_TASKS"] == "1":
        return None
    rank, size = read_rank_and_size(environ, _SOURCE, _NAMES)
    if rank == 0 and environ.get("SLURM_NODEID", "0") != "0":
        raise IdentityError(
            "Slurm put rank 0 on node "
            f"{environ['SLURM_NODEID']} of the step instead of the first one (--distribution): "
            "set TFRING_RENDEZVOUS_ADDR to the host of rank 0 for all tasks"
        )
    job_id = f"{environ['SLURM_JOB_ID']}.{environ['SLURM_STEP_ID']}"
    step_nodes = read_optional_int(environ, "SLURM_STEP_NUM_NODES", low=1)
    nodes = environ.get("SLURM_STEP_NODELIST") or environ.get("SLURM_JOB_NODELIST") or ""
    return Identity(
        source=_SOURCE,
        rank=rank,
        size=size,
        rendezvous=Rendezvous.TCP,
        local_rank=read_optional_int(environ, "SLURM_LOCALID"),
        address=first_node(nodes),
        job_id=job_id,
        public_seed=f"slurm {job_id} {environ.get('SLURM_JOB_UID', '')}",
        several_hosts=None if step_nodes is None else step_nodes > 1,
        by_slurm=True,
    )


def first_node(nodes: str) -> str:
    """Returns the first host of a Slurm node list: ``a[03-05,9]-ib,b7`` gives ``a03-ib``.

    IdentityError: the list is empty.
    """
    head = re.match(r"(?:[^,\[\]]|\[[^\]]*\])+", nodes)
    if head is None:
        raise IdentityError(
            f'SLURM_STEP_NODELIST is "{nodes}" and names no node: set TFRING_RENDEZVOUS_ADDR to '
            "the host of rank 0 for all tasks"
        )
    return re.sub(r"\[([^\],-]+)[^\]]*\]", r"\1", head.group(0))
