"""The coordinator of an elastic job in the launcher that starts all its workers."""

from __future__ import annotations

import contextlib
import functools
import os
import threading
from collections.abc import Callable, Mapping
from typing import Any

from tfring.elastic import keys
from tfring.elastic.service import CoordinatorService
from tfring.job.store import PrefixStore, Store, StoreError, TCPStore
from tfring.launch.agents.addresses import own_address
from tfring.launch.elastic.discovery import DiscoveryScript, Hosts
from tfring.launch.elastic.options import ElasticOptions
from tfring.launch.elastic.orders import (
    EndJob,
    Generation,
    HostsFound,
    KillWorker,
    Note,
    Order,
    Orders,
    Restart,
    StartWorker,
)
from tfring.launch.hosts.errors import UsageError
from tfring.launch.hosts.placement import address_of, is_local
from tfring.launch.options.job_options import JobOptions
from tfring.runtime import _native
from tfring.runtime.settings.environment import read_settings

_NANOSECONDS = 1_000_000_000
# All local addresses, as the server's own client connects to it.
_ANY = "0.0.0.0"
# So often all start again without --reset-limit.
_RESTARTS = 3
_STORE_SECONDS = 1.0  # for a request, while others wait


def coordinator_options(elastic: ElasticOptions, start_timeout: float) -> Any:
    """Returns the options of the coordinator's state machine."""
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
    """The coordinator's service. It sends orders, from any thread.

    Until a worker has called elastic.run, no worker can continue without a lost member. Then all
    workers end, and start again with a new coordinator, as torchrun's workers do.

    The store stays the caller's. If there may have been a coordinator before this one, it only
    listens for `rebuild_seconds` first; 0 if there was none.
    """

    def __init__(
        self,
        store: Store,
        elastic: ElasticOptions,
        start_timeout: float,
        tell: Callable[[Order], None],
        rebuild_seconds: float = 0.0,
    ) -> None:
        self._store = store
        self._elastic = elastic
        self._options = coordinator_options(elastic, start_timeout)
        self._options.rebuild_wait = _nanoseconds(rebuild_seconds)
        self._tell = tell
        self._lock = threading.RLock()  # guards all below
        self._hosts: list[tuple[str, int]] = []
        self._workers: dict[int, str] = {}  # the host of each that was started and has not ended
        self._last_worker = 0
        self._restarts = 0
        self._restarting = False  # the workers of the life before still end
        self._stopping = False  # by a signal, or because the job is over
        self._begin()
        self._options.rebuild_wait = 0  # the next lives know what they begin with

    def _begin(self) -> None:
        self._first: set[int] = set()  # workers for the first generation that have not ended
        self._seen = 0  # the last generation that was told
        self._options.first_worker = self._last_worker + 1
        life = self._restarts
        self._service = CoordinatorService(
            self._store,
            self._options,
            on_start=functools.partial(self._start, life),
            on_kill=functools.partial(self._kill, life),
            on_note=functools.partial(self._note, life),
            on_end=functools.partial(self._end, life),
        )

    def set_hosts(self, hosts: list[tuple[str, int]]) -> None:
        """Says which hosts there are now."""
        with self._lock:
            self._hosts = hosts
            there = {host for host, _ in hosts}
            # No one reports the end of workers on a node that has vanished.
            self._first = {one for one in self._first if self._workers.get(one) in there}
            if not self._restarting:
                self._service.set_hosts(hosts)
            self._begin_again()

    def living(self, host: str, workers: Mapping[int, int], last: int, generation: int) -> None:
        """See `CoordinatorService.living`."""
        with self._lock:
            self._workers.update(dict.fromkeys(workers, host))
            self._last_worker = max(self._last_worker, last)
            if not self._restarting:
                self._service.living(host, workers, last, generation)

    def ended(self, worker: int, exit_code: int, cause: str) -> None:
        """Says that a worker's process is over."""
        with self._lock:
            host = self._workers.pop(worker, "")
            self._first.discard(worker)
            if not self._restarting and self._is_needed(worker):
                end = f"ended with exit code {exit_code}" + (f": {cause}" if cause else "")
                self._lost(worker, host, exit_code, end)
            elif not self._restarting:
                self._service.process_ended(worker, exit_code, cause)
            self._begin_again()

    def stop(self) -> None:
        """Says that the job ends by a signal: no worker is needed any more."""
        with self._lock:
            self._stopping = True

    def close(self) -> None:
        """Ends the service."""
        self._service.close()

    # Where all have to start again.

    def _is_needed(self, worker: int) -> bool:
        """Whether a worker is a member of a generation that cannot continue without it."""
        members = [member.worker for member in self._service.record.members]
        over = self._stopping or self._service.phase == "over"
        return worker in members and not over and not self._recovers()

    def _recovers(self) -> bool:
        """Whether a worker has come to elastic.run."""
        if self._service.recovers:
            return True
        with contextlib.suppress(StoreError):  # its thread may not have come to what is there
            return PrefixStore(keys.PREFIX, self._store).check([keys.RUNS], _STORE_SECONDS)
        return False

    def _lost(self, worker: int, host: str, exit_code: int, end: str) -> None:
        """Handles the end of a member that is needed."""
        members = [member.worker for member in self._service.record.members]
        reason = f"rank {members.index(worker)} (worker {worker}) on host {host} {end}"
        limit = _RESTARTS if self._elastic.reset_limit < 0 else self._elastic.reset_limit
        # A program without elastic.run that ends well is through, whatever the others do.
        well = exit_code in (0, read_settings(os.environ).stopped_exit_code)
        if well or self._restarts == limit:
            used_up = f", and the {limit} restarts are used up (--max-restarts, or --reset-limit)"
            self._stopping = True
            self._tell(EndJob(exit_code, reason + ("" if well else used_up)))
            self._service.end()
            return
        self._restarts += 1
        self._restarting = True
        self._tell(Restart(self._restarts, limit, reason))
        self._service.end()  # its thread may wait for our lock
        for other in self._workers:
            self._tell(KillWorker(other))

    def _begin_again(self) -> None:
        """Begins the next life when all workers of the one before have ended, or their hosts."""
        there = {host for host, _ in self._hosts}
        if self._restarting and not there.intersection(self._workers.values()):
            self._workers.clear()
            self._restarting = False
            with contextlib.suppress(StoreError):  # of one that came there when it had to end
                PrefixStore(keys.PREFIX, self._store).delete_key(keys.RUNS, _STORE_SECONDS)
            self._begin()
            self._service.set_hosts(self._hosts)

    # In the thread of the service of one life.

    def _start(self, life: int, worker: int, host: str, slot: int) -> None:
        with self._lock:
            if life != self._restarts or self._restarting:
                return
            self._workers[worker] = host
            self._last_worker = max(worker, self._last_worker)
            record = self._service.record
            begins = record.generation == 0
            first = begins and len(self._first) < self._elastic.np
            rank = worker - self._options.first_worker
            if first:
                self._first.add(worker)
            there = self._elastic.np if begins else len(record.members)
            size = self._elastic.np if first else min(there + 1, self._elastic.max_np)
            rank = min(rank if first else size, size - 1)
            self._tell(StartWorker(worker, host, slot, first, size, rank, life))

    def _kill(self, life: int, worker: int) -> None:
        self._tell(KillWorker(worker))
        with self._lock:
            if life == self._restarts and not self._restarting and self._is_needed(worker):
                end = "was silent, or did not stop, and is regarded as lost"
                self._lost(worker, self._workers.get(worker, ""), 1, end)

    def _end(self, life: int, code: int, reason: str) -> None:
        with self._lock:
            if life == self._restarts and not self._restarting:
                self._tell(EndJob(code, reason))

    def _note(self, life: int, text: str) -> None:
        with self._lock:
            if life != self._restarts or self._restarting:
                return
            self._tell(Note(text))
            record = self._service.record
            if record.generation > self._seen:
                self._seen = record.generation
                self._tell(Generation(self._seen, record.members))


