"""Which processes make up the job, and how they meet: all that were launched, or some of them."""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Mapping, Sequence
from typing import Any

from tfring.bootstrap import mpi_exchange, rendezvous
from tfring.bootstrap.errors import BootstrapError
from tfring.bootstrap.exchange import Alone, Exchange
from tfring.bootstrap.secret import derived_secret, job_key
from tfring.config import Settings
from tfring.environments import Identity, Meeting

_log = logging.getLogger("tfring")

# After everybody came, so that those who failed to connect to each other can still say so.
_REPORT_SECONDS = 5.0


@dataclasses.dataclass(frozen=True)
class Meet:
    """The ranks of a job, brought together.

    Attributes:
        identity: Who we are in the job; its rank is the job's.
        exchange: Between its ranks, to be closed by whoever holds this.
        secret: What its ranks share; may be empty under MPI.
        mpi_group: The MPI group of its ranks, to be freed by whoever holds this; None without MPI.
    """

    identity: Identity
    exchange: Exchange
    secret: str
    mpi_group: Any = None


def meet(
    identity: Identity, settings: Settings, environ: Mapping[str, str], comm: Any = None
) -> Meet:
    """Brings the ranks of the job together.

    Args:
        identity: Who we are among the processes that were launched.
        settings: What the environment asks for.
        environ: The variables (for the launcher's inherited socket).
        comm: The job: an mpi4py communicator, or launched ranks in the order in which they are
            numbered anew; None or no ranks at all: all that were launched.

    Raises:
        BootstrapError: Somebody did not come.
        ValueError: We are not part of `comm`, or it cannot be a job here.
    """
    if comm is None or (isinstance(comm, Sequence) and not comm):
        return _meet_all(identity, settings, environ)
    if not isinstance(comm, Sequence):
        return _meet_communicator(identity, settings, comm)
    if identity.meeting is Meeting.MPI:
        return _meet_mpi_ranks(identity, settings, comm)
    assert identity.size is not None
    ranks = checked_ranks(comm, identity.size, identity.rank)
    if len(ranks) == 1:
        return Meet(_renumbered(identity, 0, 1, Meeting.ALONE), Alone(), "")
    return _meet_at_rank_0(identity, settings, environ, ranks)


def _meet_all(identity: Identity, settings: Settings, environ: Mapping[str, str]) -> Meet:
    secret = _secret(identity, settings)
    if identity.meeting is Meeting.ALONE:
        return Meet(identity, Alone(), secret)
    if identity.meeting is Meeting.RENDEZVOUS:
        return Meet(identity, _rendezvous(identity, settings, environ, secret, None), secret)
    mpi = mpi_exchange.load_mpi()
    mpi_exchange.check_world(mpi, identity.size, identity.source)
    world = mpi.COMM_WORLD
    if world.rank != identity.rank:
        raise BootstrapError(
            f"{identity.source} says that this is rank {identity.rank}, and MPI says "
            f"{world.rank}: variables of another launcher are left over"
        )
    deadline = time.monotonic() + settings.start_timeout
    own = mpi_exchange.duplicate(world, deadline)
    return _over_mpi(mpi, own, identity, secret, deadline)


def _over_mpi(mpi: Any, comm: Any, identity: Identity, secret: str, deadline: float) -> Meet:
    exchange = mpi_exchange.MpiExchange(mpi, comm, deadline + _REPORT_SECONDS)
    return Meet(identity, exchange, secret, exchange.group())


def _meet_communicator(identity: Identity, settings: Settings, comm: Any) -> Meet:
    if not mpi_exchange.is_communicator(comm):
        raise ValueError(
            f"init(comm={comm!r}): comm is an mpi4py communicator, a list of ranks, or a list of "
            "communicators"
        )
    mpi = mpi_exchange.load_mpi()
    mpi_exchange.check_world(mpi, identity.size, identity.source)
    if mpi_exchange.is_null(comm):
        raise ValueError(
            f"rank {mpi.COMM_WORLD.rank} is not part of the communicator given to init(comm=...), "
            "which is COMM_NULL here: only the processes of a communicator call init with it"
        )
    if comm.Is_inter():
        raise ValueError("init(comm=...) got an intercommunicator: Merge() makes one job of it")
    deadline = time.monotonic() + settings.start_timeout
    own = mpi_exchange.duplicate(comm, deadline)
    job = _renumbered(identity, own.rank, own.size, Meeting.MPI)
    return _over_mpi(mpi, own, job, settings.secret or "", deadline)


