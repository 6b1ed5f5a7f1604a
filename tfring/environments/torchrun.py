"""RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT: torchrun, Kubeflow and many home-made launchers."""

from __future__ import annotations

from collections.abc import Mapping

from tfring.environments.identity import (
    Identity,
    Meeting,
    check_rank,
    read_int,
    read_optional_int,
    require_all,
)

_SOURCE = "torchrun"
_NAMES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def detect(environ: Mapping[str, str]) -> Identity | None:
    """The identity that torchrun's variables describe, or None if there are none.

    MASTER_ADDR and MASTER_PORT alone claim nothing: clusters set them for everything.
    """
    if not environ.get("RANK") and not environ.get("WORLD_SIZE"):
        return None
    require_all(environ, _NAMES, _SOURCE)
    rank = read_int(environ, "RANK")
    size = read_int(environ, "WORLD_SIZE", low=1)
    check_rank(_SOURCE, rank, size)
    port = read_int(environ, "MASTER_PORT", low=1)
    # torchrun's own agent then listens on MASTER_PORT itself, for as long as the job lives.
    if environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        port += 1
    # A restart by the agent is a new job: ranks of the old one must not meet those of the new.
    restart = environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    job_id = f"{environ.get('TORCHELASTIC_RUN_ID', 'none')}/{restart}"
    return Identity(
        source=_SOURCE,
        rank=rank,
        size=size,
        meeting=Meeting.RENDEZVOUS if size > 1 else Meeting.ALONE,
        local_rank=read_optional_int(environ, "LOCAL_RANK"),
        local_size=read_optional_int(environ, "LOCAL_WORLD_SIZE", low=1),
        address=environ["MASTER_ADDR"],
        port=port,
        job_id=job_id,
        public_seed=f"{job_id} {environ['MASTER_ADDR']} {environ['MASTER_PORT']}",
    )
