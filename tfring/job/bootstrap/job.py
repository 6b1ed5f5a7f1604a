"""Which processes form the job, all that were launched or some, and how they exchange values."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tfring.job.bootstrap import address_file, hosts, mpi_exchange
from tfring.job.bootstrap import meeting as meeting_place
from tfring.job.bootstrap.exchange import Exchange, SingleRankExchange
from tfring.job.bootstrap.meeting import Meeting, candidate_ports
from tfring.job.bootstrap.patience import Patience
from tfring.job.bootstrap.store_exchange import StoreExchange, TooEarlyError
from tfring.job.environments import Identity, Rendezvous
from tfring.job.handshake.errors import BootstrapError
from tfring.job.security.secret import derived_secret, job_key
from tfring.job.security.sources import (
    JobSecret,
    Situation,
    find_secret,
    read_secret_file,
    secret_of_this_user,
)
from tfring.job.store import Store
from tfring.runtime.communicators import is_communicator, is_null
from tfring.runtime.settings.environment import Settings

_log = logging.getLogger("tfring")

# Added to the time limit, so that a rank that failed to connect can still tell the others.
_REPORT_SECONDS = 5.0
# Before a rank asks again whether rank 0 starts its job.
_EARLY_SECONDS = 0.25


@dataclasses.dataclass(frozen=True)
class Job:
    """The ranks of a job, able to exchange values."""

    identity: Identity  # our identity with the rank and size of the job
    exchange: Exchange  # between the job's ranks; the owner of the Job closes it
    secret: str  # text that only the job's ranks know; may be empty under MPI
    # The MPI group of the ranks, which the owner of the Job frees; None without MPI.
    mpi_group: Any = None
    one_host: bool = False  # the secret is one of this host: the job cannot have ranks on others


def form_job(
    identity: Identity,
    settings: Settings,
    environ: Mapping[str, str],
    comm: Any = None,
    store: Store | None = None,
) -> Job:
    """Forms the job: every rank of it calls this and gets an exchange with the others.

    `comm` is an mpi4py communicator, or a list of launched ranks, whose order gives the new ranks;
    None or an empty list: all that were launched.

    Raises:
        BootstrapError: A rank did not take part.
        ValueError: `comm` does not contain this process, or cannot be a job here.
    """
    if identity.rendezvous is Rendezvous.STORE:
        return _through_store(identity, settings, store)
    if comm is None or (isinstance(comm, Sequence) and not comm):
        return _all_launched(identity, settings, environ)
    if not isinstance(comm, Sequence):
        return _from_communicator(identity, settings, comm)
    if identity.rendezvous is Rendezvous.MPI:
        return _from_mpi_ranks(identity, settings, comm)
    assert identity.size is not None
    ranks = checked_ranks(comm, identity.size, identity.rank)
    if len(ranks) == 1:
        return Job(_renumbered(identity, 0, 1, Rendezvous.NONE), SingleRankExchange(), "")
    return _from_tcp_ranks(identity, settings, environ, ranks)


def _through_store(identity: Identity, settings: Settings, given: Store | None) -> Job:
    assert identity.size is not None
    secret = _given_secret(settings)
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
    return Job(identity, exchange, text, one_host=one_host)


def _all_launched(identity: Identity, settings: Settings, environ: Mapping[str, str]) -> Job:
    if identity.rendezvous is Rendezvous.NONE:
        return Job(identity, SingleRankExchange(), "")
    if identity.rendezvous is Rendezvous.TCP:
        return Job(identity, *_tcp_exchange(identity, settings, environ, None))
    secret = _given_secret(settings)
    try:
        mpi = mpi_exchange.load_mpi()
        mpi_exchange.check_world(mpi, identity.size, identity.source)
    except BootstrapError as error:
        if identity.fallback is None:
            raise
        _log.warning("%s; the ranks meet over TCP instead (TFRING_X_MEETING)", error)
        return _all_launched(identity.fallback, settings, environ)
    world = mpi.COMM_WORLD
    if world.rank != identity.rank:
        raise BootstrapError(
            f"{identity.source} says that this is rank {identity.rank}, and MPI says "
            f"{world.rank}: the variables are left over from another launcher"
        )
    deadline = time.monotonic() + settings.start_timeout
    own = mpi_exchange.duplicate(world, deadline)
    return _job_over_mpi(mpi, own, identity, secret, deadline)


def _job_over_mpi(mpi: Any, comm: Any, identity: Identity, secret: str, deadline: float) -> Job:
    exchange = mpi_exchange.MpiExchange(mpi, comm, deadline + _REPORT_SECONDS)
    return Job(identity, exchange, secret, exchange.group())


def _from_communicator(identity: Identity, settings: Settings, comm: Any) -> Job:
    if not is_communicator(comm):
        raise ValueError(
            f"init(comm={comm!r}): comm is an mpi4py communicator, a list of ranks, or a list of "
            "communicators"
        )
    mpi = mpi_exchange.load_mpi()
    mpi_exchange.check_world(mpi, identity.size, identity.source)
    if is_null(comm):
        raise ValueError(
            f"rank {mpi.COMM_WORLD.rank} is not part of the communicator given to init(comm=...), "
            "which is COMM_NULL here: only the processes of a communicator call init with it"
        )
    if comm.Is_inter():
        raise ValueError("init(comm=...) got an intercommunicator: pass the result of its Merge()")
    deadline = time.monotonic() + settings.start_timeout
    own = mpi_exchange.duplicate(comm, deadline)
    job = _renumbered(identity, own.rank, own.size, Rendezvous.MPI)
    return _job_over_mpi(mpi, own, job, _given_secret(settings), deadline)


def _from_mpi_ranks(identity: Identity, settings: Settings, comm: Sequence[Any]) -> Job:
    mpi = mpi_exchange.load_mpi()
    mpi_exchange.check_world(mpi, identity.size, identity.source)
    world = mpi.COMM_WORLD
    ranks = checked_ranks(comm, world.size, world.rank)
    deadline = time.monotonic() + settings.start_timeout
    own = mpi_exchange.communicator_of(world, ranks, deadline)
    job = _renumbered(identity, own.rank, own.size, Rendezvous.MPI)
    return _job_over_mpi(mpi, own, job, _given_secret(settings), deadline)


def _from_tcp_ranks(
    identity: Identity, settings: Settings, environ: Mapping[str, str], ranks: list[int]
) -> Job:
    if 0 not in ranks:
        raise ValueError(
            f"init(comm={ranks}): without MPI all connect to rank 0, which is not among these: "
            "start the job with mpirun, put rank 0 in the list, or use all ranks with "
            f"init(process_sets=[ProcessSet({ranks})])"
        )
    exchange, secret = _tcp_exchange(identity, settings, environ, ranks)
    job = _renumbered(identity, ranks.index(identity.rank), len(ranks), Rendezvous.TCP)
    return Job(job, exchange, secret)


def _renumbered(identity: Identity, rank: int, size: int, rendezvous_by: Rendezvous) -> Identity:
    """Returns our identity in a job that init's `comm` describes; local ranks are computed anew."""
    return dataclasses.replace(
        identity,
        source="init(comm=...)",
        rank=rank,
        size=size,
        rendezvous=rendezvous_by,
        local_rank=None,
        local_size=None,
    )


