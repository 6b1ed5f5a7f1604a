"""RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT: torchrun, Kubeflow and many other launchers."""

from __future__ import annotations

from collections.abc import Mapping

from tfring.job.environments.identity import (
    Identity,
    Rendezvous,
    read_int,
    read_optional_int,
    read_rank_and_size,
)

_SOURCE = "torchrun"
_NAMES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def detect(environ: Mapping[str, str]) -> Identity | None:
    """Returns the identity in torchrun's variables, or None if there are none.

    MASTER_ADDR and MASTER_PORT alone do not count: some clusters set them for every program.
    """
    if not environ.get("RANK") and not environ.get("WORLD_SIZE"):
        return None
    rank, size = read_rank_and_size(environ, _SOURCE, _NAMES)
    port: int | None = read_int(environ, "MASTER_PORT", low=1)
    # A restart by the agent is a new job: ranks of the two must not connect to each other. Nor must
    # those of two jobs that differ in the port only.
    restart = environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    job_id = f"{environ.get('TORCHELASTIC_RUN_ID', 'none')}/{restart}/{port}"
    # torchrun's own agent then listens on MASTER_PORT as long as the job runs.
    if environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        port = None
    local_size = read_optional_int(environ, "LOCAL_WORLD_SIZE", low=1)
    return Identity(
        source=_SOURCE,
        rank=rank,
        size=size,
        rendezvous=Rendezvous.TCP if size > 1 else Rendezvous.NONE,
        local_rank=read_optional_int(environ, "LOCAL_RANK"),
        local_size=local_size,
        address=environ["MASTER_ADDR"],
        port=port,
        job_id=job_id,
        public_seed=f"{job_id} {environ['MASTER_ADDR']}",
        several_hosts=None if local_size is None else local_size < size,
    )
