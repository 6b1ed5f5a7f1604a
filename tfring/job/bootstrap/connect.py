"""From a process's identity to authenticated sockets between all ranks of its job."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import hmac
import logging
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tfring.job.bootstrap import hosts, mesh, mpi_data
from tfring.job.bootstrap.cancel import Cancel
from tfring.job.bootstrap.exchange import Exchange
from tfring.job.bootstrap.job import FormedJob, form_job
from tfring.job.bootstrap.mpi_data import MpiData
from tfring.job.bootstrap.mpi_exchange import MpiExchange
from tfring.job.bootstrap.records import (
    JobFacts,
    Record,
    exchange_records,
    facts_of,
    own_address,
)
from tfring.job.environments import Identity, Rendezvous
from tfring.job.handshake.descriptors import raise_descriptor_limit
from tfring.job.handshake.errors import BootstrapError
from tfring.job.handshake.listener import Listener, bind
from tfring.job.security.secret import expand
from tfring.job.store import Store
from tfring.runtime import _native
from tfring.runtime.communicators import free_group
from tfring.runtime.settings.environment import Settings

_log = logging.getLogger("tfring")


@dataclasses.dataclass(kw_only=True)
class JoinedJob(mesh.Connections, JobFacts):
    """A job as one of its ranks has joined it: what the runtime needs to begin."""

    by_mpi: bool  # whether the ranks met over MPI
    mpi_group: Any = None  # the group of the ranks, which the caller frees; None without MPI
    # The generation's key; None in a job of one rank.
    key: bytes | None = dataclasses.field(default=None, repr=False)
    mpi_data: MpiData | None = None  # what the runtime gets where MPI carries the data

    @property
    def nonce(self) -> int:
        """The number in `job`; frames of the runtime carry it. Those with another are refused."""
        return int(self.job.rpartition("-")[2], 16)

    def hand_over(self, options: _native.core.InitOptions) -> None:
        """Sets the runtime's options, which own the descriptors from then on."""
        topology = options.topology
        topology.rank, topology.size = self.rank, self.size
        topology.local_rank, topology.local_size = self.local_rank, self.local_size
        topology.cross_rank, topology.cross_size = self.cross_rank, self.cross_size
        options.hosts, options.local_pids = self.hosts, self.local_pids
        options.control_keys, options.nonce = self.control_keys, self.nonce
        options.last_process_set = self.last_process_set
        if self.mpi_data is not None:
            options.mpi_plugin, options.mpi_module, options.mpi_communicator = self.mpi_data
        if self.listener is not None and self.key is not None:
            options.data_listener, options.data_endpoints = self.listener.detach(), self.endpoints
            options.data_key = expand(self.key, b"data connections")
        options.control_fds, options.data_fds = self.release()

    def free_group(self) -> None:
        """Frees the MPI group, where there is one."""
        if self.mpi_group is not None:
            free_group(self.mpi_group)


def connect_job(
    identity: Identity,
    settings: Settings,
    environ: Mapping[str, str],
    comm: Any = None,
    process_sets: int = 0,
    store: Store | None = None,
    last_process_set: int = 0,
    cancel: Cancel | None = None,
) -> JoinedJob:
    """Connects all ranks of the job to each other; every rank calls it.

    `comm` is as for init, but no list of communicators. `store` stays the caller's. Setting
    `cancel` from another thread also ends the waits for the store.

    Raises:
        BootstrapError: A rank did not take part or could not be reached; the message names it.
        AuthError: A process does not know the job's secret.
        ValueError: `comm` does not contain this process, or cannot be a job here.
    """
    deadline = time.monotonic() + settings.start_timeout
    if identity.size is None or comm:
        raise_descriptor_limit()
    else:
        mesh.ensure_descriptors(
            identity.rank,
            identity.size,
            settings.mesh_limit,
            rendezvous=identity.rendezvous is Rendezvous.TCP,
        )
    job = form_job(identity, settings, environ, comm, store)
    try:
        records = exchange_records(job, settings, process_sets, last_process_set)
        over_hosts = len({record.host_id for record in records}) > 1
        if over_hosts and not job.secret and not settings.insecure and job.identity.rank == 0:
            _warn_of_open_key("MPI" if job.mpi_group is not None else "The store")
        # Under MPI there may be no secret; the nonce of rank 0, which MPI carries, suffices then.
        key = hmac.new(job.secret.encode(), records[0].nonce.encode(), hashlib.sha256).digest()
        key = expand(key, b"generation")
        over_mpi = _prepare_mpi(job, records)
        rank = job.identity.rank
        connections = _connect(job.exchange, records, rank, settings, key, deadline, cancel)
    except BaseException:
        if job.mpi_group is not None:
            free_group(job.mpi_group)
        raise
    finally:
        job.exchange.close()
    facts = facts_of(records, rank, settings)
    return JoinedJob(
        **vars(connections),
        **vars(facts),
        by_mpi=job.identity.rendezvous is Rendezvous.MPI,
        mpi_group=job.mpi_group,
        key=key if facts.size > 1 else None,
        mpi_data=over_mpi,
    )


