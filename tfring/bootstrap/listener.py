"""Listening for ranks, with the handshake of auth.py on every connection.

The listener runs the handshakes of several connections side by side in one thread, each with its
own time limit, so that a process which sends nothing, or anything else, delays no rank.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import random
import resource
import selectors
import socket
import time
from dataclasses import dataclass, field

from tfring.bootstrap import auth
from tfring.bootstrap.errors import AuthError, BootstrapError
from tfring.security.seal import Channel

_log = logging.getLogger("tfring")

_HANDSHAKE_SECONDS = 10.0
_MAX_HANDSHAKES = 512
_ACCEPTS_PER_EVENT = 64
# A warning about connections that were dropped at most every so often; the rest are counted.
_LOG_SECONDS = 5.0
_LONGEST_WAIT = 3600.0
_NO_DESCRIPTOR = (errno.EMFILE, errno.ENFILE)

Who = tuple[auth.Role, int]


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

    Used by one thread, but for interrupt(). Owns the listening socket until close(); the
    connections that accept() returns belong to the caller.
    """

    def __init__(
        self, sock: socket.socket, key: bytes, rank: int, *, credential: bytes | None = None
    ) -> None:
        """Takes over a listening socket.

        Args:
            sock: It listens already.
            key: The job's key.
            rank: Our rank.
            credential: What anybody gets who asks for it; see security/munge.py.
        """
        self._sock = sock
        self._key = key
        self._rank = rank
        self._credential = credential
        self._pending: list[_Pending] = []
        self._selector = selectors.DefaultSelector()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._interrupted = False
        self._dropped = 0
        self._logged_at = -_LOG_SECONDS
        sock.setblocking(False)
        self._selector.register(sock, selectors.EVENT_READ, None)
        self._selector.register(self._wake, selectors.EVENT_READ, None)

    @property
    def address(self) -> tuple[str, int]:
        """The address and port that it is bound to."""
        name = self._sock.getsockname()
        return str(name[0]), int(name[1])

    def interrupt(self) -> None:
        """Makes accept() return with what it has, now and ever after. Any thread may call it."""
        os.eventfd_write(self._wake, 1)

    def accept(
        self, expected: set[Who], deadline: float, *, one_is_enough: bool = False
    ) -> dict[Who, Channel]:
        """Waits until all expected connections are there.

        Args:
            expected: Role and rank of each.
            deadline: ``time.monotonic()`` at which to stop waiting.
            one_is_enough: Return as soon as there is one.

        Returns:
            The connections, their sockets non-blocking; fewer than expected if the deadline passed
            or after interrupt().

        Raises:
            BootstrapError: Two processes that know the secret say that they are the same rank; or
                there are not enough descriptors for all connections.
        """
        self._check_limit(len(expected))
        present: dict[Who, Channel] = {}
        enough = 1 if one_is_enough else len(expected)
        try:
            while len(present) < min(enough, len(expected)) and not self._interrupted:
                now = time.monotonic()
                if now >= deadline:
                    break
                self._drop_late(now)
                limit = min([deadline, *(p.deadline for p in self._pending)])
                for key, _ in self._selector.select(max(0.0, min(limit - now, _LONGEST_WAIT))):
                    if key.fd == self._wake:
                        self._interrupted = True
                    elif key.data is None:
                        self._accept_several()
                    else:
                        self._continue(key.data, expected, present)
        except BaseException:
            for channel in present.values():
                channel.sock.close()
            raise
        return present

    def close(self) -> None:
        """Closes the listening socket and all connections with unfinished handshakes."""
        for pending in list(self._pending):
            self._drop(pending, "")
        if self._dropped:
            self._log_drops("the start is over", time.monotonic())
        self._selector.close()
        self._sock.close()
        os.close(self._wake)

    def _accept_several(self) -> None:
        for _ in range(_ACCEPTS_PER_EVENT):
            try:
                sock, _ = self._sock.accept()
            except OSError as error:
                if error.errno in _NO_DESCRIPTOR:
                    self._free_descriptors(error)
                return  # nobody else is there, or the other end has given up already
            if len(self._pending) >= _MAX_HANDSHAKES:
                # At random, so that nobody can choose who is dropped.
                self._drop(random.choice(self._pending), "too many handshakes at once")
            sock.setblocking(False)
            handshake = auth.ListenerHandshake(self._key, self._rank)
            pending = _Pending(sock, handshake, time.monotonic() + _HANDSHAKE_SECONDS)
            self._pending.append(pending)
            self._selector.register(sock, selectors.EVENT_READ, pending)

    def _check_limit(self, connections: int) -> None:
        """Raises BootstrapError if the limit does not allow so many connections."""
        soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        free = soft - len(os.listdir("/proc/self/fd"))
        if soft != resource.RLIM_INFINITY and free < connections:
            raise BootstrapError(
                f"rank {self._rank} needs {connections} more connections, and its limit of {soft} "
                f"descriptors leaves {max(0, free)}: raise the hard limit (ulimit -Hn)"
            )

    def _free_descriptors(self, error: OSError) -> None:
        """Frees descriptors of unfinished handshakes; an error where there are none."""
        if not self._pending:
            raise BootstrapError(
                f"rank {self._rank} cannot take any more connections: {error.strerror} "
                "(see ulimit -n): raise the limit, or look for what else the process keeps open"
            ) from None
        for pending in random.sample(self._pending, (len(self._pending) + 1) // 2):
            self._drop(pending, "no more descriptors (see ulimit -n)")

    def _continue(self, pending: _Pending, expected: set[Who], present: dict[Who, Channel]) -> None:
        if pending.sock.fileno() < 0:
            return  # dropped while earlier events of the same select() were handled
        try:
            chunk = pending.sock.recv(pending.wanted - len(pending.received))
            if not chunk:
                raise ConnectionResetError
            pending.received += chunk
            if len(pending.received) < pending.wanted:
                return
            message = bytes(pending.received)
            pending.received.clear()
            if pending.handshake.claim is None:
                self._challenge(pending, message)
                return
            hello = pending.handshake.finish(message)
        except (BlockingIOError, InterruptedError):
            return
        except AuthError as error:
            if pending.handshake.claim is not None:
                with contextlib.suppress(OSError):
                    pending.sock.send(auth.WRONG_SECRET_ANSWER)
            self._drop(pending, str(error))
            return
        except OSError:
            # A rank whose patience ended comes again, and who only looks for open ports is no news.
            self._drop(pending, "")
            return
        self._admit(pending, (hello.role, hello.connector), expected, present)

    def _challenge(self, pending: _Pending, message: bytes) -> None:
        challenge = pending.handshake.challenge(message)
        assert pending.handshake.claim is not None
        if pending.handshake.claim.role is auth.Role.MUNGE:
            pending.sock.send(self._credential or b"")
            self._drop(pending, "")
            return
        # So few bytes always fit into the send buffer of a new connection.
        pending.sock.send(challenge)
        pending.wanted = auth.PROOF_SIZE

    def _admit(
        self, pending: _Pending, who: Who, expected: set[Who], present: dict[Who, Channel]
    ) -> None:
        if who in present and _is_closed(present[who].sock):
            present.pop(who).sock.close()  # it did not get our answer and tries again
        if who in present:
            self._refuse(pending, auth.Verdict.REFUSED, "")
            raise BootstrapError(
                f"two processes say that they are rank {who[1]} of this job: check the variables "
                "that set the rank, and that no process of an earlier run still runs"
            )
        if who not in expected and who[0] is auth.Role.RENDEZVOUS:
            self._refuse(pending, auth.Verdict.LATER, "")
        elif who not in expected:
            reason = f"no {who[0].name.lower()} connection of rank {who[1]} is expected"
            self._refuse(pending, auth.Verdict.REFUSED, reason)
        else:
            try:
                pending.sock.send(pending.handshake.verdict(auth.Verdict.ADMITTED))
            except OSError:
                self._drop(pending, "")  # it comes again
                return
            self._forget(pending)
            present[who] = Channel(pending.sock, pending.handshake.keys())

    def _refuse(self, pending: _Pending, verdict: auth.Verdict, reason: str) -> None:
        with contextlib.suppress(OSError):
            pending.sock.send(pending.handshake.verdict(verdict))
        self._drop(pending, reason)

    def _drop_late(self, now: float) -> None:
        for pending in [p for p in self._pending if p.deadline <= now]:
            self._drop(pending, f"no valid answer within {_HANDSHAKE_SECONDS:g} s")

    def _drop(self, pending: _Pending, reason: str) -> None:
        if pending.sock.fileno() < 0:
            return
        self._forget(pending)
        pending.sock.close()
        if not reason:
            return
        self._dropped += 1
        now = time.monotonic()
        if now - self._logged_at >= _LOG_SECONDS:
            self._log_drops(reason, now)

    def _log_drops(self, reason: str, now: float) -> None:
        _log.warning(
            "rank %d: dropped %d connection(s) that are none of this job's: %s",
            self._rank,
            self._dropped,
            reason,
        )
        self._dropped, self._logged_at = 0, now

    def _forget(self, pending: _Pending) -> None:
        self._selector.unregister(pending.sock)
        self._pending.remove(pending)


def _is_closed(sock: socket.socket) -> bool:
    try:
        return not sock.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return False
    except OSError:
        return True


def bind(address: str, port: int, backlog: int) -> socket.socket:
    """Returns a listening socket, closed on exec.

    Args:
        address: Name or address of a local interface; "" for all of them.
        port: The port; 0 takes a free one.
        backlog: Number of connections that may wait to be accepted.

    Raises:
        OSError: The address is not of this host, or the port is taken.
    """
    if not address:
        both = socket.has_dualstack_ipv6()
        any_family = socket.AF_INET6 if both else socket.AF_INET
        return socket.create_server(
            ("", port), family=any_family, backlog=backlog, dualstack_ipv6=both
        )
    error: OSError = OSError(f"{address} has no address")
    for family, kind, protocol, _, where in resolve(address, port):
        sock = socket.socket(family, kind, protocol)
        try:
            # A later init binds the same port while connections of the first are in TIME_WAIT.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind(where)
            sock.listen(backlog)
            return sock
        except OSError as failure:
            sock.close()
            error = failure
    raise error


def resolve(address: str, port: int) -> list[tuple[int, int, int, str, tuple[object, ...]]]:
    """Returns the addresses of a name as socket.getaddrinfo does, IPv4 first.

    So all ranks try the addresses of "localhost" in the same order.

    Args:
        address: Name or address.
        port: The port.

    Raises:
        OSError: The name has no address, or not yet.
    """
    found = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)
    ordered = sorted(found, key=lambda entry: entry[0] != socket.AF_INET)
    return [(int(f), int(k), p, name, tuple(where)) for f, k, p, name, where in ordered]
