"""Connects the ranks with each other: a star of control connections, a mesh or ring for data."""

from __future__ import annotations

import socket
from collections.abc import Iterable

from tfring.bootstrap import auth
from tfring.bootstrap.errors import BootstrapError
from tfring.bootstrap.listener import Listener, connect
from tfring.bootstrap.rendezvous import describe_ranks


class Connections:
    """The connected sockets of one rank, until they are handed to the runtime.

    Used by one thread; owns the sockets until release() or close().
    """

    def __init__(self) -> None:
        self.control: dict[int, socket.socket] = {}
        self.data: dict[int, socket.socket] = {}

    def add(self, role: auth.Role, peer: int, sock: socket.socket) -> None:
        """Takes over one connection and makes it ready for the runtime."""
        (self.control if role is auth.Role.CONTROL else self.data)[peer] = sock
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def release(self) -> tuple[dict[int, int], dict[int, int]]:
        """Hands out the descriptors of control and data; from now on they are the caller's."""
        control = {peer: sock.detach() for peer, sock in self.control.items()}
        data = {peer: sock.detach() for peer, sock in self.data.items()}
        return control, data

    def close(self) -> None:
        """Closes everything that was not released."""
        for sock in (*self.control.values(), *self.data.values()):
            sock.close()


def data_peers(rank: int, size: int, mesh_limit: int) -> set[int]:
    """The ranks that a rank exchanges data with: all, or its ring neighbours in large jobs."""
    if size <= mesh_limit:
        return set(range(size)) - {rank}
    return {(rank - 1) % size, (rank + 1) % size} - {rank}


def links(rank: int, size: int, mesh_limit: int) -> set[tuple[auth.Role, int]]:
    """Role and peer of every connection that a rank has."""
    control = set(range(1, size)) if rank == 0 else {0}
    wanted = {(auth.Role.CONTROL, peer) for peer in control}
    return wanted | {(auth.Role.DATA, peer) for peer in data_peers(rank, size, mesh_limit)}


def connect_all(
    *,
    rank: int,
    endpoints: list[tuple[str, int]],
    hosts: list[str],
    listener: Listener,
    key: bytes,
    mesh_limit: int,
    deadline: float,
) -> Connections:
    """Makes all connections of this rank; every rank calls it at the same time.

    Each rank first connects to those below it and then accepts those above: rank 0 only accepts, so
    by induction nobody waits in a circle.

    Args:
        rank: Our rank.
        endpoints: Address and port of every rank's listener.
        hosts: Host name of every rank, for messages.
        listener: Ours.
        key: This round's key.
        mesh_limit: Largest job in which everybody is connected with everybody.
        deadline: ``time.monotonic()`` at which to give up.

    Raises:
        BootstrapError: A rank could not be reached or did not come; the message names it.
    """
    wanted = links(rank, len(endpoints), mesh_limit)
    connections = Connections()
    try:
        for role, peer in sorted(link for link in wanted if link[1] < rank):
            address, port = endpoints[peer]
            hello = auth.Hello(role, rank, peer)
            connections.add(role, peer, connect(address, port, key, hello, deadline))
        above = {link for link in wanted if link[1] > rank}
        present = listener.accept(above, deadline)
        for (role, peer), sock in present.items():
            connections.add(role, peer, sock)
        missing = above - set(present)
        if missing:
            raise BootstrapError(_missing(rank, {peer for _, peer in missing}, endpoints, hosts))
    except BaseException:
        connections.close()
        raise
    return connections


def _missing(
    rank: int, peers: Iterable[int], endpoints: list[tuple[str, int]], hosts: list[str]
) -> str:
    ranks = sorted(peers)
    where = ", ".join(sorted({hosts[peer] for peer in ranks}))
    return (
        f"{describe_ranks(ranks)} (host {where}) did not connect to rank {rank} (host "
        f"{hosts[rank]}, address {endpoints[rank][0]}) in time: check that these hosts can reach "
        "that address (a firewall, or the wrong network: TFRING_INTERFACE chooses one)"
    )
