"""Which processes form the job, all that were launched or some, and how they exchange values."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tfring.job.bootstrap import address_file, mpi_exchange
from tfring.job.bootstrap.exchange import Exchange, SingleRankExchange
from tfring.job.bootstrap.meeting import meet
from tfring.job.bootstrap.patience import Patience
from tfring.job.bootstrap.store_exchange import StoreExchange
from tfring.job.environments import Identity, Rendezvous
from tfring.job.handshake.errors import BootstrapError
from tfring.job.security.sources import optional_secret, secret_of_this_user
from tfring.job.store import Store
from tfring.runtime.communicators import is_communicator, is_null
from tfring.runtime.settings.environment import Settings

_log = logging.getLogger("tfring")

# Added to the time limit, so that a rank that failed to connect can still tell the others.
_REPORT_SECONDS = 5.0


@dataclasses.dataclass(frozen=True)
class FormedJob:
    """The ranks of a job, able to exchange values."""

    identity: Identity  # our identity with the rank and size of the job
    exchange: Exchange  # between the job's ranks; the owner of this object closes it
    secret: str  # text that only the job's ranks know; may be empty under MPI
    # The MPI group of the ranks, which the owner of this object frees; None without MPI.
    mpi_group: Any = None
    one_host: bool = False  # the secret is one of this host: the job cannot have ranks on others


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
    if identity.rendezvous is Rendezvous.STORE:
        return _through_store(identity, settings, store)
    if isinstance(comm, Sequence) and not comm:
        comm = None
    by_communicator = comm is not None and not isinstance(comm, Sequence)
    if by_communicator and not is_communicator(comm):
        raise ValueError(
            f"init(comm={comm!r}): comm is an mpi4py communicator, a list of ranks, or a list of "
            "communicators"
        )
    if by_communicator or identity.rendezvous is Rendezvous.MPI:
        try:
            mpi = mpi_exchange.load_mpi()
            mpi_exchange.check_world(mpi, identity.size, identity.source)
        except BootstrapError as error:
            if comm is not None or identity.fallback is None:
                raise
            _log.warning("%s; the ranks meet over TCP instead (TFRING_X_MEETING)", error)
            return form_job(identity.fallback, settings, environ)
        return _over_mpi(mpi, identity, settings, comm)
    job, ranks = identity, None
    if comm is not None:
        assert identity.size is not None
        ranks = checked_ranks(comm, identity.size, identity.rank)
        by = identity.rendezvous if len(ranks) > 1 else Rendezvous.NONE
        job = _renumbered(identity, ranks.index(identity.rank), len(ranks), by)
    if job.rendezvous is Rendezvous.NONE:
        return FormedJob(job, SingleRankExchange(), "")
    if ranks is not None and 0 not in ranks:
        raise ValueError(
            f"init(comm={ranks}): without MPI all connect to rank 0, which is not among these: "
            "start the job with mpirun, put rank 0 in the list, or use all ranks with "
            f"init(process_sets=[ProcessSet({ranks})])"
        )
    return FormedJob(job, *meet(identity, settings, environ, ranks))


def _through_store(identity: Identity, settings: Settings, given: Store | None) -> FormedJob:
    assert identity.size is not None
    secret = optional_secret(settings)
    rank, size = identity.rank, identity.size
    patience = Patience(f"rank {rank}", settings.start_timeout)
    with contextlib.ExitStack() as failed:
        owned = contextlib.ExitStack() if given is None else None
        store = given
        if owned is not None:
            failed.callback(owned.close)
            path = Path(str(identity.address))
            store = address_file.store_of(path, rank, size, patience, owned)
        assert store is not None
        exchange = StoreExchange(store, rank, range(size), patience, owned=owned)
        failed.pop_all()
    one_host = not secret and store.secret() is None
    text = secret or (secret_of_this_user() if one_host else store.secret() or "")
    return FormedJob(identity, exchange, text, one_host=one_host)


def _over_mpi(mpi: Any, identity: Identity, settings: Settings, comm: Any) -> FormedJob:
    world, secret = mpi.COMM_WORLD, optional_secret(settings)
    deadline = time.monotonic() + settings.start_timeout
    if comm is None:
        if world.rank != identity.rank:
            raise BootstrapError(
                f"{identity.source} says that this is rank {identity.rank}, and MPI says "
                f"{world.rank}: the variables are left over from another launcher"
            )
        own = mpi_exchange.duplicate(world, deadline)
    elif isinstance(comm, Sequence):
        ranks = checked_ranks(comm, world.size, world.rank)
        own = mpi_exchange.communicator_of(world, ranks, deadline)
    elif is_null(comm):
        raise ValueError(
            f"rank {world.rank} is not part of the communicator given to init(comm=...), which is "
            "COMM_NULL here: only the processes of a communicator call init with it"
        )
    elif comm.Is_inter():
        raise ValueError("init(comm=...) got an intercommunicator: pass the result of its Merge()")
    else:
        own = mpi_exchange.duplicate(comm, deadline)
    if comm is not None:
        identity = _renumbered(identity, own.rank, own.size, Rendezvous.MPI)
    exchange = mpi_exchange.MpiExchange(mpi, own, deadline + _REPORT_SECONDS)
    return FormedJob(identity, exchange, secret, exchange.group())


def _renumbered(identity: Identity, rank: int, size: int, rendezvous: Rendezvous) -> Identity:
    """Returns our identity in a job that init's `comm` describes; local ranks are computed anew."""
    return dataclasses.replace(
        identity,
        source="init(comm=...)",
        rank=rank,
        size=size,
        rendezvous=rendezvous,
        local_rank=None,
        local_size=None,
    )


def checked_ranks(comm: Sequence[Any], size: int, rank: int) -> list[int]:
    """Returns the ranks of a job as whole numbers.

    ValueError: one is not a rank or is named twice, or our own is missing.
    """
    try:
        ranks = [int(r.__index__()) for r in comm]
    except AttributeError:
        raise ValueError(
            f"init(comm={list(comm)!r}): a list has to hold ranks only, or communicators only"
        ) from None
    for position, other in enumerate(ranks):
        if not 0 <= other < size:
            raise ValueError(
                f"init(comm={ranks}) names rank {other}, but ranks go from 0 to {size - 1}"
            )
        if other in ranks[:position]:
            raise ValueError(f"init(comm={ranks}) names rank {other} twice")
    if rank not in ranks:
        raise ValueError(
            f"this process is rank {rank} of {size}, which is not among the ranks {ranks} given to "
            "init(comm=...): only those may call it"
        )
    return ranks
