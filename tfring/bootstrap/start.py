"""From "who am I" to connected, authenticated sockets between all ranks."""

from __future__ import annotations

import dataclasses
import hashlib
import hmac
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

from tfring.bootstrap import hosts, mesh
from tfring.bootstrap.errors import BootstrapError
from tfring.bootstrap.exchange import Exchange
from tfring.bootstrap.hosts import InterfaceAddress
from tfring.bootstrap.listener import Listener, bind
from tfring.bootstrap.meeting import meet
from tfring.bootstrap.mpi_exchange import free_group
from tfring.bootstrap.records import Record, topology_of
from tfring.bootstrap.secret import fresh_secret
from tfring.config import LOCAL_SETTINGS, Settings
from tfring.environments import Identity, Meeting

_log = logging.getLogger("tfring")


@dataclasses.dataclass(frozen=True)
class Membership:
    """This rank's place in the job and its connections, as the runtime wants them.

    Descriptors belong to whoever holds this; the runtime takes them over. So does the MPI group of
    the ranks, which is None where MPI did not bring them together. `process_sets` is the largest
    number of process sets that a rank brings along.
    """

    rank: int
    size: int
    local_rank: int
    local_size: int
    cross_rank: int
    cross_size: int
    homogeneous: bool
    hosts: list[str]
    control_fds: dict[int, int]
    data_fds: dict[int, int]
    local_pids: dict[int, int]
    runtime: dict[str, str]
    by_mpi: bool
    mpi_group: Any = None
    process_sets: int = 0

    def free_group(self) -> None:
        """Frees the MPI group, where there is one."""
        if self.mpi_group is not None:
            free_group(self.mpi_group)


def bring_up(
    identity: Identity,
    settings: Settings,
    environ: Mapping[str, str],
    comm: Any = None,
    process_sets: int = 0,
) -> Membership:
    """Brings all ranks of the job together and connects them; every rank calls it.

    Args:
        identity: Who we are among the processes that were launched.
        settings: What the environment asks for.
        environ: The variables (for the launcher's inherited socket).
        comm: The job, as for init, but no list of communicators.
        process_sets: How many process sets this rank brings along; all ranks hear of it.

    Returns:
        Our place in the job, with the descriptors of all our connections.

    Raises:
        BootstrapError: Somebody did not come or could not be reached; the message names the ranks.
        AuthError: Somebody does not know the job's secret.
        ValueError: We are not part of `comm`, or it cannot be a job here.
    """
    deadline = time.monotonic() + settings.start_timeout
    job = meet(identity, settings, environ, comm)
    identity, exchange = job.identity, job.exchange
    try:
        # Under MPI there may be no secret yet: then rank 0's nonce, which travels over MPI, is it.
        mine = Record.of_this_process(
            identity.rank, identity.local_rank, identity.local_size, settings, fresh_secret()
        )
        mine = dataclasses.replace(mine, process_sets=process_sets)
        records = [Record.from_json(r, i) for i, r in enumerate(exchange.allgather(mine.to_json()))]
        _check(records, identity)
        key = hmac.new(job.secret.encode(), records[0].nonce.encode(), hashlib.sha256).digest()
        connections = _connect(exchange, records, identity.rank, settings, key, deadline)
    except BaseException:
        if job.mpi_group is not None:
            free_group(job.mpi_group)
        raise
    finally:
        exchange.close()
    control_fds, data_fds = connections.release()
    place = topology_of(records, identity.rank)
    return Membership(
        rank=identity.rank,
        size=len(records),
        local_rank=place.local_rank,
        local_size=place.local_size,
        cross_rank=place.cross_rank,
        cross_size=place.cross_size,
        homogeneous=place.homogeneous,
        hosts=[r.host for r in records],
        control_fds=control_fds,
        data_fds=data_fds,
        local_pids={
            r.rank: r.pid
            for r in records
            if r.host_id == records[identity.rank].host_id and r.rank != identity.rank
        },
        runtime=_agreed_settings(records, identity.rank),
        by_mpi=identity.meeting is Meeting.MPI,
        mpi_group=job.mpi_group,
        process_sets=max(r.process_sets for r in records),
    )


