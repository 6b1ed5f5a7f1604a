"""Which processes form the job, all that were launched or some, and how they exchange values."""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Mapping, Sequence
from typing import Any

from tfring.job.bootstrap import mpi_exchange
from tfring.job.bootstrap.exchange import Exchange, SingleRankExchange
from tfring.job.bootstrap.meeting import meet
from tfring.job.environments import Identity, Rendezvous
from tfring.job.handshake.errors import BootstrapError
from tfring.job.security.sources import optional_secret
from tfring.job.store import Store
from tfring.runtime.communicators import checked_ranks, is_communicator
from tfring.runtime.settings.environment import Settings

_log = logging.getLogger("tfring")


@dataclasses.dataclass(frozen=True)
class FormedJob:
    """The ranks of a job, able to exchange values."""

    identity: Identity  # our identity with the rank and size of the job
    exchange: Exchange  # between the job's ranks; the owner of this object closes it
    secret: str  # text that only the job's ranks know; may be empty under MPI
    one_host: bool = False  # the secret is one of this host: the job cannot have ranks on others
    # The MPI group of the ranks, which the owner of this object frees; None without MPI.
    mpi_group: Any = None


def form_job(
    identity: Identity,
    settings: Settings,
    environ: Mapping[str, str],
    comm: Any = None,
    store: Store | None = None,
) -> FormedJob:
    """Forms the job: every rank of it calls this and gets an exchange with the others.

    `comm` is an mpi4py communicator, or a list of launched ranks, whose order gives the new ranks;
    None or an empty list: all that were launched.

    Raises:
        BootstrapError: A rank did not take part.
        ValueError: `comm` does not contain this process, or cannot be a job here.
    """
    if isinstance(comm, Sequence) and not comm:
        comm = None
    mpi, over_mpi, ranks = _mpi(identity, comm), None, None
    if mpi is None and identity.rendezvous is Rendezvous.MPI:
        assert identity.fallback is not None
        identity = identity.fallback
    rank, size, by = identity.rank, identity.size, identity.rendezvous
    secret = ""
    if isinstance(comm, Sequence):
        if mpi is not None:
            rank, size = mpi.COMM_WORLD.rank, mpi.COMM_WORLD.size
        assert size is not None
        comm = ranks = checked_ranks(comm, size, rank)
    if mpi is not None:
        secret = optional_secret(settings)
        limit = time.monotonic() + settings.start_timeout
        over_mpi = mpi_exchange.exchange_over(mpi, comm, identity.rank, identity.source, limit)
        rank, size, by = over_mpi.rank, over_mpi.size, Rendezvous.MPI
    elif ranks is not None:
        rank, size = ranks.index(rank), len(ranks)
        by = by if size > 1 else Rendezvous.NONE
    job = identity
    if comm is not None:  # local ranks are computed anew
        job = dataclasses.replace(
            identity,
            source="init(comm=...)",
            rank=rank,
            size=size,
            rendezvous=by,
            local_rank=None,
            local_size=None,
        )
    if over_mpi is not None:
        return FormedJob(job, over_mpi, secret, mpi_group=over_mpi.group())
    if by is Rendezvous.NONE:
        return FormedJob(job, SingleRankExchange(), "")
    if ranks is not None and 0 not in ranks:
        raise ValueError(
            f"init(comm={ranks}): without MPI all connect to rank 0, which is not among these: "
            "start the job with mpirun, put rank 0 in the list, or use all ranks with "
            f"init(process_sets=[ProcessSet({ranks})])"
        )
    return FormedJob(job, *meet(identity, settings, environ, ranks, store))


def _mpi(identity: Identity, comm: Any) -> Any:
    """Returns the module mpi4py.MPI if the ranks meet over MPI, else None.

    BootstrapError: it does not work, and `identity` has no fallback.
    """
    by_communicator = comm is not None and not isinstance(comm, Sequence)
    if by_communicator and not is_communicator(comm):
        raise ValueError(
            f"init(comm={comm!r}): comm is an mpi4py communicator, a list of ranks, or a list of "
            "communicators"
        )
    if not by_communicator and identity.rendezvous is not Rendezvous.MPI:
        return None
    try:
        mpi = mpi_exchange.load_mpi()
        mpi_exchange.check_world(mpi, identity.size, identity.source)
    except BootstrapError as error:
        if comm is not None or identity.fallback is None:
            raise
        _log.warning("%s; the ranks meet over TCP instead", error)
        return None
    return mpi
