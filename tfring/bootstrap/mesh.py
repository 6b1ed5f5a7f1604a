"""Connects the ranks: a star of control connections around rank 0; data to all or along a ring."""

from __future__ import annotations

import os
import resource
import socket
from collections.abc import Iterable

from tfring.bootstrap import auth
from tfring.bootstrap.errors import BootstrapError
from tfring.bootstrap.listener import Listener, connect
from tfring.bootstrap.rendezvous import describe_ranks


class Connections:
    """The connected sockets of one rank, until they are handed to the runtime.

    Owns the sockets until release() or close().
    """

    def __init__(self) -> None:
        self.control: dict[int, socket.socket] = {}
        self.data: dict[int, socket.socket] = {}

    def add(self, role: auth.Role, peer: int, sock: socket.socket) -> None:
        """Takes over one connection and sets the options that the runtime needs."""
        (self.control if role is auth.Role.CONTROL else self.data)[peer] = sock
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def release(self) -> tuple[dict[int, int], dict[int, int]]:
        """Returns the control and data descriptors by peer; the caller owns them from now on."""
        control = {peer: sock.detach() for peer, sock in self.control.items()}
        data = {peer: sock.detach() for peer, sock in self.data.items()}
        return control, data

    def close(self) -> None:
        """Closes everything that was not released."""
        for sock in (*self.control.values(), *self.data.values()):
            sock.close()


def data_peers(rank: int, size: int, mesh_limit: int) -> set[int]:
    """Returns the ranks that a rank has data connections with: all, or its ring neighbours."""
    if size <= mesh_limit:
        return set(range(size)) - {rank}
    return {(rank - 1) % size, (rank + 1) % size} - {rank}


def links(rank: int, size: int, mesh_limit: int) -> set[tuple[auth.Role, int]]:
    """Returns role and peer of every connection that a rank has."""
    control = set(range(1, size)) if rank == 0 else {0}
    wanted = {(auth.Role.CONTROL, peer) for peer in control}
    return wanted | {(auth.Role.DATA, peer) for peer in data_peers(rank, size, mesh_limit)}


# For each peer of this host: shared memory, its wake-up and the watched process.
_PER_LOCAL_PEER = 3
# For files that the user's program opens after init.
_RESERVE = 256


def ensure_descriptors(rank: int, size: int, mesh_limit: int, *, rendezvous: bool) -> None:
    """Makes sure that this rank may open as many descriptors as its connections need.

    Raises the process's soft limit (``ulimit -Sn``) as far as needed; it is not raised further,
    because programs that use ``select`` cannot have descriptors above 1023.

    Args:
        rank: Our rank.
        size: Number of ranks.
        mesh_limit: Largest job in which every rank has a data connection to every other.
        rendezvous: Whether the ranks connect to rank 0 before that, to find each other.

    Raises:
        BootstrapError: The hard limit does not suffice; the message says how many are needed.
    """
    data = len(data_peers(rank, size, mesh_limit))
    needed = len(os.listdir("/proc/self/fd")) + len(links(rank, size, mesh_limit))
    needed += _PER_LOCAL_PEER * data
    if rendezvous:
        needed += size - 1 if rank == 0 else 1
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed + _RESERVE:
        return
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise BootstrapError(
            f"rank {rank} of {size} needs {needed} file descriptors and may have {hard}: raise the "
            "limit for this host (ulimit -Hn, LimitNOFILE of its service, or nofile in "
            "/etc/security/limits.conf)"
        )
    wanted = needed + _RESERVE
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


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
    """Makes all connections of this rank; all ranks call it at the same time.

    Each rank first connects to the lower ranks and then accepts the higher ones. Rank 0 only
    accepts, so rank 1 gets through, then rank 2, and so on: there is no deadlock.

    Args:
        rank: Our rank.
        endpoints: Address and port of every rank's listener.
        hosts: Host name of every rank, for messages.
        listener: Our own.
        key: The key of this generation.
        mesh_limit: Largest job in which every rank has a data connection to every other.
        deadline: ``time.monotonic()`` at which to give up.

    Raises:
        BootstrapError: A rank could not be reached or did not connect; the message names it.
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
            peers = {peer for _, peer in missing}
            raise BootstrapError(_did_not_connect(rank, peers, endpoints, hosts))
    except BaseException:
        connections.close()
        raise
    return connections


def _did_not_connect(
    rank: int, peers: Iterable[int], endpoints: list[tuple[str, int]], hosts: list[str]
) -> str:
    ranks = sorted(peers)
    where = ", ".join(sorted({hosts[peer] for peer in ranks}))
    return (
        f"{describe_ranks(ranks)} (host {where}) did not connect to rank {rank} (host "
        f"{hosts[rank]}, address {endpoints[rank][0]}) in time: check that these hosts can reach "
        "that address (firewall, or the wrong network: TFRING_INTERFACE chooses one)"
    )