class LocalHead(Service):
    """See `Head`: the coordinator, and the store of the job, in this process."""

    def __init__(self, options: JobOptions, elastic: ElasticOptions, orders: Orders) -> None:
        self._interface = options.interface
        self._alone = elastic.script is None and all(is_local(host) for host, _ in elastic.hosts)
        try:
            address = self._listen_at()
            bind = "" if address == _ANY else address
            self._served = TCPStore(
                address, 0, is_master=True, secret=options.secret, bind_addr=bind
            )
        except (OSError, StoreError) as error:
            raise UsageError(f"the store of the job cannot be opened: {error}") from None
        super().__init__(self._served, elastic, options.start_timeout, orders.put)
        self._script: DiscoveryScript | None = None
        if elastic.script is not None:

            def found(hosts: Hosts) -> None:
                orders.put(HostsFound(hosts))  # before the workers that start there
                self.set_hosts(hosts)

            self._script = DiscoveryScript(
                elastic.script, elastic.slots, found, lambda text: orders.put(Note(text))
            )
        elif elastic.hosts:
            self.set_hosts(list(elastic.hosts))

    def _listen_at(self) -> str:
        if self._alone:
            return "localhost"
        given = read_settings(os.environ).bind_addr
        return own_address(self._interface, None) if self._interface else given or _ANY

    def variables(self, start: StartWorker) -> dict[str, str]:
        """See `Head.variables`."""
        address = self._served.host
        if address == _ANY:
            towards = address_of(start.host)
            try:
                address = own_address(None, None if is_local(start.host) else towards)
            except OSError as error:
                raise UsageError(f"no way to host {towards}: {error}") from None
        if ":" in address:
            address = f"[{address}]"
        return {"TFRING_X_ELASTIC_STORE": f"{address}:{self._served.port}"}

    def connection(self, host: str) -> str:
        """See `Head.connection`."""
        return host

    def stop(self) -> None:
        """See `Head.stop`."""
        super().stop()
        self._end_script()

    def close(self) -> None:
        """See `Head.close`."""
        self._end_script()
        super().close()
        self._served.close()

    def _end_script(self) -> None:
        if self._script is not None:
            self._script.close()
