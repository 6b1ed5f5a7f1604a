"""A client's connection to the server of a TCPStore, which comes back when it breaks."""

from __future__ import annotations

import contextlib
import os
import secrets
import selectors
import threading
import time
from collections.abc import Sequence
from typing import NamedTuple

from tfring.job.handshake.auth import Hello, Role
from tfring.job.handshake.connector import connect_once
from tfring.job.handshake.errors import AuthError, BootstrapError
from tfring.job.handshake.keepalive import keep_alive
from tfring.job.security.errors import IntegrityError
from tfring.job.security.mac import Channel
from tfring.job.store.errors import (
    StoreAuthError,
    StoreConnectionError,
    StoreError,
    StoreLimitError,
    StoreTimeoutError,
    StoreValueError,
)
from tfring.job.store.table import Limits
from tfring.job.store.tcp.calls import Call, Calls
from tfring.job.store.tcp.messages import Answer, Kind, Op, Request, longest_message
from tfring.job.store.watch import Watch

_READ_BYTES = 1 << 18
_SEND_BYTES = 1 << 16
_MOST_CALLS = 256
_MOST_AT_ONCE = 256  # a server takes up to 1024 requests that wait
# While a call waits for an answer: when to ping a silent server, and when to regard the connection
# as broken.
_PING_SECONDS = 2.0
_SILENT_SECONDS = 15.0
# How long one attempt to connect may take, before it is looked whether the store was closed.
_ATTEMPT_SECONDS = 2.0
_PAUSE_SECONDS = 0.05
# A process with another secret at the server's address may be about to end.
_WRONG_SECRET_SECONDS = 5.0
_GOODBYE_SECONDS = 5.0
_BROKEN = (OSError, IntegrityError, ValueError)


class Server(NamedTuple):
    """Where a server is, and how to talk to it."""

    host: str  # its name or address
    port: int  # its port
    key: bytes  # what both ends prove to know
    # Seconds for which the server keeps what belongs to this client without a connection.
    lease: float
    lost_after: float  # seconds after which a server that cannot be reached any more is given up
    hello: Hello = Hello(Role.STORE, 0, 0)  # both ends, and the purpose of the connection
    # Whether to stay with a server that was started again, although it has lost its keys.
    may_restart: bool = False

    def describe(self) -> str:
        """Returns what it is, for messages."""
        return f"the TCPStore at {self.host} port {self.port}"


