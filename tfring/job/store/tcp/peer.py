"""The server's end of one connection: its requests, answers, waits and watches."""

from __future__ import annotations

import contextlib
import selectors
from collections import deque
from collections.abc import Iterator

from tfring.job.handshake.keepalive import keep_alive
from tfring.job.security.mac import Channel
from tfring.job.store.table import Change, Limits
from tfring.job.store.tcp.messages import Answer, Kind, Request, longest_message
from tfring.job.store.watch import Newest

_READ_BYTES = 1 << 16
# Bytes that are made ready at once. The rest waits as answers, which share the store's values.
_SEND_BYTES = 1 << 16
# The server stops reading from a client that has more answers to take.
_MOST_ANSWERS = 256
# Of the answers that are remembered for one client.
_MOST_REMEMBERED = 1024
_MOST_BYTES = 64 << 20


class Session:
    """One client, from its first connection until it says goodbye or its lease has passed."""

    def __init__(self, name: bytes, lease: float) -> None:
        self.name = name
        self.lease = lease
        self.ends_at: float | None = None  # by time.monotonic(); None while it is connected
        self._answers: dict[int, Answer] = {}

    def remembered(self, request: Request) -> Answer | None:
        """Returns the answer to a request that came before; forgets those that nobody needs."""
        for number in [number for number in self._answers if number < request.oldest]:
            del self._answers[number]
        return self._answers.get(request.number)

    def remember(self, answer: Answer) -> None:
        """Keeps the answer to a request that changes something, should it come again.

        ValueError: there are more than a client can wait for.
        """
        self._answers[answer.number] = answer
        size = sum(len(field) for kept in self._answers.values() for field in kept.fields)
        if len(self._answers) > _MOST_REMEMBERED or size > _MOST_BYTES:
            raise ValueError("it waits for too many answers")


class Waiting:
    """A GET or WAIT whose keys do not all exist yet."""

    def __init__(self, peer: Peer, request: Request, keys: list[str]) -> None:
        self.peer = peer
        self.request = request
        self.keys = keys
        self.missing: set[str] = set()


class PeerWatch:
    """What a client watches, and what it has yet to be told."""

    def __init__(self, prefix: str, state: list[Change], revision: int) -> None:
        self._prefix = prefix
        self._state = deque(state)
        self._revision = revision
        self._synced = False
        self._newest = Newest()

    def matches(self, key: str) -> bool:
        """Whether the watch is about a key."""
        return key.startswith(self._prefix)

    def put(self, change: Change) -> None:
        """Adds a change."""
        self._newest.put(change)

    def take(self, number: int) -> Answer | None:
        """Returns the next answer for the client, if there is one."""
        if self._state or (self._synced and self._newest):
            change = self._state.popleft() if self._state else self._newest.take()
            value = () if change.value is None else (change.value,)
            fields = (change.key.encode(), b"%d" % change.revision, *value)
            return Answer(Kind.CHANGED, number, fields)
        if self._synced:
            return None
        self._synced = True
        return Answer(Kind.SYNCED, number, (b"%d" % self._revision,))


class Peer:
    """One connection. Never blocks, and holds a bounded amount for a client that does not read."""

    def __init__(self, channel: Channel, limits: Limits, deadline: float) -> None:
        """Takes over a connection after the handshake, its socket non-blocking.

        It has to open a session by the deadline (time.monotonic()).
        """
        self.sock = channel.sock
        self.session: Session | None = None
        self.deadline = deadline
        self.events = selectors.EVENT_READ  # that the server waits for
        self.waiting: dict[int, Waiting] = {}
        self.watches: dict[int, PeerWatch] = {}
        self._channel = channel
        self._arriving = channel.arriving(longest_message(limits))
        self._messages: Iterator[bytes] = iter(())
        self._used_up = True
        self._answers: deque[Answer] = deque()
        self._ready = memoryview(b"")
        with contextlib.suppress(OSError):  # it may be closed already, which read() will tell
            keep_alive(self.sock)

    @property
    def takes_requests(self) -> bool:
        """Whether the client takes its answers fast enough to be read from."""
        return len(self._answers) < _MOST_ANSWERS

    @property
    def wants_read(self) -> bool:
        """Whether to wait until the socket can be read."""
        return self._used_up and self.takes_requests

    @property
    def wants_write(self) -> bool:
        """Whether to wait until the socket can be written."""
        return bool(self._ready)

    def read(self) -> None:
        """Reads what is there; OSError if the connection is lost."""
        if not self.wants_read:
            return
        with contextlib.suppress(BlockingIOError, InterruptedError):
            data = self.sock.recv(_READ_BYTES)
            if not data:
                raise ConnectionResetError
            self._messages = self._arriving.feed(data)
            self._used_up = False

    def requests(self) -> Iterator[Request]:
        """Returns the requests that were read, while the client takes its answers.

        IntegrityError: it was not the client that sent this. ValueError: it is no request.
        """
        while self.takes_requests:
            message = next(self._messages, None)
            if message is None:
                self._used_up = True
                return
            yield Request.decode(message)

    def answer(self, answer: Answer) -> None:
        """Puts an answer into the queue."""
        self._answers.append(answer)

    def write(self) -> None:
        """Sends what the socket takes now; OSError if the connection is lost."""
        with contextlib.suppress(BlockingIOError, InterruptedError):
            while self._ready or self._make_ready():
                self._ready = self._ready[self.sock.send(self._ready) :]

    def _make_ready(self) -> bool:
        """Makes bytes of some answers, and of changes when there are no more; whether any."""
        data = bytearray()
        while self._answers and len(data) < _SEND_BYTES:
            data += self._channel.framed(self._answers.popleft().encode())
        for number, watch in self.watches.items():
            while len(data) < _SEND_BYTES and (answer := watch.take(number)) is not None:
                data += self._channel.framed(answer.encode())
        self._ready = memoryview(bytes(data))
        return bool(data)
