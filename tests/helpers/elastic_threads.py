"""A coordinator and the links of workers as threads of one process, over a real TCPStore."""

from __future__ import annotations

import contextlib
import threading

from store_tools import Wire

from tfring.elastic.link import WorkerLink
from tfring.elastic.records import Position
from tfring.elastic.service import CoordinatorService
from tfring.job.store import TCPStore
from tfring.runtime._native import core

SECRET = "5e" * 32
LIMIT = 60.0  # seconds; far more than needed
SECOND = 1_000_000_000


def coordinator_options(**values):
    """CoordinatorOptions with these values, times in nanoseconds; hosts never cool down."""
    options = core.membership.CoordinatorOptions()
    options.hosts.failures = 1 << 30
    for name, value in values.items():
        setattr(options, name, value)
    return options


class Links:
    """A job whose workers were not started by it: they report by themselves."""

    def __init__(self, **options):
        self.notes, self.ends, self.abandoned = [], [], []
        self._said = threading.Condition()  # guards all above
        self._stack = contextlib.ExitStack()
        self.server = self._stack.enter_context(
            TCPStore("localhost", 0, is_master=True, secret=SECRET, timeout=LIMIT)
        )
        self.service = CoordinatorService(
            self.server,
            coordinator_options(**options),
            on_start=lambda *start: self._hear(self.notes, f"start {start}"),
            on_kill=lambda worker: self._hear(self.notes, f"kill {worker}"),
            on_note=lambda note: self._hear(self.notes, note),
            on_end=lambda *end: self._hear(self.ends, end),
        )
        self._stack.callback(self.service.close)

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        if exc[0] is not None:
            print(*self.notes, self.ends, self.abandoned, self.service.record, sep="\n")
        self._stack.close()

    def wire(self):
        """A relay to the store that can be cut."""
        return self._stack.enter_context(Wire(self.server.port))

    def client(self, port=None, **more):
        """Makes one more client of the store."""
        port = port or self.server.port
        store = TCPStore("localhost", port, secret=SECRET, timeout=LIMIT, **more)
        return self._stack.enter_context(store)

    def link(self, worker, store=None, host="a", options=None):
        """A worker's link."""
        store = store or self.client()
        link = WorkerLink(
            store,
            worker,
            host,
            worker,
            on_abandon=lambda generation: self._hear(self.abandoned, (worker, generation)),
            options=options,
        )
        self._stack.callback(link.close)
        return link

    def train(self, links):
        """Brings the next generation of the links to training; returns its record."""
        records = [link.next_record() for link in links]
        assert all(record == records[0] for record in records)
        number = records[0].generation
        for link in links:
            link.connected(number)
        for link in links:
            link.wait_go(number)
            link.synced(number, records[0].position)
        self.wait(lambda: all(link.may_publish() for link in links))
        return records[0]

    def stop(self, links, generation, commit=0, **why):
        """Reports on every link that training has stopped."""
        for link in links:
            link.stopped(generation, Position(commit, commit), **why)

    def wait(self, what):
        """Waits until what() is true."""
        with self._said:
            for _ in range(int(LIMIT / 0.02)):
                if found := what():
                    return found
                self._said.wait(0.02)
        raise AssertionError("waited for too long")

    def _hear(self, into, what):
        with self._said:
            into.append(what)
            self._said.notify_all()
