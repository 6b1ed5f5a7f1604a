"""Listening for ranks and connecting to them, with the handshake of auth.py on every connection.

The listener runs the handshakes of several connections side by side in one thread, each with its
own time limit, so that a process which sends nothing, or anything else, delays no rank.
"""

from __future__ import annotations

import contextlib
import logging
import selectors
import socket
import time
from dataclasses import dataclass, field

from tfring.bootstrap import auth, frames
from tfring.bootstrap.errors import AuthError, BootstrapError

_log = logging.getLogger("tfring")

# Rank 0 sends this to a rank that connects while rank 0 starts a job without that rank.
RETRY_LATER = {"retry": True}

_HANDSHAKE_SECONDS = 10.0
_MAX_HANDSHAKES = 256


@dataclass
class _Pending:
    """A connection whose handshake is not finished."""

    sock: socket.socket
    handshake: auth.ListenerHandshake
    deadline: float
    wanted: int = auth.HELLO_SIZE
    received: bytearray = field(default_factory=bytearray)


class Listener:
    """Accepts connections from the ranks of one job.

    Not thread-safe. Owns the listening socket until close(); the connections that accept() returns
    belong to the caller.
    """

    def __init__(self, sock: socket.socket, key: bytes, rank: int) -> None:
        self._sock = sock
        self._key = key
        self._rank = rank
        self._pending: list[_Pending] = []
        self._selector = selectors.DefaultSelector()
        sock.setblocking(False)
        self._selector.register(sock, selectors.EVENT_READ, None)

    @property
    def address(self) -> tuple[str, int]:
        """The address and port that it is bound to."""
        name = self._sock.getsockname()
        return str(name[0]), int(name[1])

    def accept(
        self, expected: set[tuple[auth.Role, int]], deadline: float
    ) -> dict[tuple[auth.Role, int], socket.socket]:
        """Waits until all expected connections are there.

        Args:
            expected: Role and rank of each.
            deadline: ``time.monotonic()`` at which to stop waiting.

        Returns:
            The connections, non-blocking; fewer than expected if the deadline passed.

        Raises:
            BootstrapError: Two processes that know the secret say that they are the same rank.
        """
        present: dict[tuple[auth.Role, int], socket.socket] = {}
        try:
            while len(present) < len(expected):
                now = time.monotonic()
                if now >= deadline:
                    break
                self._drop_late(now)
                limit = min([deadline, *(p.deadline for p in self._pending)])
                for key, _ in self._selector.select(max(0.0, limit - now)):
                    if key.data is None:
                        self._accept_one()
                    else:
                        self._continue(key.data, expected, present)
        except BaseException:
            for sock in present.values():
                sock.close()
            raise
        return present

    def close(self) -> None:
        """Closes the listening socket and all connections with unfinished handshakes."""
        for pending in list(self._pending):
            self._reject(pending)
        self._selector.close()
        self._sock.close()

    def _accept_one(self) -> None:
        try:
            sock, _ = self._sock.accept()
        except OSError:
            return  # the other end has given up already
        if len(self._pending) >= _MAX_HANDSHAKES:
            self._drop(self._pending[0], "too many handshakes at once")
        sock.setblocking(False)
        handshake = auth.ListenerHandshake(self._key, self._rank)
        pending = _Pending(sock, handshake, time.monotonic() + _HANDSHAKE_SECONDS)
        self._pending.append(pending)
        self._selector.register(sock, selectors.EVENT_READ, pending)

    def _continue(
        self,
        pending: _Pending,
        expected: set[tuple[auth.Role, int]],
        present: dict[tuple[auth.Role, int], socket.socket],
    ) -> None:
        if pending.sock.fileno() < 0:
            return  # dropped while earlier events of the same select() were handled
        try:
            chunk = pending.sock.recv(pending.wanted - len(pending.received))
            if not chunk:
                raise AuthError("the other end closed the connection")
            pending.received += chunk
            if len(pending.received) < pending.wanted:
                return
            message = bytes(pending.received)
            pending.received.clear()
            if pending.handshake.claim is None:
                # 64 bytes always fit into the send buffer of a new connection.
                pending.sock.send(pending.handshake.challenge(message))
                pending.wanted = auth.PROOF_SIZE
                return
            hello = pending.handshake.finish(message)
        except (BlockingIOError, InterruptedError):
            return
        except (AuthError, OSError) as error:
            self._drop(pending, str(error))
            return
        self._admit(pending, (hello.role, hello.connector), expected, present)

    def _admit(
        self,
        pending: _Pending,
        who: tuple[auth.Role, int],
        expected: set[tuple[auth.Role, int]],
        present: dict[tuple[auth.Role, int], socket.socket],
    ) -> None:
        if who in present:
            self._drop(pending, "")
            raise BootstrapError(
                f"two processes say that they are rank {who[1]} of this job: check the variables "
                "that set the rank, and that no process of an earlier run still runs"
            )
        if who not in expected and who[0] is auth.Role.RENDEZVOUS:
            self._reject(pending)
            return
        if who not in expected:
            self._drop(
                pending, f"no {who[0].name.lower()} connection from rank {who[1]} is expected"
            )
            return
        self._forget(pending)
        present[who] = pending.sock

    def _reject(self, pending: _Pending) -> None:
        """Closes a connection; a rank that came to the rendezvous of another job has to retry."""
        claim = pending.handshake.claim
        if claim is not None and claim.role is auth.Role.RENDEZVOUS:
            # This fits into the send buffer of a new connection.
            with contextlib.suppress(OSError):
                frames.send_frame(pending.sock, frames.encode(RETRY_LATER))
        self._drop(pending, "")

    def _drop_late(self, now: float) -> None:
        for pending in [p for p in self._pending if p.deadline <= now]:
            self._drop(pending, "the handshake took too long")

    def _drop(self, pending: _Pending, reason: str) -> None:
        if reason:
            _log.warning("rank %d refused a connection: %s", self._rank, reason)
        self._forget(pending)
        pending.sock.close()

    def _forget(self, pending: _Pending) -> None:
        self._pending.remove(pending)
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(pending.sock)


