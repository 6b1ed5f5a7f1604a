"""Copies of commits that go to another host: to a worker there that waits to be taken in.

A waiting worker writes its address to the job's store. The rank that sends finds it there,
connects, and sends a commit at a time: a head, the bytes, and then it waits for the answer that
they are kept. Both ends prove to know the job's secret. Every message has a MAC.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import selectors
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from tfring.elastic.commit_memory import CommitMemory, CopyHead
from tfring.job.bootstrap import hosts
from tfring.job.environments.elastic import ElasticWorker
from tfring.job.handshake.auth import Hello, Role
from tfring.job.handshake.connector import connect
from tfring.job.handshake.errors import BootstrapError
from tfring.job.handshake.keepalive import keep_alive
from tfring.job.handshake.listener import bind
from tfring.job.handshake.service import ServiceListener
from tfring.job.security.errors import IntegrityError
from tfring.job.security.mac import Channel
from tfring.job.security.secret import job_key
from tfring.job.store import StoreError, TCPStore
from tfring.runtime.exceptions import described
from tfring.runtime.settings.environment import read_settings

_log = logging.getLogger("tfring")

_PLACES = "copies/"
_BACKLOG = 4
_CONNECT_SECONDS = 2.0
_STORE_SECONDS = 5.0
# Without an answer, or without progress, the other end is given up.
_SILENT_SECONDS = 10.0
# After which to try again to reach a worker.
_AGAIN_SECONDS = 10.0
_MOST_HEAD = 16 << 20
_PIECE_BYTES = 1 << 20
_KEPT = b"kept"
_LOST = (BootstrapError, IntegrityError, OSError, ValueError)


class CopyReceiver:
    """Takes copies into the memory of this host, in a thread, while this worker waits."""

    def __init__(self, worker: ElasticWorker, came: Callable[[CopyHead | None], None]) -> None:
        """Listens, and says so in the store of the job.

        `came` is called in the thread with each copy that is complete; None: it was freed.
        StoreError: the store cannot be reached. OSError: there is no address or port to listen at.
        """
        self._came = came
        self._closing = False
        self._lock = threading.Lock()  # guards the next
        self._channel: Channel | None = None  # of the rank that sends
        self._thread = threading.Thread(target=self._run, name="tfring copies", daemon=True)
        with contextlib.ExitStack() as opened:
            sock = bind(read_settings(os.environ).bind_addr or "", 0, _BACKLOG)
            opened.enter_context(sock)
            self._memory = CommitMemory(worker.memory)
            opened.callback(self._memory.close)
            self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
            opened.callback(os.close, self._wake)
            self._store = TCPStore(worker.store_host, worker.store_port, timeout=_STORE_SECONDS)
            opened.callback(self._store.close)
            self._listener = ServiceListener(
                sock, _key(self._store), worker.worker, name=f"worker {worker.worker}"
            )
            opened.callback(self._listener.close)
            place = json.dumps([worker.host, _own_addresses(), self._listener.address[1]])
            self._store.set(f"{_PLACES}{worker.worker}", place, ephemeral=True)
            self._thread.start()
            opened.pop_all()

    def close(self) -> None:
        """Takes no more, and frees the port; a copy that is on its way does not count."""
        self._closing = True
        os.eventfd_write(self._wake, 1)
        with self._lock:
            if self._channel is not None:
                _cut(self._channel.sock)
        self._thread.join()
        self._store.close()
        self._memory.close()
        os.close(self._wake)

    def _run(self) -> None:
        with contextlib.closing(self._listener), selectors.DefaultSelector() as selector:
            selector.register(self._listener.fileno(), selectors.EVENT_READ)
            selector.register(self._wake, selectors.EVENT_READ)
            while not self._closing:
                due = self._listener.next_deadline()
                selector.select(None if due is None else max(0.0, due - time.monotonic()))
                self._listener.admit(Role.COPY, lambda: self._channel is None, self._admitted)
                if self._channel is not None:
                    self._serve(self._channel)

    def _admitted(self, channel: Channel) -> None:
        with self._lock:
            if self._closing:
                _cut(channel.sock)
            self._channel = channel

    def _serve(self, channel: Channel) -> None:
        keep_alive(channel.sock)
        channel.sock.setblocking(True)
        try:
            while not self._closing:
                self._take(channel)
                channel.send(_KEPT)
        except _LOST as error:
            _log.debug("copies of commits come no more: %s", described(error))
        except Exception as error:  # the head may be of any type; the next sender may do better
            _log.warning("a copy of a commit cannot be taken: %s", described(error))
        with self._lock:
            self._channel = None
        channel.sock.close()

    def _take(self, channel: Channel) -> None:
        numbers, lengths = json.loads(channel.receive(_MOST_HEAD))
        if numbers is None:
            self._memory.clear()
            self._came(None)
            return
        head = CopyHead(*numbers)
        if not self._memory.put(head, lengths, _received(channel, sum(lengths))):
            raise ValueError(
                "another process makes a copy here, or a newer generation has made one"
            )
        self._came(head)


class CopySender:
    """Sends copies to a worker on another host, if one waits there."""

    def __init__(self, worker: ElasticWorker) -> None:
        """Looks for such workers from now on; StoreError if the store cannot be reached."""
        self._worker = worker
        self._store = TCPStore(worker.store_host, worker.store_port, timeout=_STORE_SECONDS)
        self._watch = self._store.watch(_PLACES)
        self._places: dict[int, tuple[list[str], int]] = {}  # of workers on other hosts
        self._later: dict[int, float] = {}  # when to try again those that were not reached
        self._channel: Channel | None = None
        self._keeper = 0  # the worker at its other end
        self._over = False  # the store is gone, and with it the news of who waits

    def send(self, head: CopyHead, lengths: Sequence[int], pieces: Iterable[Any]) -> None:
        """Sends what CommitMemory.put gets, if a worker waits for it, and waits until it has it."""
        if self._over:
            return
        try:
            self._look()
            if self._channel is None and not self._connect():
                return
            assert self._channel is not None
            self._channel.send(json.dumps([head, lengths]).encode())
            for piece in pieces:
                view = memoryview(piece).cast("B")
                for at in range(0, len(view), _PIECE_BYTES):
                    self._channel.send(bytes(view[at : at + _PIECE_BYTES]))
            self._channel.receive(len(_KEPT))
        except StoreError as error:
            _log.info("commits are not copied to other hosts: %s", described(error))
            self._over = True
        except _LOST as error:
            _log.info(
                "worker %d keeps no more copies of commits: %s", self._keeper, described(error)
            )
            self._places.pop(self._keeper, None)
            self._disconnect()

    def close(self, *, free: bool) -> None:
        """Sends no more. With `free` others have the state, and nobody needs the copy any more."""
        if free and self._channel is not None:
            with contextlib.suppress(*_LOST):
                self._channel.send(json.dumps([None, None]).encode())
                self._channel.receive(len(_KEPT))
        self._disconnect()
        self._watch.close()
        self._store.close()

    def _look(self) -> None:
        while (change := self._watch.take()) is not None:
            worker = int(change.key.removeprefix(_PLACES))
            self._places.pop(worker, None)
            self._later.pop(worker, None)
            if change.value is not None:
                host, addresses, port = json.loads(change.value)
                if host != self._worker.host:
                    self._places[worker] = (list(addresses), int(port))

    def _connect(self) -> bool:
        """Connects with the first worker that can be reached; returns whether there is one."""
        for worker in sorted(self._places):
            if time.monotonic() < self._later.get(worker, 0.0):
                continue
            if self._connect_with(worker):
                return True
            if worker not in self._later:
                _log.warning(
                    "worker %d cannot be reached at %s port %d and keeps no copies of commits; "
                    "this is tried again every %g s",
                    worker,
                    ", ".join(self._places[worker][0]),
                    self._places[worker][1],
                    _AGAIN_SECONDS,
                )
            self._later[worker] = time.monotonic() + _AGAIN_SECONDS
        return False

    def _connect_with(self, worker: int) -> bool:
        addresses, port = self._places[worker]
        hello = Hello(Role.COPY, self._worker.worker, worker)
        for address in addresses:
            deadline = time.monotonic() + _CONNECT_SECONDS
            with contextlib.suppress(*_LOST):
                self._channel = connect(address, port, _key(self._store), hello, deadline)
                keep_alive(self._channel.sock)
                self._channel.sock.settimeout(_SILENT_SECONDS)
                self._keeper = worker
                return True
        return False

    def _disconnect(self) -> None:
        if self._channel is not None:
            self._channel.sock.close()
            self._channel = None


def _received(channel: Channel, size: int) -> Iterator[bytes]:
    while size > 0:
        piece = channel.receive(_PIECE_BYTES)
        size -= len(piece)
        yield piece


def _key(store: TCPStore) -> bytes:
    return job_key(store.secret(), "copies of commits")


def _cut(sock: socket.socket) -> None:
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)


def may_come(worker: ElasticWorker) -> bool:
    """Whether copies may come from another host: there may be one, and it can reach this worker.

    The launcher gives the store of a job that stays on its host the name "localhost".
    """
    advertised = read_settings(os.environ).advertise_addr or ""
    # An advertised port is that of the rank, and leads to no other one.
    return worker.store_host != "localhost" and hosts.split_port(advertised)[1] is None


def _own_addresses() -> list[str]:
    """Returns the addresses at which other hosts may reach this one."""
    settings = read_settings(os.environ)
    if settings.advertise_addr:
        return [hosts.split_port(settings.advertise_addr)[0]]
    found = hosts.interface_addresses()
    found = [one for one in found if one.interface in settings.interface] or found
    outside = [one.address for one in found if not one.loopback]
    return outside or [one.address for one in found]
