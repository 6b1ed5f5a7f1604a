"""The requests of a TCPStore's client that have no answer yet."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from tfring.job.store.errors import StoreConnectionError, StoreError
from tfring.job.store.table import Change
from tfring.job.store.tcp.messages import CHANGING, Answer, Kind, Op, Request, number
from tfring.job.store.watch import Watch


class Call:
    """One request, until its answer is there. Only `done` may be used without the lock of Calls."""

    def __init__(self, op: Op, number: int, fields: tuple[bytes, ...]) -> None:
        self.op, self.number, self.fields = op, number, fields
        self.sent = False
        self.given_up = False
        self.answer: Answer | None = None
        self.error: StoreError | None = None
        self.done = threading.Event()


class _Watched(NamedTuple):
    watch: Watch
    fields: tuple[bytes, ...]
    # Keys that were told of since the watch began on this connection; cleared when all were.
    names: set[str]


class Calls:
    """The requests of one client: numbered, queued, matched with answers. Thread-safe."""

    def __init__(self, wake: Callable[[], None]) -> None:
        """Makes an empty list. `wake` wakes the sending thread; it is not called after the end."""
        self._wake = wake
        self._lock = threading.Lock()  # guards all below
        self._next = 1
        self._open: dict[int, Call] = {}
        self._queue: deque[Call] = deque()
        self._watched: dict[int, _Watched] = {}
        self._end: StoreError | None = None

    def add(self, op: Op, fields: tuple[bytes, ...], watch: Watch | None = None) -> Call:
        """Puts a request into the queue; the watch of a WATCH gets the changes that follow.

        StoreError: there will be no connection any more.
        """
        with self._lock:
            if self._end is not None:
                raise self._end
            call = Call(op, self._next, fields)
            self._next += 1
            self._open[call.number] = call
            self._queue.append(call)
            if watch is not None:
                self._watched[call.number] = _Watched(watch, fields, set())
            self._wake()
        return call

    def give_up(self, call: Call) -> bool:
        """Ends a request whose time is up; returns whether its answer came at the last moment."""
        with self._lock:
            if call.number not in self._open:
                return True
            del self._open[call.number]
            call.given_up = True
            self._watched.pop(call.number, None)
            if call.sent and call.op in (Op.GET, Op.WAIT):
                self._tell(Op.CANCEL, call.number)
        return False

    def end_watch(self, watch: Watch) -> None:
        """Ends what a WATCH began."""
        with self._lock:
            for key in [key for key, entry in self._watched.items() if entry.watch is watch]:
                del self._watched[key]
                self._tell(Op.UNWATCH, key)

    def is_waiting(self) -> bool:
        """Whether a call waits for an answer."""
        with self._lock:
            return bool(self._open)

    def is_queued(self) -> bool:
        """Whether there is something to send."""
        with self._lock:
            return bool(self._queue)

    def next_request(self) -> Request | None:
        """Returns the next request to send, if there is one; it counts as sent."""
        with self._lock:
            while self._queue:
                call = self._queue.popleft()
                if not call.given_up:
                    call.sent = True
                    return Request(call.op, call.number, self._oldest(), call.fields)
            return None

    def take(self, answer: Answer) -> None:
        """Hands an answer to the call or the watch that it belongs to; ValueError if it is none."""
        with self._lock:
            watched = self._watched.get(answer.number)
            if answer.kind is Kind.CHANGED:
                if watched is not None:
                    key, revision, *value = answer.fields
                    name = key.decode()
                    watched.names.add(name)
                    change = Change(name, value[0] if value else None, number(revision))
                    watched.watch.put(change)
            elif answer.kind is Kind.SYNCED:
                if watched is not None:
                    watched.watch.retain(watched.names, number(answer.fields[0]))
                    watched.names.clear()
            elif answer.number in self._open:
                call = self._open.pop(answer.number)
                call.answer = answer
                call.done.set()

    def send_again(self, known: bool, where: str) -> None:
        """Queues requests without an answer, and watches, for a new connection.

        If the server still knows this client, nothing can happen twice.
        """
        with self._lock:
            for call in list(self._open.values()):
                if call.sent and call.op in CHANGING and not known:
                    del self._open[call.number]
                    call.error = StoreConnectionError(
                        f"{where}: the connection was lost for longer than this client's lease, "
                        f"and it is not known whether the last {call.op.name} has happened: "
                        "look at the value"
                    )
                    call.done.set()
            self._queue = deque(self._open.values())
            for key, entry in self._watched.items():
                entry.names.clear()
                if key not in self._open:
                    self._queue.append(Call(Op.WATCH, key, entry.fields))

    def fail(self, error: StoreError, *, final: bool) -> None:
        """Ends all requests and watches with an error; if it is final, later requests, too."""
        with self._lock:
            if final:
                self._end = self._end or error
            for call in self._open.values():
                call.error = error
                call.done.set()
            watches = [entry.watch for entry in self._watched.values()]
            self._open.clear()
            self._queue.clear()
            self._watched.clear()
        for watch in watches:
            watch.fail(error)

    def _tell(self, op: Op, about: int) -> None:
        """Queues a request for whose answer nobody waits."""
        if self._end is None:
            self._queue.append(Call(op, self._next, (b"%d" % about,)))
            self._next += 1
            self._wake()

    def _oldest(self) -> int:
        return min(self._open, default=self._next)
