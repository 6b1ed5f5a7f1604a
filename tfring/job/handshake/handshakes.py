"""The handshakes of auth.py on all connections that come to one listening socket.

Several run side by side in one thread, each with its own time limit. A process that sends nothing,
or something else, delays nobody.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import random
import selectors
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from tfring.job.handshake import auth
from tfring.job.handshake.errors import AuthError, BootstrapError
from tfring.job.security.mac import Channel

_log = logging.getLogger("tfring")

_HANDSHAKE_SECONDS = 10.0
_MAX_HANDSHAKES = 512
_ACCEPTS_PER_EVENT = 64
# Seconds between warnings about dropped connections. Those in between are counted.
_LOG_SECONDS = 5.0
_LONGEST_WAIT = 3600.0
_NO_DESCRIPTOR = (errno.EMFILE, errno.ENFILE)


class Decision(NamedTuple):
    """Whether a connector that knows the key is admitted; the reason for the log if it is not."""

    verdict: auth.Verdict
    reason: str = ""


ADMITTED = Decision(auth.Verdict.ADMITTED)


@dataclass
class _Pending:
    """A connection whose handshake is not finished."""

    sock: socket.socket
    handshake: auth.ListenerHandshake
    deadline: float
    wanted: int = auth.HELLO_SIZE
    received: bytearray = field(default_factory=bytearray)


class Handshakes:
    """Accepts connections and runs their handshakes.

    Used by one thread, but for interrupt(). Owns the listening socket until close(); the
    connections that step() hands to `admitted` belong to the caller.
    """

    def __init__(
        self,
        sock: socket.socket,
        key: bytes,
        rank: int,
        *,
        name: str = "",
        credential: bytes | None = None,
    ) -> None:
        """Takes over a socket that listens already.

        `name` is what we are, in the log and in errors; "" for the rank. Any process that asks for
        the credential gets it: see security/munge.py.
        """
        self._sock = sock
        self._key = key
        self._rank = rank
        self._name = name or f"rank {rank}"
        self._credential = credential
        self._pending: list[_Pending] = []
        self._selector = selectors.EpollSelector()
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

    def fileno(self) -> int:
        """Returns a descriptor that can be read when step() has something to do."""
        return self._selector.fileno()

    def interrupt(self) -> None:
        """Ends the waiting, now and ever after. Any thread may call it."""
        os.eventfd_write(self._wake, 1)

    def next_deadline(self) -> float | None:
        """Returns the ``time.monotonic()`` at which step() has to be called next, if any."""
        return min((p.deadline for p in self._pending), default=None)

    def step(
        self,
        limit: float,
        decide: Callable[[auth.Hello], Decision],
        admitted: Callable[[auth.Hello, Channel], None],
    ) -> None:
        """Waits for events, and continues the handshakes that they concern.

        It waits until `limit` at most (time.monotonic()). `decide` says whether to admit a
        connector that has proved to know the key. `admitted` gets each connection that is, its
        socket non-blocking.
        """
        now = time.monotonic()
        for late in [p for p in self._pending if p.deadline <= now]:
            self._drop(late, f"no valid answer within {_HANDSHAKE_SECONDS:g} s")
        limit = min([limit, *(p.deadline for p in self._pending)])
        for key, _ in self._selector.select(min(max(0.0, limit - now), _LONGEST_WAIT)):
            if key.fd == self._wake:
                self._interrupted = True
            elif key.data is None:
                self._accept_several()
            else:
                self._continue(key.data, decide, admitted)

    def close(self) -> None:
        """Closes the listening socket and all connections with unfinished handshakes."""
        for pending in list(self._pending):
            self._drop(pending, "")
        if self._dropped:
            self._log_drops("nobody is waited for any more", time.monotonic())
        self._selector.close()
        self._sock.close()
        os.close(self._wake)

    def listening_socket(self) -> socket.socket:
        """Returns a duplicate of the listening socket, which goes on listening after close()."""
        return self._sock.dup()

    def _accept_several(self) -> None:
        for _ in range(_ACCEPTS_PER_EVENT):
            try:
                sock, _ = self._sock.accept()
            except OSError as error:
                if error.errno in _NO_DESCRIPTOR:
                    self._free_descriptors(error)
                return  # none is left, or the other end has closed it already
            if len(self._pending) >= _MAX_HANDSHAKES:
                # At random, so that nobody can choose who is dropped.
                self._drop(random.choice(self._pending), "too many handshakes at once")
            sock.setblocking(False)
            handshake = auth.ListenerHandshake(self._key, self._rank)
            pending = _Pending(sock, handshake, time.monotonic() + _HANDSHAKE_SECONDS)
            self._pending.append(pending)
            self._selector.register(sock, selectors.EVENT_READ, pending)

    def _free_descriptors(self, error: OSError) -> None:
        """Frees descriptors of unfinished handshakes."""
        if not self._pending:
            self._without_descriptors(error)
            return
        for pending in random.sample(self._pending, (len(self._pending) + 1) // 2):
            self._drop(pending, "no more descriptors (see ulimit -n)")

    def _without_descriptors(self, error: OSError) -> None:
        """Called where a connection waits, and there is no descriptor that could be freed."""
        raise BootstrapError(
            f"{self._name} cannot take any more connections: {error.strerror} (see ulimit -n): "
            "raise the limit, or look for what else the process keeps open"
        ) from None

    def _continue(
        self,
        pending: _Pending,
        decide: Callable[[auth.Hello], Decision],
        admitted: Callable[[auth.Hello, Channel], None],
    ) -> None:
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
            # A rank whose time was up connects again. A port scan needs no warning.
            self._drop(pending, "")
            return
        self._answer(pending, hello, decide(hello), admitted)

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

    def _answer(
        self,
        pending: _Pending,
        hello: auth.Hello,
        decision: Decision,
        admitted: Callable[[auth.Hello, Channel], None],
    ) -> None:
        try:
            pending.sock.send(pending.handshake.verdict(decision.verdict))
        except OSError:
            self._drop(pending, decision.reason)  # it comes again
            return
        if decision.verdict is not auth.Verdict.ADMITTED:
            self._drop(pending, decision.reason)
            return
        self._forget(pending)
        admitted(hello, Channel(pending.sock, pending.handshake.keys()))

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
            "%s dropped %d connection(s) that do not belong to this job: %s",
            self._name,
            self._dropped,
            reason,
        )
        self._dropped, self._logged_at = 0, now

    def _forget(self, pending: _Pending) -> None:
        self._selector.unregister(pending.sock)
        self._pending.remove(pending)
