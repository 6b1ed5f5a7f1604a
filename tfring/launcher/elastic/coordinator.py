"""The coordinator of an elastic job in the launcher that starts all its workers."""

from __future__ import annotations

import os
import threading
from typing import Any

from tfring import _native
from tfring.launcher.agents.addresses import own_address
from tfring.launcher.elastic.options import ElasticOptions
from tfring.launcher.elastic.orders import (
    EndJob,
    Generation,
    KillWorker,
    Member,
    Note,
    Orders,
    OrderSink,
    StartWorker,
)
from tfring.launcher.hosts.errors import UsageError
from tfring.launcher.hosts.placement import address_of, is_local
from tfring.launcher.options.job_options import JobOptions
from tfring.membership import CoordinatorService
from tfring.settings.environment import read_settings
from tfring.store import Store, StoreError, TCPStore

_NANOSECONDS = 1_000_000_000
# All local addresses, as the server's own client connects to it.
_ANY = "0.0.0.0"


def coordinator_options(elastic: ElasticOptions, start_timeout: float) -> Any:
    """Returns the options of the coordinator's state machine.

    Args:
        elastic: Those of the job.
        start_timeout: Seconds for which the first generation waits for all ranks.
    """
    options = _native.core.membership.CoordinatorOptions()
    options.np, options.min_np, options.max_np = elastic.np, elastic.min_np, elastic.max_np
    options.spares = elastic.spares
    options.start_wait = _nanoseconds(start_timeout)
    # A worker that builds its model before it is ready may take long.
    options.start_limit = options.min_wait = _nanoseconds(elastic.timeout)
    options.reset_limit = elastic.reset_limit
    options.count_changes = not elastic.only_failures_count
    # The policy is a part of the options: what is set on it stays.
    hosts = options.hosts
    if elastic.cooldown is not None:
        least, most = elastic.cooldown
        hosts.failures, hosts.cooling_empties = 1, True
        # Horovod's first cool-down is twice its least one.
        hosts.cool_first, hosts.cool_most = _nanoseconds(2 * least), _nanoseconds(most)
    else:
        hosts.first_failure_bars = elastic.blacklist
    options.hosts = hosts
    return options


def _nanoseconds(seconds: float) -> int:
    return int(min(seconds, 1e9) * _NANOSECONDS)


class Service:
    """The coordinator's service, whose wishes become orders.

    Args:
        store: The store of the job, which stays the caller's.
        elastic: The options of the job.
        start_timeout: Seconds for which the first generation waits for all ranks.
        orders: Where its wishes go.
    """

    def __init__(
        self, store: Store, elastic: ElasticOptions, start_timeout: float, orders: OrderSink
    ) -> None:
        self._np, self._max_np = elastic.np, elastic.max_np
        self._orders = orders
        self._first: set[int] = set()  # workers for the first generation that have not ended
        self._seen = 0  # the last generation that was told
        self._made = threading.Event()  # `_service`, whose thread may be faster than this one
        self._service = CoordinatorService(
            store,
            coordinator_options(elastic, start_timeout),
            on_start=self._start,
            on_kill=lambda worker: orders.put(KillWorker(worker)),
            on_note=self._note,
            on_end=lambda code, reason: orders.put(EndJob(code, reason)),
        )
        self._made.set()

    def set_hosts(self, hosts: list[tuple[str, int]]) -> None:
        """Says which hosts there are now."""
        self._service.set_hosts(hosts)

    def ended(self, worker: int, exit_code: int, cause: str) -> None:
        """Says that a worker's process is over."""
        self._first.discard(worker)
        self._service.process_ended(worker, exit_code, cause)

    def close(self) -> None:
        """Ends the service."""
        self._service.close()

    # In the service's thread.

    def _start(self, worker: int, host: str, slot: int) -> None:
        self._made.wait()
        status = self._service.status()
        begins = status["generation"] == 0
        first = begins and len(self._first) < self._np
        if first:
            self._first.add(worker)
        there = self._np if begins else len(status["members"])
        size = self._np if first else min(there + 1, self._max_np)
        self._orders.put(StartWorker(worker, host, slot, first, size))

    def _note(self, text: str) -> None:
        self._orders.put(Note(text))
        self._made.wait()
        status = self._service.status()
        if status["generation"] > self._seen:
            self._seen = status["generation"]
            members = tuple(Member(**member) for member in status["members"])
            self._orders.put(Generation(self._seen, members))


class LocalHead:
    """See `Head`: the coordinator, and the store of the job, in this process.

    Args:
        options: What to run.
        elastic: With how many workers, and where.
        orders: Where the coordinator's wishes go.

    Raises:
        UsageError: No store can be opened.
    """

    def __init__(self, options: JobOptions, elastic: ElasticOptions, orders: Orders) -> None:
        self._interface = options.interface
        self._alone = elastic.script is None and all(is_local(host) for host, _ in elastic.hosts)
        try:
            address = self._listen_at()
            bind = "" if address == _ANY else address
            self._store = TCPStore(
                address, 0, is_master=True, secret=options.secret, bind_addr=bind
            )
        except (OSError, StoreError) as error:
            raise UsageError(f"the store of the job cannot be opened: {error}") from None
        self._service = Service(self._store, elastic, options.start_timeout, orders)
        if elastic.hosts:
            self._service.set_hosts(list(elastic.hosts))

    def _listen_at(self) -> str:
        if self._alone:
            return "localhost"
        given = read_settings(os.environ).bind_addr
        return own_address(self._interface, None) if self._interface else given or _ANY

    def variables(self, start: StartWorker) -> dict[str, str]:
        """See `Head.variables`."""
        address = self._store.host
        if address == _ANY:
            towards = address_of(start.host)
            try:
                address = own_address(None, None if is_local(start.host) else towards)
            except OSError as error:
                raise UsageError(f"no way to host {towards}: {error}") from None
        if ":" in address:
            address = f"[{address}]"
        return {"TFRING_ELASTIC_STORE": f"{address}:{self._store.port}"}

    def connection(self, host: str) -> str:
        """See `Head.connection`."""
        return host

    def stop(self) -> None:
        """See `Head.stop`: without workers the job is over."""

    def hosts_found(self, hosts: list[tuple[str, int]]) -> None:
        """See `Head.hosts_found`."""
        self._service.set_hosts(hosts)

    def ended(self, worker: int, exit_code: int, cause: str) -> None:
        """See `Head.ended`."""
        self._service.ended(worker, exit_code, cause)

    def close(self) -> None:
        """See `Head.close`."""
        self._service.close()
        self._store.close()