def _meet_mpi_ranks(identity: Identity, settings: Settings, comm: Sequence[Any]) -> Meet:
    mpi = mpi_exchange.load_mpi()
    mpi_exchange.check_world(mpi, identity.size, identity.source)
    world = mpi.COMM_WORLD
    ranks = checked_ranks(comm, world.size, world.rank)
    deadline = time.monotonic() + settings.start_timeout
    own = mpi_exchange.communicator_of(world, ranks, deadline)
    job = _renumbered(identity, own.rank, own.size, Meeting.MPI)
    return _over_mpi(mpi, own, job, settings.secret or "", deadline)


def _meet_at_rank_0(
    identity: Identity, settings: Settings, environ: Mapping[str, str], ranks: list[int]
) -> Meet:
    if 0 not in ranks:
        raise ValueError(
            f"init(comm={ranks}): without MPI the ranks meet at rank 0, which is not among these: "
            "start the job with mpirun, put rank 0 in the list, or use all ranks with "
            f"init(process_sets=[ProcessSet({ranks})])"
        )
    secret = _secret(identity, settings)
    exchange = _rendezvous(identity, settings, environ, secret, ranks)
    job = _renumbered(identity, ranks.index(identity.rank), len(ranks), Meeting.RENDEZVOUS)
    return Meet(job, exchange, secret)


def _renumbered(identity: Identity, rank: int, size: int, meeting: Meeting) -> Identity:
    """Us in a job of our own choice; the launcher's local ranks do not fit any more."""
    return dataclasses.replace(
        identity,
        source="init(comm=...)",
        rank=rank,
        size=size,
        meeting=meeting,
        local_rank=None,
        local_size=None,
    )


def checked_ranks(comm: Sequence[Any], size: int, rank: int) -> list[int]:
    """The ranks of a job as whole numbers.

    Raises:
        ValueError: One is no rank or is named twice, or we are not among them.
    """
    try:
        ranks = [int(r.__index__()) for r in comm]
    except AttributeError:
        raise ValueError(
            f"init(comm={list(comm)!r}): a list has to hold ranks only, or communicators only"
        ) from None
    for place, other in enumerate(ranks):
        if not 0 <= other < size:
            raise ValueError(
                f"init(comm={ranks}) names rank {other}, but ranks go from 0 to {size - 1}"
            )
        if other in ranks[:place]:
            raise ValueError(f"init(comm={ranks}) names rank {other} twice")
    if rank not in ranks:
        raise ValueError(
            f"this process is rank {rank} of {size}, which is not among the ranks {ranks} given to "
            "init(comm=...): only those may call it"
        )
    return ranks


def _secret(identity: Identity, settings: Settings) -> str:
    if settings.secret is not None:
        job_key(settings.secret, "")  # refuses one that is too short
        return settings.secret
    if identity.meeting is not Meeting.RENDEZVOUS or identity.public_seed is None:
        return ""
    if identity.rank == 0:
        _log.warning(
            "the job was started by %s, which gives it no secret: tfring makes one from variables "
            "that others on these machines can read, so that any local user could join the job. "
            "Set TFRING_SECRET to the same random text for all ranks to prevent that",
            identity.source,
        )
    return derived_secret(identity.public_seed)


def _rendezvous(
    identity: Identity,
    settings: Settings,
    environ: Mapping[str, str],
    secret: str,
    members: list[int] | None,
) -> Exchange:
    address = settings.rendezvous_addr or identity.address
    port = settings.rendezvous_port or identity.port
    assert address is not None and port is not None and identity.size is not None
    fd = environ.get("TFRING_RENDEZVOUS_FD", "")
    return rendezvous.meet(
        rank=identity.rank,
        size=identity.size,
        address=address,
        port=port,
        key=job_key(secret, identity.job_id),
        timeout=settings.start_timeout,
        inherited_fd=int(fd) if identity.rank == 0 and fd.isdigit() else None,
        members=members,
    )
