"""From "who am I" to connected, authenticated sockets between all ranks."""

from __future__ import annotations

import hashlib
import hmac
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tfring.bootstrap import hosts, mesh, rendezvous
from tfring.bootstrap.errors import BootstrapError
from tfring.bootstrap.exchange import Alone, Exchange
from tfring.bootstrap.hosts import InterfaceAddress
from tfring.bootstrap.listener import Listener, bind
from tfring.bootstrap.records import Record, topology_of
from tfring.bootstrap.secret import derived_secret, fresh_secret, job_key
from tfring.config import LOCAL_SETTINGS, Settings
from tfring.environments import Identity, Meeting

_log = logging.getLogger("tfring")


@dataclass(frozen=True)
class Membership:
    """This rank's place in the job and its connections, as the runtime wants them.

    Descriptors belong to whoever holds this; the runtime takes them over.
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


def bring_up(identity: Identity, settings: Settings, environ: Mapping[str, str]) -> Membership:
    """Brings all ranks of the job together and connects them; every rank calls it.

    Args:
        identity: Who we are.
        settings: What the environment asks for.
        environ: The variables (for the launcher's inherited socket).

    Returns:
        Our place in the job, with the descriptors of all our connections.

    Raises:
        BootstrapError: Somebody did not come or could not be reached; the message names the ranks.
        AuthError: Somebody does not know the job's secret.
    """
    deadline = time.monotonic() + settings.start_timeout
    secret = _secret(identity, settings)
    exchange = _exchange(identity, settings, secret, environ)
    try:
        # Under MPI there may be no secret yet: then rank 0's nonce, which travels over MPI, is it.
        mine = Record.of_this_process(
            identity.rank, identity.local_rank, identity.local_size, settings, fresh_secret()
        )
        records = [Record.from_json(r, i) for i, r in enumerate(exchange.allgather(mine.to_json()))]
        _check(records, identity)
        key = hmac.new(secret.encode(), records[0].nonce.encode(), hashlib.sha256).digest()
        connections = _connect(exchange, records, identity.rank, settings, key, deadline)
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
    )


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


def _exchange(
    identity: Identity, settings: Settings, secret: str, environ: Mapping[str, str]
) -> Exchange:
    if identity.meeting is Meeting.ALONE:
        return Alone()
    if identity.meeting is Meeting.MPI:
        from tfring.bootstrap.mpi_exchange import MpiExchange

        exchange = MpiExchange(identity.size, identity.source)
        if exchange.rank != identity.rank:
            raise BootstrapError(
                f"{identity.source} says that this is rank {identity.rank}, and MPI says "
                f"{exchange.rank}: variables of another launcher are left over"
            )
        return exchange
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