class Connection:
    """Sends requests over one connection, from any thread; a thread of its own keeps it alive.

    When the connection breaks, it is made again, and what has no answer yet is sent again: the
    server knows what has happened already.
    """

    def __init__(
        self, server: Server, timeout: float, clients: int = 0, *, again: bool = True
    ) -> None:
        """Connects to the server, and waits until `clients` have.

        With `again` it tries until the time is up.

        Raises:
            StoreConnectionError: It could not be reached.
            StoreAuthError: A process listens there that does not know the key.
            StoreTimeoutError: The other clients did not come.
        """
        self._server = server
        self.where = server.describe()  # for messages
        self._session = secrets.token_bytes(16)
        self._instance = b""
        self._pid = os.getpid()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._calls = Calls(lambda: os.eventfd_write(self._wake, 1))
        self._places = threading.BoundedSemaphore(_MOST_CALLS)
        self._closed = False
        self._ends = threading.Lock()  # guards _closed being set, and _wake against its end
        self._connected = True
        try:
            channel = self._first_channel(timeout, clients, again)
        except BaseException:
            os.close(self._wake)
            raise
        self._thread = threading.Thread(
            target=self._run, args=(channel,), name="tfring store client", daemon=True
        )
        self._thread.start()

    def request(
        self, op: Op, fields: tuple[bytes, ...], limit: float, watch: Watch | None = None
    ) -> tuple[bytes, ...] | None:
        """Asks the server for something; returns the fields of the answer, None if the time was up.

        The watch of a WATCH gets the changes that follow. StoreError: the answer is an error, or
        the server is gone.
        """
        return self.request_all(op, [fields], limit, watch)[0]

    def request_all(
        self,
        op: Op,
        several: Sequence[tuple[bytes, ...]],
        limit: float,
        watch: Watch | None = None,
    ) -> list[tuple[bytes, ...] | None]:
        """Asks the server for the same with several fields, without waiting between most of them.

        Returns and raises what `request` does, for each.
        """
        if self._pid != os.getpid():
            raise StoreConnectionError(
                f"{self.where}: this process was forked from the one that connected: "
                "make a store of its own"
            )
        deadline = time.monotonic() + limit
        if not self._places.acquire(timeout=limit):
            return [None] * len(several)
        try:
            answers: list[tuple[bytes, ...] | None] = []
            for begin in range(0, len(several), _MOST_AT_ONCE):
                batch = several[begin : begin + _MOST_AT_ONCE]
                calls = [self._calls.add(op, fields, watch) for fields in batch]
                answers += [self._answer(call, deadline) for call in calls]
            return answers
        finally:
            self._places.release()

    def _answer(self, call: Call, deadline: float) -> tuple[bytes, ...] | None:
        left = max(0.0, deadline - time.monotonic())
        if not call.done.wait(left) and not self._calls.give_up(call):
            return None
        return _result(call, self.where)

    def end_watch(self, watch: Watch) -> None:
        """Ends a watch."""
        if self._pid == os.getpid() and not self._closed:
            self._calls.end_watch(watch)

    def close(self) -> None:
        """Says goodbye and closes the connection; whatever waits gets a StoreConnectionError."""
        if self._pid != os.getpid():
            return
        if self._connected and not self._closed:
            with contextlib.suppress(StoreError):
                self.request(Op.GOODBYE, (), _GOODBYE_SECONDS)
        self.cut()
        if threading.current_thread() is not self._thread:
            self._thread.join()
            with self._ends:
                if self._wake >= 0:
                    os.close(self._wake)
                self._wake = -1

    def cut(self) -> None:
        """Ends what waits as close() does, which is to follow, but waits for nothing itself."""
        with self._ends:
            if self._closed or self._pid != os.getpid():
                return
            self._closed = True
        error = StoreConnectionError(f"{self.where} was closed here: make a new one")
        self._calls.fail(error, final=True)
        with self._ends:
            if self._wake >= 0:
                os.eventfd_write(self._wake, 1)

    # All below runs in the thread, but for the first connection.

    def _run(self, first: Channel) -> None:
        channel: Channel | None = first
        while not self._closed:
            if channel is None:  # the server was given up; the next request tries again
                self._wait_for_request()
                reason: Exception = ConnectionError("it was lost before")
            else:
                reason = self._serve(channel)
                channel.sock.close()
            self._connected = False
            channel = None if self._closed else self._connect_again(reason)
            self._connected = channel is not None
        if channel is not None:
            channel.sock.close()

    def _wait_for_request(self) -> None:
        with selectors.PollSelector() as selector:
            selector.register(self._wake, selectors.EVENT_READ)
            while not self._closed and not self._calls.is_queued():
                selector.select()
                self._forget_wake()

    def _forget_wake(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._wake)

    def _serve(self, channel: Channel) -> Exception:
        """Sends and receives until the connection breaks or the store is closed; returns why."""
        try:
            with selectors.EpollSelector() as selector:
                selector.register(channel.sock, selectors.EVENT_READ)
                selector.register(self._wake, selectors.EVENT_READ)
                self._exchange(channel, selector)
        except _BROKEN as error:
            return error
        return ConnectionError("it was closed")

    def _exchange(self, channel: Channel, selector: selectors.EpollSelector) -> None:
        arriving = channel.arriving(longest_message(Limits()))
        ready = memoryview(b"")
        heard = pinged = time.monotonic()
        was_waiting = wants_write = False
        while not self._closed:
            waiting, now = self._calls.is_waiting(), time.monotonic()
            if waiting and not was_waiting:
                heard = now
            was_waiting = waiting
            if waiting and now - heard > _SILENT_SECONDS:
                raise TimeoutError(f"the server has said nothing for {now - heard:.0f} s")
            ping = waiting and now - max(heard, pinged) > _PING_SECONDS
            if ping:
                pinged = now
            ready = self._send(channel, ready, ping)
            if wants_write != bool(ready):
                wants_write = bool(ready)
                write = selectors.EVENT_WRITE if ready else 0
                selector.modify(channel.sock, selectors.EVENT_READ | write)
            for key, events in selector.select(_PING_SECONDS if waiting else None):
                if key.fd == self._wake:
                    self._forget_wake()
                elif events & selectors.EVENT_READ:
                    data = channel.sock.recv(_READ_BYTES)
                    if not data:
                        raise ConnectionResetError("the server closed the connection")
                    heard = time.monotonic()
                    for message in arriving.feed(data):
                        self._calls.take(Answer.decode(message))

    def _send(self, channel: Channel, ready: memoryview, ping: bool) -> memoryview:
        """Sends what the socket takes; returns what is left of what was made ready."""
        if ping:
            ready = memoryview(bytes(ready) + channel.framed(Request(Op.PING, 0, 0).encode()))
        while True:
            if not ready:
                data = bytearray()
                while len(data) < _SEND_BYTES and (request := self._calls.next_request()):
                    data += channel.framed(request.encode())
                ready = memoryview(bytes(data))
            if not ready:
                return ready
            try:
                ready = ready[channel.sock.send(ready) :]
            except (BlockingIOError, InterruptedError):
                return ready

    # Connecting.

    def _first_channel(self, timeout: float, clients: int, again: bool) -> Channel:
        deadline = time.monotonic() + timeout
        wrong_since: float | None = None
        while True:
            try:
                return self._open(deadline, clients)[0]
            except AuthError as error:
                wrong_since = wrong_since or time.monotonic()
                until = min(deadline, wrong_since + _WRONG_SECRET_SECONDS)
                if not again or time.monotonic() >= until:
                    raise StoreAuthError(f"{self.where}: {error}") from None
                time.sleep(_PAUSE_SECONDS)
            except (BootstrapError, *_BROKEN) as error:
                if again and time.monotonic() < deadline:
                    time.sleep(_PAUSE_SECONDS)
                    continue
                if clients and isinstance(error, TimeoutError):
                    raise StoreTimeoutError(
                        f"{self.where} waited {round(timeout, 2):g} s for {clients} clients, "
                        "and they did not all come: look at the output of the others"
                    ) from None
                raise StoreConnectionError(
                    f"{self.where} could not be reached within {round(timeout, 2):g} s "
                    f"({error}): check that its server runs, and that this host can reach it"
                ) from None

    def _connect_again(self, reason: Exception) -> Channel | None:
        """Returns a new connection; None after it has failed all requests for lack of one."""
        deadline = time.monotonic() + self._server.lost_after
        last: Exception = reason
        while not self._closed:
            before = self._instance
            try:
                channel, known = self._open(deadline)
            except (BootstrapError, *_BROKEN) as error:
                last = error
            else:
                if self._instance != before:
                    why = "another server is there, which has nothing of what the first had"
                    self._fail(why, not self._server.may_restart)
                if self._instance == before or self._server.may_restart:
                    self._calls.send_again(known, self.where)
                    return channel
                channel.sock.close()
                return None
            if time.monotonic() >= deadline:
                self._fail(
                    f"the connection was lost ({reason}) and could not be made again within "
                    f"{self._server.lost_after:g} s ({last})",
                    False,
                )
                return None
            time.sleep(_PAUSE_SECONDS)
        return None

    def _fail(self, why: str, final: bool) -> None:
        self._calls.fail(
            StoreConnectionError(
                f"{self.where}: {why}: the process that ran the server has ended, or "
                "its host is cut off"
            ),
            final=final,
        )

    def _open(self, deadline: float, clients: int = 0) -> tuple[Channel, bool]:
        """Connects and opens the session; returns whether the server knew it already."""
        server = self._server
        soon = min(deadline, time.monotonic() + _ATTEMPT_SECONDS)
        channel = connect_once(server.host, server.port, server.key, server.hello, soon)
        try:
            keep_alive(channel.sock)
            # Where other clients are waited for, the answer may take long.
            until = deadline if clients else soon
            channel.sock.settimeout(max(0.01, until - time.monotonic()))
            lease = b"%d" % round(server.lease * 1000)
            fields = (self._session, lease, b"%d" % clients)
            channel.send(Request(Op.OPEN, 0, 0, fields).encode())
            answer = Answer.decode(channel.receive(1024))
            self._instance, known = answer.fields
            channel.sock.setblocking(False)
        except BaseException:
            channel.sock.close()
            raise
        return channel, bool(known)


# The errors that a server can answer with, by what it calls them.
_ERRORS: dict[str, type[StoreError]] = {
    "StoreLimitError": StoreLimitError,
    "StoreValueError": StoreValueError,
}


def _result(call: Call, where: str) -> tuple[bytes, ...]:
    if call.error is not None:
        raise call.error
    assert call.answer is not None
    if call.answer.kind is not Kind.ERROR:
        return call.answer.fields
    name, text = (field.decode() for field in call.answer.fields)
    raise _ERRORS.get(name, StoreError)(f"{where}: {text}")
