"""A listening socket that lets in only those who prove to belong to the job.

Handshakes run side by side in one thread, each with its own time limit, so that a silent
or babbling stranger keeps nobody waiting.
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

# What a rank hears that came to the meeting of a job that it is not part of.
COME_AGAIN = {"again": True}

_HANDSHAKE_SECONDS = 10.0
_MAX_STRANGERS = 256


@dataclass
class _Guest:
    sock: socket.socket
    handshake: auth.ListenerHandshake
    deadline: float
    wanted: int = auth.HELLO_SIZE
    received: bytearray = field(default_factory=bytearray)


class Listener:
    """Accepts connections of one job.

    Used by one thread; owns its socket until close(). Connections that were handed out belong to
    the caller.
    """

    def __init__(self, sock: socket.socket, key: bytes, rank: int) -> None:
        self._sock = sock
        self._key = key
        self._rank = rank
        self._guests: list[_Guest] = []
        self._selector = selectors.DefaultSelector()
        sock.setblocking(False)
        self._selector.register(sock, selectors.EVENT_READ, None)

    @property
    def address(self) -> tuple[str, int]:
        """Address and port that it is bound to."""
        name = self._sock.getsockname()
        return str(name[0]), int(name[1])

    def accept(
        self, expected: set[tuple[auth.Role, int]], deadline: float
    ) -> dict[tuple[auth.Role, int], socket.socket]:
        """Waits until everybody who is expected is there.

        Args:
            expected: Role and rank of those who are to come.
            deadline: ``time.monotonic()`` at which to stop waiting.

        Returns:
            The connections, non-blocking; fewer than expected when time was up.

        Raises:
            BootstrapError: Two processes that know the secret claim the same rank.
        """
        present: dict[tuple[auth.Role, int], socket.socket] = {}
        try:
            while len(present) < len(expected):
                now = time.monotonic()
                if now >= deadline:
                    break
                self._drop_late(now)
                limit = min([deadline, *(g.deadline for g in self._guests)])
                for key, _ in self._selector.select(max(0.0, limit - now)):
                    if key.data is None:
                        self._welcome()
                    else:
                        self._serve(key.data, expected, present)
        except BaseException:
            for sock in present.values():
                sock.close()
            raise
        return present

    def close(self) -> None:
        """Closes the listening socket and every connection that has not proven itself."""
        for guest in list(self._guests):
            self._send_away(guest)
        self._selector.close()
        self._sock.close()

    def _welcome(self) -> None:
        try:
            sock, _ = self._sock.accept()
        except OSError:
            return  # gone again already
        if len(self._guests) >= _MAX_STRANGERS:
            self._drop(self._guests[0], "too many strangers at once")
        sock.setblocking(False)
        handshake = auth.ListenerHandshake(self._key, self._rank)
        guest = _Guest(sock, handshake, time.monotonic() + _HANDSHAKE_SECONDS)
        self._guests.append(guest)
        self._selector.register(sock, selectors.EVENT_READ, guest)

    def _serve(
        self,
        guest: _Guest,
        expected: set[tuple[auth.Role, int]],
        present: dict[tuple[auth.Role, int], socket.socket],
    ) -> None:
        if guest.sock.fileno() < 0:
            return  # dropped while earlier events of the same batch were served
        try:
            chunk = guest.sock.recv(guest.wanted - len(guest.received))
            if not chunk:
                raise AuthError("what connected hung up")
            guest.received += chunk
            if len(guest.received) < guest.wanted:
                return
            message = bytes(guest.received)
            guest.received.clear()
            if guest.handshake.claim is None:
                # 64 bytes always fit into the buffer of a fresh connection.
                guest.sock.send(guest.handshake.challenge(message))
                guest.wanted = auth.PROOF_SIZE
                return
            hello = guest.handshake.finish(message)
        except (BlockingIOError, InterruptedError):
            return
        except (AuthError, OSError) as error:
            self._drop(guest, str(error))
            return
        self._admit(guest, (hello.role, hello.connector), expected, present)

    def _admit(
        self,
        guest: _Guest,
        who: tuple[auth.Role, int],
        expected: set[tuple[auth.Role, int]],
        present: dict[tuple[auth.Role, int], socket.socket],
    ) -> None:
        if who in present:
            self._drop(guest, "")
            raise BootstrapError(
                f"two processes say that they are rank {who[1]} of this job: check the variables "
                "that give the rank, and that no process of an earlier run is left over"
            )
        if who not in expected and who[0] is auth.Role.RENDEZVOUS:
            self._send_away(guest)
            return
        if who not in expected:
            self._drop(guest, f"nobody expects rank {who[1]} as {who[0].name.lower()} here")
            return
        self._forget(guest)
        present[who] = guest.sock

    def _send_away(self, guest: _Guest) -> None:
        """Drops a guest that is early for another job and may take itself for admitted."""
        claim = guest.handshake.claim
        if claim is not None and claim.role is auth.Role.RENDEZVOUS:
            # That fits into the buffer of a fresh connection.
            with contextlib.suppress(OSError):
                frames.send_frame(guest.sock, frames.encode(COME_AGAIN))
        self._drop(guest, "")

    def _drop_late(self, now: float) -> None:
        for guest in [g for g in self._guests if g.deadline <= now]:
            self._drop(guest, "silent for too long")

    def _drop(self, guest: _Guest, reason: str) -> None:
        if reason:
            _log.warning("rank %d refused a connection: %s", self._rank, reason)
        self._forget(guest)
        guest.sock.close()

    def _forget(self, guest: _Guest) -> None:
        self._guests.remove(guest)
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(guest.sock)


def bind(address: str, port: int, backlog: int) -> socket.socket:
    """A listening socket on exactly one address (close-on-exec, as Python's sockets are).

    Args:
        address: Name or address of a local interface.
        port: The port; 0 takes a free one.
        backlog: Connections that may wait for being accepted.

    Raises:
        OSError: The address is not ours, or the port is taken.
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
    # IPv4 first, so that everybody tries the addresses of "localhost" in the same order.
    ordered = sorted(found, key=lambda entry: entry[0] != socket.AF_INET)
    return [(int(f), int(k), p, name, tuple(where)) for f, k, p, name, where in ordered]


def connect(
    address: str, port: int, key: bytes, hello: auth.Hello, deadline: float
) -> socket.socket:
    """Connects to a rank and proves who we are, again and again until the deadline.

    Args:
        address: Where the rank listens.
        port: The port for it.
        key: The job's key.
        hello: Who we are, whom we want and what for.
        deadline: ``time.monotonic()`` at which to give up.

    Returns:
        The connection, blocking, with the time left as its limit.

    Raises:
        AuthError: Whoever listens there does not know the secret.
        BootstrapError: Nobody could be reached; the message has the last reason.
    """
    pause = 0.01
    reason: Exception = TimeoutError("no time was left")
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
    # A lost SYN must not use up all the time: short attempts, many of them.
    left = max(0.01, deadline - time.monotonic())
    sock = socket.create_connection(where, timeout=min(5.0, left))
    try:
        if sock.getsockname() == sock.getpeername():
            # Linux does that now and then when nobody listens on a port of the outgoing range.
            raise ConnectionRefusedError("nobody listens there yet")
        sock.settimeout(max(0.01, deadline - time.monotonic()))
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        auth.prove_to_listener(sock, key, hello)
        return sock
    except BaseException:
        sock.close()
        raise
