"""From a process's identity to authenticated sockets between all ranks of its job."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import hmac
import time
from collections.abc import Mapping
from typing import Any

from tfring.job.bootstrap import mesh, mpi_data
from tfring.job.bootstrap.cancel import Cancel
from tfring.job.bootstrap.job import form_job
from tfring.job.bootstrap.mpi_data import MpiData
from tfring.job.bootstrap.records import JobFacts, exchange_records, facts_of
from tfring.job.environments import Identity, Rendezvous
from tfring.job.handshake.descriptors import raise_descriptor_limit
from tfring.job.security.secret import expand
from tfring.job.store import Store
from tfring.runtime import _native
from tfring.runtime.communicators import free_group
from tfring.runtime.settings.environment import Settings


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
    rank, source = job.identity.rank, job.identity.source
    with contextlib.closing(job.exchange), contextlib.ExitStack() as failed:
        if job.mpi_group is not None:
            failed.callback(free_group, job.mpi_group)
        records = exchange_records(job, settings, process_sets, last_process_set)
        facts = facts_of(records, rank)
        # Under MPI there may be no secret; the nonce of rank 0, which MPI carries, suffices then.
        key = hmac.new(job.secret.encode(), records[0].nonce.encode(), hashlib.sha256).digest()
        key = expand(key, b"generation")
        data = None
        if facts.size > 1 and mpi_data.wanted(facts.runtime):
            data = mpi_data.prepare(job.exchange, source, _native.library_dir())
        connections = mesh.connect_ranks(
            job.exchange, records, rank, settings, key, deadline, cancel
        )
        failed.pop_all()
    return JoinedJob(
        **vars(connections),
        **vars(facts),
        by_mpi=job.identity.rendezvous is Rendezvous.MPI,
        mpi_group=job.mpi_group,
        key=key if facts.size > 1 else None,
        mpi_data=data,
    )