@functools.cache
def _warn_of_open_key(carrier: str) -> None:
    """Says once that the job's key can be read on its way between hosts."""
    _log.warning(
        "%s sends this job's key between hosts unencrypted. Anybody who can read that network can "
        "join the job and run code in its ranks. Set TFRING_SECRET_FILE to a file of mode 0600 "
        "with random text, the same on all hosts, or TFRING_INSECURE=1 if nobody else can read it",
        carrier,
    )


def _prepare_mpi(job: FormedJob, records: list[Record]) -> MpiData | None:
    """Returns what the runtime needs for data over MPI; None where the job does without."""
    if len(records) == 1 or not mpi_data.wanted(records[0].settings):
        return None
    found: list[tuple[MpiExchange, Path]] = []

    def find() -> None:
        source = job.identity.source
        found.append(mpi_data.find(job.exchange, source, _native.library_dir()))

    # A rank that cannot use MPI ends this before any is in a collective of MPI without it.
    _run_on_all_ranks(job.exchange, find)
    return mpi_data.open_communicator(*found[0])


def _run_on_all_ranks(exchange: Exchange, step: Callable[[], Any]) -> list[Any]:
    """Runs a step on every rank and returns the results of all; a failure of one fails all.

    The error is this rank's own; else a BootstrapError that names the rank that failed.
    """
    failure: Exception | None = None
    value: Any = None
    try:
        value = step()
    except (BootstrapError, OSError, ValueError) as error:
        failure = error
    try:
        answers = exchange.allgather({"value": value, "error": str(failure) if failure else None})
    except BootstrapError:
        if failure is None:
            raise
    if failure is not None:
        raise failure
    for other, answer in enumerate(answers):
        if not isinstance(answer, dict):
            raise BootstrapError(f"rank {other} sent a malformed record")
        if answer.get("error"):
            raise BootstrapError(f"the job could not start: rank {other}: {answer['error']}")
    return [answer.get("value") for answer in answers]


def _connect(
    exchange: Exchange,
    records: list[Record],
    rank: int,
    settings: Settings,
    key: bytes,
    deadline: float,
    cancel: Cancel | None,
) -> mesh.Connections:
    """Opens our listener, exchanges the addresses and makes all connections of this rank."""
    size = len(records)
    if size == 1:
        return mesh.Connections()
    listener: Listener | None = None
    connections: mesh.Connections | None = None
    mesh_limit = records[0].mesh_limit

    def listen() -> list[Any]:
        nonlocal listener
        address = own_address(records, rank, settings)
        # Behind address translation no interface has the address that others use.
        here = settings.bind_addr or ("" if settings.advertise_addr else address)
        listener = Listener(bind(here, 0, max(1024, 2 * size + 16)), key, rank)
        if settings.advertise_addr:
            address, port = hosts.split_port(settings.advertise_addr)
            return [address, port or listener.address[1]]
        return [address, listener.address[1]]

    def connect_all() -> None:
        nonlocal connections
        assert listener is not None
        connections = mesh.connect_all(
            rank=rank,
            endpoints=endpoints,
            hosts=[r.host for r in records],
            host_ids=[r.host_id for r in records],
            listener=listener,
            key=key,
            mesh_limit=mesh_limit,
            deadline=deadline,
            cancel=cancel,
        )

    try:
        endpoints = [(str(a), int(p)) for a, p in _run_on_all_ranks(exchange, listen)]
        _run_on_all_ranks(exchange, connect_all)
        assert listener is not None and connections is not None
        if len(connections.data_fds) < size - 1:
            connections.listener = listener.listening_socket()
            connections.endpoints = endpoints
    except BaseException:
        if connections is not None:
            connections.close()
        raise
    finally:
        if listener is not None:
            listener.close()
    return connections