def checked_ranks(comm: Sequence[Any], size: int, rank: int) -> list[int]:
    """Returns the ranks of a job as whole numbers.

    Raises:
        ValueError: One is not a rank or is named twice, or our own is missing.
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


def _given_secret(settings: Settings) -> str:
    """Returns the secret for a job that may need none; checks it where there is one."""
    if settings.secret is None and settings.secret_file is None:
        return ""
    text = settings.secret or read_secret_file(Path(str(settings.secret_file)))
    job_key(text, "")  # raises if it is too short
    return text


def _tcp_exchange(
    identity: Identity,
    settings: Settings,
    environ: Mapping[str, str],
    members: list[int] | None,
) -> tuple[Exchange, str]:
    """Meets the other ranks over TCP. Returns the exchange and the job's secret."""
    address = settings.rendezvous_addr or identity.address
    assert address is not None and identity.size is not None
    situation = Situation(
        source=identity.source,
        rank=identity.rank,
        public_seed=identity.public_seed,
        several_hosts=_spans_hosts(identity, settings, address),
        slurm=identity.by_slurm,
    )
    secret = find_secret(settings.secret, settings.secret_file, settings.insecure, situation)
    job_id = settings.job_id or identity.job_id
    if environ.get("TFRING_X_RESTART_COUNT", "0") != "0":
        # Ranks of the lives before are strangers to this one.
        job_id += f".{environ['TFRING_X_RESTART_COUNT']}"
    public = secret.text or derived_secret(identity.public_seed or "")
    if secret.by_munge:  # no rank but 0 knows the secret before it has found rank 0
        public = derived_secret(identity.public_seed or "")
    ports = _ports(identity, settings, job_key(public, job_id))
    fd = environ.get("TFRING_X_RENDEZVOUS_FD", "")
    meeting = Meeting(
        address=hosts.LOOPBACK if secret.loopback_only else address,
        ports=ports,
        bind_address=hosts.LOOPBACK if secret.loopback_only else settings.bind_addr,
        inherited_fd=int(fd) if identity.rank == 0 and fd.isdigit() else None,
        loopback_only=secret.loopback_only,
    )
    return _meet(meeting, identity, secret, job_id, settings.start_timeout, members)


def _meet(
    meeting: Meeting,
    identity: Identity,
    secret: JobSecret,
    job_id: str,
    seconds: float,
    members: list[int] | None,
) -> tuple[Exchange, str]:
    """Meets the other ranks in rank 0's store. Returns the exchange and the job's secret."""
    rank, size = identity.rank, identity.size
    assert size is not None
    patience = Patience(f"rank {rank}", seconds)
    while True:
        with contextlib.ExitStack() as failed:
            owned = contextlib.ExitStack()
            failed.callback(owned.close)
            text = secret.text
            if rank == 0:
                key = job_key(text, job_id)
                store = meeting_place.serve(meeting, size, key, secret.credential, owned)
            else:
                seed = identity.public_seed or ""
                store, text = meeting_place.join(meeting, rank, secret, seed, job_id, patience)
            owned.callback(store.close)
            ranks = range(size) if members is None else members
            try:
                exchange = StoreExchange(
                    store, rank, ranks, patience, owned=owned, hint=meeting.hint()
                )
            except TooEarlyError:
                if patience.is_over:
                    raise
            else:
                failed.pop_all()
                return exchange, text
        time.sleep(_EARLY_SECONDS)


def _spans_hosts(identity: Identity, settings: Settings, address: str) -> bool:
    """Whether the job has ranks on other hosts, as far as this one can tell."""
    if identity.several_hosts is not None:
        return identity.several_hosts
    if identity.local_size is not None and identity.size is not None:
        return identity.local_size < identity.size
    return settings.bind_addr is not None or not hosts.is_here(address)


def _ports(identity: Identity, settings: Settings, key: bytes) -> list[int]:
    """Returns the ports to try: one that was given, then a sequence that the job's key makes."""
    if settings.rendezvous_port is not None:
        return [settings.rendezvous_port]
    assert identity.port is not None or not identity.fixed_port
    given = [] if identity.port is None else [identity.port]
    return given if identity.fixed_port else [*given, *candidate_ports(key)]
