"""Tasks of a Slurm step (srun) without MPI: they meet on the step's first node."""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping

from tfring.environments.identity import (
    Identity,
    IdentityError,
    Meeting,
    check_rank,
    read_int,
    read_optional_int,
    require_all,
)

_SOURCE = "a Slurm step"
_NAMES = ("SLURM_STEP_ID", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_JOB_ID")
# Below Linux' usual range for outgoing connections, so that nobody gets the port by chance.
_FIRST_PORT = 20000
_PORTS = 12000


def detect(environ: Mapping[str, str]) -> Identity | None:
    """The identity of a task that srun started, or None outside of a step of several tasks.

    A batch script has SLURM_PROCID too, but no SLURM_STEP_NUM_TASKS: it is a single process.
    """
    if not environ.get("SLURM_STEP_NUM_TASKS") or environ["SLURM_STEP_NUM_TASKS"] == "1":
        return None
    require_all(environ, _NAMES, _SOURCE)
    rank = read_int(environ, "SLURM_PROCID")
    size = read_int(environ, "SLURM_STEP_NUM_TASKS", low=1)
    check_rank(_SOURCE, rank, size)
    if rank == 0 and environ.get("SLURM_NODEID", "0") != "0":
        raise IdentityError(
            "Slurm put rank 0 on node "
            f"{environ['SLURM_NODEID']} of the step instead of the first one (--distribution): "
            "set TFRING_RENDEZVOUS_ADDR to the host of rank 0 for all tasks"
        )
    job_id = f"{environ['SLURM_JOB_ID']}.{environ['SLURM_STEP_ID']}"
    nodes = environ.get("SLURM_STEP_NODELIST") or environ.get("SLURM_JOB_NODELIST") or ""
    return Identity(
        source=_SOURCE,
        rank=rank,
        size=size,
        meeting=Meeting.RENDEZVOUS,
        local_rank=read_optional_int(environ, "SLURM_LOCALID"),
        address=first_node(nodes),
        port=_FIRST_PORT + zlib.crc32(job_id.encode()) % _PORTS,
        job_id=job_id,
        public_seed=f"slurm {job_id} {environ.get('SLURM_JOB_UID', '')}",
    )


def first_node(nodes: str) -> str:
    """The first host of a Slurm node list: ``a[03-05,9]-ib,b7`` gives ``a03-ib``.

    Raises:
        IdentityError: The list is empty.
    """
    head = re.match(r"(?:[^,\[\]]|\[[^\]]*\])+", nodes)
    if head is None:
        raise IdentityError(
            f'SLURM_STEP_NODELIST is "{nodes}" and names no node: set TFRING_RENDEZVOUS_ADDR to '
            "the host of rank 0 for all tasks"
        )
    return re.sub(r"\[([^\],-]+)[^\]]*\]", r"\1", head.group(0))
