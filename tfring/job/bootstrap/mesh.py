"""Connects the ranks: a star of control connections around rank 0, and data connections.

In a small job all ranks are connected for data. In a larger one each is with those of its host and
its neighbours in the ring; the runtime opens all others when a collective first needs them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import ipaddress
import os
import socket
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from tfring.job.bootstrap.cancel import Cancel
from tfring.job.bootstrap.exchange import Exchange, run_on_all_ranks
from tfring.job.bootstrap.hosts import (
    LOOPBACK,
    InterfaceAddress,
    chosen_interface,
    common_network,
    route_address,
    split_port,
)
from tfring.job.bootstrap.records import Record
from tfring.job.handshake import auth
from tfring.job.handshake.connector import connect
from tfring.job.handshake.descriptors import raise_descriptor_limit
from tfring.job.handshake.errors import BootstrapError, UnreachableError
from tfring.job.handshake.listener import Listener, bind
from tfring.job.security.mac import Channel, ChannelKeys
from tfring.runtime.settings.environment import Settings
from tfring.runtime.texts.ranks import ranks_text


@dataclasses.dataclass(kw_only=True)
class Connections:
    """The connections of one rank, until they are handed to the runtime.

    Owns the descriptors until release() or close().
    """

    # Descriptors of control connections, by peer.
    control_fds: dict[int, int] = dataclasses.field(default_factory=dict)
    # Descriptors of data connections, by peer.
    data_fds: dict[int, int] = dataclasses.field(default_factory=dict)
    # By peer, the keys of the MACs that we send and of those that we get.
    control_keys: dict[int, ChannelKeys] = dataclasses.field(default_factory=dict)
    # Where not all ranks are connected: what others connect to later.
    listener: socket.socket | None = None
    # Where not all ranks are connected: address and port of each rank's listener.
    endpoints: list[tuple[str, int]] = dataclasses.field(default_factory=list)
    # The network interface at which other hosts reach this rank; "" on a single host.
    interface: str = ""

    def add(self, role: auth.Role, peer: int, channel: Channel) -> None:
        """Takes over one connection and sets the options that the runtime needs."""
        sock = channel.sock
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if role is auth.Role.CONTROL:
            self.control_keys[peer] = channel.keys
        (self.control_fds if role is auth.Role.CONTROL else self.data_fds)[peer] = sock.detach()

    def release(self) -> tuple[dict[int, int], dict[int, int]]:
        """Returns the control and data descriptors by peer; the caller owns them from now on."""
        taken = dict(self.control_fds), dict(self.data_fds)
        self.control_fds.clear()
        self.data_fds.clear()
        return taken

    def close(self) -> None:
        """Closes everything that was not released."""
        if self.listener is not None:
            self.listener.close()
        for descriptors in self.release():
            for descriptor in descriptors.values():
                os.close(descriptor)


def data_peers(rank: int, host_ids: Sequence[str], mesh_limit: int) -> set[int]:
    """Returns the ranks that a rank is connected with for data when the job begins.

    In a job of up to `mesh_limit` ranks these are all others. Ranks of one host have equal
    `host_ids`.
    """
    size = len(host_ids)
    ring = {(rank - 1) % size, (rank + 1) % size}
    near = {r for r in range(size) if r in ring or host_ids[r] == host_ids[rank]}
    return (set(range(size)) if size <= mesh_limit else near) - {rank}


def links(rank: int, host_ids: Sequence[str], mesh_limit: int) -> set[tuple[auth.Role, int]]:
    """Returns role and peer of every connection that a rank has when the job begins."""
    control = set(range(1, len(host_ids))) if rank == 0 else {0}
    wanted = {(auth.Role.CONTROL, peer) for peer in control}
    return wanted | {(auth.Role.DATA, peer) for peer in data_peers(rank, host_ids, mesh_limit)}


# For each peer of this host: shared memory, its wake-up and the watched process.
_PER_LOCAL_PEER = 3
# For files that the user's program opens after init.
_RESERVE = 256


def ensure_descriptors(rank: int, size: int, mesh_limit: int, *, rendezvous: bool) -> None:
    """Makes sure that this rank may open as many descriptors as its first connections need.

    If the system allows it, also as many as it takes to be connected with all ranks. With
    `rendezvous` the ranks connect to rank 0 first, to find each other.

    BootstrapError: the hard limit does not suffice; the message says how many are needed.
    """
    hosts = [str(r) for r in range(size)]  # which ranks share one is not known yet
    data = len(data_peers(rank, hosts, mesh_limit))
    needed = len(os.listdir("/proc/self/fd")) + len(links(rank, hosts, mesh_limit))
    needed += _PER_LOCAL_PEER * data
    if rendezvous:
        needed += size - 1 if rank == 0 else 1
    later = (1 + _PER_LOCAL_PEER) * (size - 1 - data)
    limit = raise_descriptor_limit(needed + later + _RESERVE)
    if limit < needed:
        raise BootstrapError(
            f"rank {rank} of {size} needs {needed} file descriptors and may have {limit}: raise "
            "the limit for this host (ulimit -Hn, LimitNOFILE of its service, or nofile in "
            "/etc/security/limits.conf)"
        )


def connect_ranks(
    exchange: Exchange,
    records: list[Record],
    rank: int,
    settings: Settings,
    key: bytes,
    deadline: float,
    cancel: Cancel | None,
) -> Connections:
    """Opens our listener, exchanges the addresses and makes all connections of this rank."""
    mine, size = records[rank], len(records)
    if size == 1:
        return Connections()
    listener: Listener | None = None
    connections: Connections | None = None
    interface = ""
    finished, failed = contextlib.ExitStack(), contextlib.ExitStack()

    def listen() -> list[Any]:
        nonlocal listener, interface
        address = _own_address(records, rank, settings)
        if any(r.host_id != mine.host_id for r in records):
            found = (a.interface for a in mine.addresses if a.address == address)
            interface = next(found, "")
        # Behind address translation no interface has the address that others use.
        here = settings.bind_addr or ("" if settings.advertise_addr else address)
        listener = Listener(bind(here, 0, max(1024, 2 * size + 16)), key, rank)
        finished.callback(listener.close)
        if settings.advertise_addr:
            address, port = split_port(settings.advertise_addr)
            return [address, port or listener.address[1]]
        return [address, listener.address[1]]

    def join() -> None:
        nonlocal connections
        assert listener is not None
        connections = connect_all(
            rank=rank,
            endpoints=endpoints,
            hosts=[r.host for r in records],
            host_ids=[r.host_id for r in records],
            listener=listener,
            key=key,
            mesh_limit=records[0].mesh_limit,
            deadline=deadline,
            cancel=cancel,
        )
        failed.callback(connections.close)

    with finished, failed:
        endpoints = [(str(a), int(p)) for a, p in run_on_all_ranks(exchange, listen)]
        run_on_all_ranks(exchange, join)
        assert listener is not None and connections is not None
        connections.interface = interface
        if len(connections.data_fds) < size - 1:
            connections.listener = listener.listening_socket()
            connections.endpoints = endpoints
        failed.pop_all()
    return connections


def _own_address(records: list[Record], rank: int, settings: Settings) -> str:
    """Returns the address at which other ranks can reach this one: loopback on a single host."""
    mine = records[rank]
    if settings.bind_addr and not ipaddress.ip_address(settings.bind_addr).is_unspecified:
        return settings.bind_addr
    if settings.interface:
        return chosen_interface(settings.interface, mine.addresses).address
    if all(r.host_id == mine.host_id for r in records):
        return LOOPBACK
    by_host: dict[str, list[InterfaceAddress]] = {}
    for record in records:
        by_host.setdefault(record.host_id, record.addresses)
    network = common_network(list(by_host.values()))
    if network is not None:
        return next(a.address for a in mine.addresses if a.network == network)
    for record in records:
        if record.host_id != mine.host_id:
            address = route_address(record.addresses)
            if address is not None:
                return address
    raise BootstrapError(
        f"host {mine.host} (rank {rank}) has no address at which host {records[0].host} could "
        "reach it: choose a network interface with TFRING_INTERFACE"
    )


def connect_all(
    *,
    rank: int,
    endpoints: list[tuple[str, int]],
    hosts: list[str],
    host_ids: list[str],
    listener: Listener,
    key: bytes,
    mesh_limit: int,
    deadline: float,
    cancel: Cancel | None = None,
) -> Connections:
    """Makes all connections of this rank; all ranks call it at the same time.

    Each rank connects to the lower ranks and accepts the higher ones at the same time, so that no
    rank waits for a chain of others. `hosts` are names, for messages; `host_ids` tell the hosts of
    ranks apart.

    BootstrapError: a rank could not be reached or did not connect; the message names it. Or it was
    cancelled.
    """
    wanted = links(rank, host_ids, mesh_limit)
    above = {link for link in wanted if link[1] > rank}
    connections = Connections()
    outgoing = _Outgoing(connections, listener)
    outgoing.start(
        lambda role, peer: connect(
            *endpoints[peer],
            key,
            auth.Hello(role, rank, peer),
            deadline,
            outgoing.given_up,
        ),
        sorted(wanted - above),
    )
    try:
        with (cancel or Cancel()).runs(outgoing.give_up):
            present = listener.accept(above, deadline)
            outgoing.finish()
        for (role, peer), channel in present.items():
            connections.add(role, peer, channel)
        missing = above - set(present)
        if missing:
            peers = {peer for _, peer in missing}
            text = _did_not_connect(rank, peers, endpoints, hosts)
            raise UnreachableError(text, rank=min(peers))
    except BaseException:
        outgoing.give_up()
        connections.close()
        raise
    return connections


class _Outgoing:
    """Connects to the lower ranks, in a thread of its own while another accepts the higher ones.

    If a rank cannot be reached, the listener is interrupted and finish() raises the reason. The
    thread adds to `connections` until finish() returns or give_up() was called.
    """

    def __init__(self, connections: Connections, listener: Listener) -> None:
        self._connections = connections
        self._listener = listener
        self._failures: list[Exception] = []
        self._over = threading.Event()  # the thread is through, or given up
        self._lock = threading.Lock()  # guards _given_up, and `connections` while it is not set
        self._given_up = False

    def start(
        self, connect_to: Callable[[auth.Role, int], Channel], below: list[tuple[auth.Role, int]]
    ) -> None:
        def work() -> None:
            try:
                for role, peer in below:
                    channel = connect_to(role, peer)
                    with self._lock:
                        if self._given_up:
                            channel.sock.close()
                            return
                        self._connections.add(role, peer, channel)
            except Exception as error:
                with self._lock:
                    if not self._given_up:  # else the listener may be closed
                        self._failures.append(error)
                        self._listener.interrupt()
            finally:
                self._over.set()

        threading.Thread(target=work, name="tfring-connect", daemon=True).start()

    def give_up(self) -> None:
        """Ends accept() and finish(), from any thread; what is connected later is closed."""
        with self._lock:
            self._given_up = True
        self._listener.interrupt()
        self._over.set()

    def given_up(self) -> bool:
        return self._given_up

    def finish(self) -> None:
        """Waits until all are connected; raises what prevented it."""
        self._over.wait()
        if self._given_up:
            raise BootstrapError("The coordinator ended this generation while its ranks connected.")
        if self._failures:
            raise self._failures[0]


def _did_not_connect(
    rank: int, peers: Iterable[int], endpoints: list[tuple[str, int]], hosts: list[str]
) -> str:
    ranks = sorted(peers)
    where = ", ".join(sorted({hosts[peer] for peer in ranks}))
    return (
        f"{ranks_text(ranks)} (host {where}) did not connect to rank {rank} (host "
        f"{hosts[rank]}, address {endpoints[rank][0]}) in time: check that these hosts can reach "
        "that address (firewall, or the wrong network: TFRING_INTERFACE chooses one)"
    )
