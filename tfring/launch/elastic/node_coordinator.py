"""The coordinator of a job that is started once per node; the nodes hear it through a store.

Keys of the store, whose values are JSON:

- `life` tells this coordinator from others, `job` is the job with its options;
- `open` exists when new nodes may come;
- `nodes/NAME` is a node while its launcher is there: its slots, and what it knows of the job;
- `orders/NAME/N` is what the coordinator wants of a node, `ended/WORKER` how a worker ended;
- `said/KIND` is the last order of a kind for all nodes: `Generation`, `Restart`, `EndJob`.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import logging
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from tfring.job.store import Store, StoreError, StoreTimeoutError, Watch
from tfring.job.store.tcp_store import DEFAULT_LEASE
from tfring.launch.elastic.coordinator import Service
from tfring.launch.elastic.discovery import hosts_text
from tfring.launch.elastic.options import ElasticOptions
from tfring.launch.elastic.orders import (
    EndJob,
    KillWorker,
    Note,
    Order,
    Orders,
    StartWorker,
    order_text,
)

_log = logging.getLogger("tfring")

STORE_SECONDS = 5.0
# A request is repeated for as long as the store keeps the key of a node that it does not hear.
_ATTEMPTS = round(DEFAULT_LEASE / STORE_SECONDS)
# How long the process that serves the store waits for nodes to hear of the end of the job.
_FAREWELL_SECONDS = 10.0
# How long a coordinator of its own listens first. The nodes and workers of the one before it find
# it within 2 s, and the leases that the one before has given are over after this time.

REBUILD_SECONDS = 5.0


def until_answered(request: Callable[[float], object]) -> None:
    """Makes a request that may happen twice; asks again if the store does not answer.

    The request gets the seconds that it may take.

    Raises:
        StoreTimeoutError: There was no answer for the time of the lease.
        StoreConnectionError: The store is gone.
    """
    # Attempts are counted, and not time: this process may have been stopped meanwhile.
    for left in reversed(range(_ATTEMPTS)):
        try:
            request(STORE_SECONDS)
            return
        except StoreTimeoutError as error:
            if left == 0:
                raise StoreTimeoutError(
                    f"it was asked {_ATTEMPTS} times, for {STORE_SECONDS:g} s each: {error}"
                ) from None


class Follower:
    """A thread that hands on what changes below some prefixes of a store.

    The function of a prefix gets the rest of a key and its value. `on_lost` gets why the thread has
    ended, in it. `work` is called in the thread whenever it wakes, also by `wake`.
    """

    def __init__(
        self,
        store: Store,
        follow: Mapping[str, Callable[[str, bytes | None], None]],
        on_lost: Callable[[str], None],
        work: Callable[[], None] | None = None,
    ) -> None:
        self._watches: list[tuple[Watch, Callable[[str, bytes | None], None]]] = []
        self._on_lost = on_lost
        self._work = work
        self._closing = False
        self._wake = threading.Event()
        for prefix, handle in follow.items():
            watch = store.watch(prefix, timeout=STORE_SECONDS)
            self._watches.append((watch, handle))
            watch.on_ready(self._wake.set)
        self._thread = threading.Thread(target=self._run, name="tfring nodes", daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """Has `work` called soon."""
        self._wake.set()

    def _run(self) -> None:
        try:
            while not self._closing:
                self._wake.clear()
                if self._closing:  # the clear() may have come after close()
                    return
                if self._work is not None:
                    self._work()
                for watch, handle in self._watches:
                    while (change := watch.take()) is not None:
                        handle(change.key.removeprefix(watch.prefix), change.value)
                self._wake.wait()
        except Exception as error:  # of the store; or a value that no launcher has written
            if not self._closing:
                self._on_lost(str(error))

    def close(self) -> None:
        """Ends the thread."""
        self._closing = True
        self._wake.set()
        if threading.current_thread() is not self._thread:
            self._thread.join(STORE_SECONDS)
        for watch, _ in self._watches:
            with contextlib.suppress(StoreError):
                watch.close()


class NodeCoordinator:
    """The coordinator of all nodes, in the process that serves the store, which stays the caller's.

    Its wishes go to all nodes through the store, to that of this process, too. Lines for people,
    and the end of the job, are also `heard` here. For `rebuild_seconds` see `Service`.
    """

    def __init__(
        self,
        store: Store,
        elastic: ElasticOptions,
        start_timeout: float,
        heard: Orders,
        rebuild_seconds: float = 0.0,
    ) -> None:
        self._store = store
        self._heard = heard
        self._numbers = itertools.count(1)
        self._hosts: dict[str, int] = {}  # in the order in which they came
        self._where: dict[int, str] = {}  # the host of each worker
        self._ends: dict[str, bytes] = {}  # of workers, that the service has not heard of
        self._open = False
        self._service = Service(store, elastic, start_timeout, self.put, rebuild_seconds)
        self._service.set_hosts([])  # it listens from now on
        self._opens_at = time.monotonic() + rebuild_seconds
        store.set("life", secrets.token_hex(8))
        follow = {"nodes/": self._on_node, "ended/": self._on_end}
        self._follower = Follower(store, follow, self._on_lost, self._open_in_time)
        self._timer = threading.Timer(rebuild_seconds, self._follower.wake)
        self._timer.daemon = True
        self._timer.start()

    def put(self, order: Order) -> None:
        """Sends a wish of the coordinator; called in its thread."""
        if isinstance(order, (Note, EndJob)):
            self._heard.put(order)
        if isinstance(order, Note):
            return
        key, text = f"said/{type(order).__name__}", order_text(order)
        if isinstance(order, StartWorker):
            self._where[order.worker] = order.host
        if isinstance(order, (StartWorker, KillWorker)):
            key = f"orders/{self._where.get(order.worker, '')}/{next(self._numbers)}"
        try:
            until_answered(lambda seconds: self._store.set(key, text, timeout=seconds))
        except StoreError as error:
            _log.warning("the nodes do not hear the coordinator: %s", error)

    def _on_node(self, name: str, value: bytes | None) -> None:
        if value is None:
            self._hosts.pop(name, None)
        else:
            said = json.loads(value)
            self._hosts[name] = int(said["slots"])
            self._take_over(name, said)
        self._heard.put(Note(f"the nodes are now {hosts_text(list(self._hosts.items()))}"))
        self._service.set_hosts(list(self._hosts.items()))

    def _take_over(self, name: str, said: dict[str, Any]) -> None:
        """Takes what a node knows of the job from the coordinator before this one."""
        workers = {int(worker): int(slot) for worker, slot in said["workers"].items()}
        self._where.update(dict.fromkeys(workers, name))
        if said["last_worker"] > 0:
            self._service.living(name, workers, int(said["last_worker"]), int(said["generation"]))

    def _on_end(self, worker: str, value: bytes | None) -> None:
        if value is None:
            return
        self._ends[worker] = value
        if self._open:
            self._hand_on_ends()

    def _open_in_time(self) -> None:
        if not self._open and time.monotonic() >= self._opens_at:
            self._open = True
            self._store.set("open", b"", timeout=STORE_SECONDS)
            self._hand_on_ends()

    def _hand_on_ends(self) -> None:
        """Tells of the ends of workers: not before it is known who was there."""
        while self._ends:
            worker, value = next(iter(self._ends.items()))
            end = json.loads(value)
            self._service.ended(int(worker), int(end["exit_code"]), str(end["cause"]))
            until_answered(functools.partial(self._store.delete_key, f"ended/{worker}"))
            del self._ends[worker]

    def _on_lost(self, why: str) -> None:
        self.put(EndJob(1, f"the process that serves the nodes failed: {why}"))

    def stop(self) -> None:
        """Says that this node ends by a signal, and the job with it."""
        self._service.stop()

    def close(self) -> None:
        """Ends the coordinator, after the nodes have heard that the job is over."""
        self._timer.cancel()
        deadline = time.monotonic() + _FAREWELL_SECONDS
        with contextlib.suppress(StoreError):
            while self._store.num_keys("nodes/", STORE_SECONDS) and time.monotonic() < deadline:
                time.sleep(0.05)
        self._follower.close()
        self._service.close()