def _check(records: list[Record], identity: Identity) -> None:
    for record in records:
        if record.version != records[0].version:
            raise BootstrapError(
                f"rank {record.rank} on host {record.host} has tfring {record.version}, rank 0 on "
                f"host {records[0].host} has {records[0].version}: install the same version "
                "everywhere"
            )
    if identity.size is not None and len(records) != identity.size:
        raise BootstrapError(
            f"{identity.source} announced {identity.size} ranks, and {len(records)} came together"
        )


def _agreed_settings(records: list[Record], rank: int) -> dict[str, str]:
    """Rank 0's settings for all, because different algorithms on different ranks would not meet."""
    mine, first = records[rank].settings, records[0].settings
    for name, value in mine.items():
        if name not in LOCAL_SETTINGS and first.get(name) != value:
            _log.warning(
                "TFRING_%s is %s on rank %d and %s on rank 0: rank 0's setting counts for all",
                name,
                value,
                rank,
                first.get(name, "not set"),
            )
    agreed = {n: v for n, v in first.items() if n not in LOCAL_SETTINGS}
    return agreed | {n: v for n, v in mine.items() if n in LOCAL_SETTINGS}


def _together(exchange: Exchange, rank: int, step: Callable[[], Any]) -> list[Any]:
    """Runs one step on every rank and exchanges the results; an error anywhere is one everywhere.

    Raises:
        BootstrapError: Our own error if the step failed here, else one that names who failed.
    """
    failure: Exception | None = None
    value: Any = None
    try:
        value = step()
    except (BootstrapError, OSError, ValueError) as error:
        failure = error
    answers = exchange.allgather({"value": value, "error": str(failure) if failure else None})
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
) -> mesh.Connections:
    size = len(records)
    if size == 1:
        return mesh.Connections()
    listener: Listener | None = None
    connections: mesh.Connections | None = None
    mesh_limit = records[0].mesh_limit

    def listen() -> list[Any]:
        nonlocal listener
        address = _own_address(records, rank, settings)
        backlog = min(4096, 2 * size + 16)
        listener = Listener(bind(address, 0, backlog), key, rank)
        return list(listener.address)

    def join() -> None:
        nonlocal connections
        assert listener is not None
        connections = mesh.connect_all(
            rank=rank,
            endpoints=endpoints,
            hosts=[r.host for r in records],
            listener=listener,
            key=key,
            mesh_limit=mesh_limit,
            deadline=deadline,
        )

    try:
        endpoints = [(str(a), int(p)) for a, p in _together(exchange, rank, listen)]
        _together(exchange, rank, join)
    except BaseException:
        if connections is not None:
            connections.close()
        raise
    finally:
        if listener is not None:
            listener.close()
    assert connections is not None
    return connections


def _own_address(records: list[Record], rank: int, settings: Settings) -> str:
    """The address at which the other ranks can reach this one: loopback if all share a host."""
    mine = records[rank]
    if settings.interfaces:
        return hosts.chosen_interface(settings.interfaces, mine.addresses).address
    if all(r.host_id == mine.host_id for r in records):
        return hosts.LOOPBACK
    by_host: dict[str, list[InterfaceAddress]] = {}
    for record in records:
        by_host.setdefault(record.host_id, record.addresses)
    network = hosts.common_network(list(by_host.values()))
    if network is not None:
        return next(a.address for a in mine.addresses if a.network == network)
    for record in records:
        if record.host_id != mine.host_id:
            address = hosts.route_address(record.addresses)
            if address is not None:
                return address
    raise BootstrapError(
        f"host {mine.host} (rank {rank}) has no address at which host {records[0].host} could "
        "reach it: TFRING_INTERFACE chooses a network interface"
    )