def bind(address: str, port: int, backlog: int) -> socket.socket:
    """Returns a listening socket on exactly one address, closed on exec.

    Args:
        address: Name or address of a local interface.
        port: The port; 0 takes a free one.
        backlog: Number of connections that may wait to be accepted.

    Raises:
        OSError: The address is not of this host, or the port is taken.
    """
    error: OSError = OSError(f"{address} has no address")
    for family, kind, protocol, _, where in _resolve(address, port):
        sock = socket.socket(family, kind, protocol)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind(where)
            sock.listen(backlog)
            return sock
        except OSError as failure:
            sock.close()
            error = failure
    raise error


def _resolve(address: str, port: int) -> list[tuple[int, int, int, str, tuple[object, ...]]]:
    found = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)
    # IPv4 first, so that all ranks try the addresses of "localhost" in the same order.
    ordered = sorted(found, key=lambda entry: entry[0] != socket.AF_INET)
    return [(int(f), int(k), p, name, tuple(where)) for f, k, p, name, where in ordered]


def connect(
    address: str, port: int, key: bytes, hello: auth.Hello, deadline: float
) -> socket.socket:
    """Connects to a rank and runs the handshake; tries again until the deadline.

    Args:
        address: Where the rank listens.
        port: The port at that address.
        key: The job's key.
        hello: Our rank, the rank that we connect to, and what for.
        deadline: ``time.monotonic()`` at which to give up.

    Returns:
        The connection, blocking, with the remaining time as its timeout.

    Raises:
        AuthError: The process that listens there does not know the secret.
        BootstrapError: The rank could not be reached; the message has the last reason.
    """
    pause = 0.01
    reason: Exception = TimeoutError("the time was up before the first attempt")
    while time.monotonic() < deadline:
        try:
            for _, _, _, _, where in _resolve(address, port):
                try:
                    return _connect_once((str(where[0]), port), key, hello, deadline)
                except OSError as error:
                    reason = error
        except OSError as error:  # the name does not resolve, or not yet
            reason = error
        time.sleep(min(pause, max(0.0, deadline - time.monotonic())))
        pause = min(pause * 1.5, 0.25)
    raise BootstrapError(
        f"rank {hello.connector} could not reach rank {hello.listener} at {address} port {port} "
        f"in time ({reason})"
    )


def _connect_once(
    where: tuple[str, int], key: bytes, hello: auth.Hello, deadline: float
) -> socket.socket:
    # Many short attempts, so that one lost SYN does not use up all the time.
    left = max(0.01, deadline - time.monotonic())
    sock = socket.create_connection(where, timeout=min(5.0, left))
    try:
        if sock.getsockname() == sock.getpeername():
            # Linux can connect a socket to itself where no process listens on a port from the range
            # of outgoing connections.
            raise ConnectionRefusedError("no process listens there yet")
        sock.settimeout(max(0.01, deadline - time.monotonic()))
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        auth.prove_to_listener(sock, key, hello)
        return sock
    except BaseException:
        sock.close()
        raise
