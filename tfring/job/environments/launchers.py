"""Processes of launchers that set variables for each rank: tfring run, torchrun, mpirun, srun."""

from __future__ import annotations

from collections.abc import Mapping

from tfring.job.environments.identity import (
    Identity,
    Rendezvous,
    check_rank,
    read_int,
    read_optional_int,
    read_rank_and_size,
    require_all,
)

_TFRING_RUN = ("TFRING_X_RANK", "TFRING_X_SIZE", "TFRING_RENDEZVOUS_ADDR", "TFRING_RENDEZVOUS_PORT")
_TORCHRUN = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
# Name of an MPI launcher; the variables with rank, size, local rank and local size.
_MPI = (
    (
        "Open MPI",
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
    ),
    # Also Intel MPI, MVAPICH, and srun with PMI.
    ("MPICH", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
)


def of_tfring_run(environ: Mapping[str, str]) -> Identity | None:
    """Returns the identity that ``tfring run`` set, or None if it did not start this process."""
    if not environ.get("TFRING_X_RANK") and not environ.get("TFRING_X_SIZE"):
        return None
    rank, size = read_rank_and_size(environ, "tfring run", _TFRING_RUN)
    return Identity(
        source="tfring run",
        rank=rank,
        size=size,
        rendezvous=Rendezvous.TCP if size > 1 else Rendezvous.NONE,
        local_rank=read_optional_int(environ, "TFRING_X_LOCAL_RANK"),
        local_size=read_optional_int(environ, "TFRING_X_LOCAL_SIZE", low=1),
        address=environ["TFRING_RENDEZVOUS_ADDR"],
        port=read_int(environ, "TFRING_RENDEZVOUS_PORT", low=1),
        fixed_port=True,
        job_id=environ.get("TFRING_JOB_ID", ""),
    )


def of_torchrun(environ: Mapping[str, str]) -> Identity | None:
    """Returns the identity in torchrun's variables, or None if there are none.

    MASTER_ADDR and MASTER_PORT alone do not count: some clusters set them for every program.
    """
    if not environ.get("RANK") and not environ.get("WORLD_SIZE"):
        return None
    rank, size = read_rank_and_size(environ, "torchrun", _TORCHRUN)
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
        source="torchrun",
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


def of_mpi(environ: Mapping[str, str]) -> Identity | None:
    """Returns the identity that an MPI launcher set, or None if none started this process."""
    for source, rank_name, size_name, local_rank_name, local_size_name in _MPI:
        if not environ.get(rank_name) and not environ.get(size_name):
            continue
        rank, size = read_rank_and_size(environ, source, (rank_name, size_name))
        return Identity(
            source=source,
            rank=rank,
            size=size,
            rendezvous=Rendezvous.MPI if size > 1 else Rendezvous.NONE,
            local_rank=read_optional_int(environ, local_rank_name),
            local_size=read_optional_int(environ, local_size_name, low=1),
        )
    return _by_pmix(environ) if environ.get("PMIX_RANK") else None


def _by_pmix(environ: Mapping[str, str]) -> Identity:
    """Returns the identity that a PMIx launcher set, which sets nothing else.

    No PMIx variable has the number of ranks: Slurm has one for its step, elsewhere MPI knows it.
    """
    source = "PMIx"
    require_all(environ, ("PMIX_RANK", "PMIX_NAMESPACE"), source)
    rank = read_int(environ, "PMIX_RANK")
    size = read_optional_int(environ, "SLURM_STEP_NUM_TASKS", low=1)
    check_rank(source, rank, size)
    return Identity(
        source=source,
        rank=rank,
        size=size,
        rendezvous=Rendezvous.MPI,
        local_rank=read_optional_int(environ, "SLURM_LOCALID") if size else None,
    )
