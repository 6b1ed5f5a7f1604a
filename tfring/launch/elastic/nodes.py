"""A node of a job that is started once per node. It follows the coordinator through a store.

The first node that can serve them serves the store and the coordinator. With `tfring coordinator`
a separate process does, which may be restarted. The keys are in node_coordinator.py.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import os
import socket
import threading
import time

from tfring.elastic import keys
from tfring.job.environments.elastic import PATIENCE
from tfring.job.security.errors import SecretError
from tfring.job.store import (
    PrefixStore,
    StoreAuthError,
    StoreConnectionError,
    StoreError,
    TCPStore,
)
from tfring.launch.elastic.node_coordinator import (
    STORE_SECONDS,
    Follower,
    NodeCoordinator,
    until_answered,
)
from tfring.launch.elastic.options import ElasticOptions, NodeOptions
from tfring.launch.elastic.orders import (
    EndJob,
    Generation,
    Note,
    Orders,
    StartWorker,
    order_from,
)
from tfring.launch.exit_codes import LOST_PEER
from tfring.launch.hosts.errors import UsageError
from tfring.launch.hosts.placement import is_local
from tfring.runtime.settings.environment import read_settings

_log = logging.getLogger("tfring")

# Between two attempts to find a coordinator that is away.
_PAUSE_SECONDS = 0.5
_START_IT = "Start `tfring coordinator` there"
_RECOVERS = f"{keys.PREFIX}/{keys.RUNS}"


def open_store(options: NodeOptions, timeout: float) -> tuple[TCPStore, bool]:
    """Serves the store where the nodes meet, or connects with it; warns if that takes long.

    The first node that can serve the store does, unless `tfring coordinator` does. The name of the
    endpoint may get its address later, as names of new pods do, and the address may be this host's.
    So every attempt looks the name up again.

    Returns the store, and whether this process serves it. UsageError: it cannot be reached.
    """
    deadline, warned, not_here = time.monotonic() + timeout, False, ""
    try:
        while True:
            not_here = (
                f"{options.host} is another host's address, so this launcher cannot listen there: "
                f"start the job on {options.host}, too"
            )
            if is_local(options.host) and not options.apart:
                try:
                    where = (options.host, options.port)
                    return TCPStore(*where, is_master=True, timeout=STORE_SECONDS), True
                except StoreConnectionError as error:
                    not_here = f"This launcher cannot listen there: {error}"
            left = max(0.01, deadline - time.monotonic())
            try:
                patience = min(left, STORE_SECONDS)
                where = (options.host, options.port)
                return TCPStore(*where, timeout=patience, may_restart=options.apart), False
            except StoreAuthError:
                raise
            except StoreError:
                if left <= STORE_SECONDS:
                    raise
            if not warned:
                warned = True
                _log.warning(
                    "%s is listening at %s port %d yet. Retrying for %.0f s. %s",
                    "No coordinator" if options.apart else "Nothing",
                    options.host,
                    options.port,
                    left - STORE_SECONDS,
                    _START_IT if options.apart else not_here,
                )
    except (StoreError, SecretError, OSError) as error:
        if options.apart:
            raise UsageError(f"the coordinator cannot be reached: {error}. {_START_IT}") from None
        raise UsageError(f"the nodes cannot meet: {error}. {not_here}") from None


class _ComesTooLateError(Exception):
    """The job has continued without this node."""


class NodeHead:
    """See `Head`: the coordinator is in the process that serves the store."""

    def __init__(
        self, node: NodeOptions, elastic: ElasticOptions, start_timeout: float, orders: Orders
    ) -> None:
        self._node, self._elastic, self._orders = node, elastic, orders
        self._start_timeout = start_timeout
        self._store, served = open_store(node, start_timeout)
        self._coordinator: NodeCoordinator | None = None
        self._number = 0  # of this node among those of its host
        self._closing = threading.Event()
        # The follower's thread writes these, and the launcher's thread reads them.
        self._over = False
        self._away = False  # the coordinator is
        # The launcher's thread adds ends; the thread that has reported an end removes it.
        self._ends: dict[int, str] = {}
        # Only the follower's thread uses these, after the constructor.
        self._life = ""  # of the coordinator
        self._recovers = False  # the program has come to elastic.run
        self._workers: dict[int, int] = {}  # started here, with slots, until an end is reported
        self._last_order = self._last_worker = self._generation = 0
        try:
            if served:
                self._coordinator = NodeCoordinator(self._store, elastic, start_timeout, orders)
            self._attach_first()
        except StoreError as error:
            raise UsageError(f"the nodes cannot meet: {error}") from None

    def _attach_first(self) -> None:
        deadline = time.monotonic() + self._start_timeout
        while True:
            try:
                self._attach()
                return
            except StoreConnectionError:
                if not self._node.apart or time.monotonic() > deadline:
                    raise
            time.sleep(_PAUSE_SECONDS)

    def _attach(self) -> None:
        """Becomes a node of the job; or again, with what it knows, of a new coordinator.

        Raises:
            StoreError: The coordinator is away.
            UsageError: Another job meets there.
            _ComesTooLateError: The new coordinator has decided who is there.
        """
        self._name_job()
        life = self._store.get("life", self._start_timeout).decode()
        if not self._life:
            self._store.wait(["open"], self._start_timeout)
            self._number = self._store.add(self._names(), 1, STORE_SECONDS)
        elif life != self._life:
            if self._store.check(["open"], STORE_SECONDS):
                raise _ComesTooLateError
            self._last_order = 0
            while self._store.add(self._names(), 1, STORE_SECONDS) < self._number:
                pass  # nobody gets our name
        self._life = life
        said = {
            "slots": self._node.slots,
            "workers": dict(self._workers),
            "last_worker": self._last_worker,
            "generation": self._generation,
        }
        self._store.set(self._key(), json.dumps(said), ephemeral=True, timeout=STORE_SECONDS)
        self._orders_here = PrefixStore(f"orders/{self.name}", self._store)
        follow = {
            f"orders/{self.name}/": self._on_order,
            "said/": self._on_said,
            _RECOVERS: self._on_recovers,
        }
        self._follower = Follower(self._store, follow, self._on_lost, self._send_ends)
        self._follower.wake()  # ended() may have woken the follower before this one

    def _name_job(self) -> None:
        """Tells a coordinator which job this is; UsageError if another job's nodes meet there."""
        mine = {
            "job": self._node.job,
            "elastic": dataclasses.asdict(self._elastic),
            "start_timeout": self._start_timeout,
        }
        text = json.dumps(mine)
        found = json.loads(self._store.compare_set("job", "", text, STORE_SECONDS))
        if (other := found["job"]) != self._node.job:
            where = f"at {self._node.host} port {self._node.port}"
            self._store.close()
            raise UsageError(
                f'this node is of the job "{self._node.job}", but {where} the nodes of the job '
                f'"{other}" meet. Choose another port, or give the same --rdzv-id.'
            )
        first = found["elastic"]
        differ = [
            f"{name} is {value} here and {first.get(name)} on the first node"
            for name, value in json.loads(text)["elastic"].items()
            if value != first.get(name)
        ]
        if differ:
            what = "this node's options differ from the first node's, which are used"
            self._orders.put(Note(f"{what}: {', '.join(differ)}"))

    @property
    def name(self) -> str:
        """This host's name, with a number if a node of that name has been there."""
        host = socket.gethostname()
        return host if self._number == 1 else f"{host}.{self._number}"

    def _names(self) -> str:
        return f"names/{socket.gethostname()}"

    def _key(self) -> str:
        return f"nodes/{self.name}"

    def connection(self, host: str) -> str:
        """See `Head.connection`: all its workers are on this host."""
        del host
        return "localhost"

    def variables(self, start: StartWorker) -> dict[str, str]:
        """See `Head.variables`."""
        del start
        host = f"[{self._node.host}]" if ":" in self._node.host else self._node.host
        patience = {PATIENCE: f"{self._elastic.timeout:g}"} if self._node.apart else {}
        return {"TFRING_X_ELASTIC_STORE": f"{host}:{self._node.port}", **patience}

    def ended(self, worker: int, exit_code: int, cause: str) -> None:
        """See `Head.ended`."""
        if not self._over:
            self._ends[worker] = json.dumps({"exit_code": exit_code, "cause": cause})
            self._follower.wake()

    def stop(self) -> None:
        """See `Head.stop`."""
        if self._coordinator is not None:
            self._coordinator.stop()
        if not self._away:
            with contextlib.suppress(StoreError):
                self._store.delete_key(self._key(), timeout=STORE_SECONDS)

    def close(self) -> None:
        """See `Head.close`."""
        self._closing.set()
        self._follower.close()
        if not self._over and not self._away:
            with contextlib.suppress(StoreError):
                self._send_ends()
        if not self._over or self._coordinator is not None:  # its close() waits for all nodes
            self.stop()
        if self._coordinator is not None:
            self._coordinator.close()
        self._store.close()

    # In the follower's thread; _send_ends also in close(), which waits 5 s for that thread.

    def _send_ends(self) -> None:
        for worker, end in list(self._ends.items()):
            key = f"ended/{worker}"
            until_answered(lambda limit: self._store.set(key, end, timeout=limit))  # noqa: B023
            self._workers.pop(worker, None)
            self._ends.pop(worker, None)  # close() may have told it too

    def _on_order(self, key: str, value: bytes | None) -> None:
        if value is None:
            return
        if int(key) > self._last_order:  # else it was sent a second time
            self._last_order = int(key)
            order = order_from(value)
            if isinstance(order, StartWorker):
                self._workers[order.worker] = order.slot
                self._last_worker = max(self._last_worker, order.worker)
            self._orders.put(order)
        until_answered(lambda seconds: self._orders_here.delete_key(key, timeout=seconds))

    def _on_said(self, key: str, value: bytes | None) -> None:
        del key
        if value is None:
            return
        order = order_from(value)
        if isinstance(order, EndJob):
            self._over = True
        elif isinstance(order, Generation):
            self._generation = order.number
            self._last_worker = max(self._last_worker, *(one.worker for one in order.members))
        self._orders.put(order)
        if self._over:
            self.stop()

    def _on_recovers(self, key: str, value: bytes | None) -> None:
        self._recovers = self._recovers or (not key and value is not None)

    def _on_lost(self, why: str) -> None:
        if self._over or (self._node.apart and self._find_again(why)):
            return
        self._over = True
        reason, code = f"the node at {self._node.host} does not serve the job any more", LOST_PEER
        if self._coordinator is not None:
            reason, code = "this node does not serve the job any more", 1
        elif self._node.apart:
            reason = "the job continued without this node, or another job uses this address"
        self._orders.put(EndJob(code, f"{reason}: {why}", ask=code == LOST_PEER))

    def _find_again(self, why: str) -> bool:
        """Waits for a coordinator, and ends the job here if none comes; False: it is another's."""
        where = f"the coordinator at {self._node.host} port {self._node.port}"
        limit = self._elastic.timeout
        self._away = True
        does = f"the ranks go on without it for at most {limit:g} s"
        self._orders.put(Note(f"{where} cannot be reached ({why}): {does}"))
        deadline = time.monotonic() + limit
        while not self._closing.wait(_PAUSE_SECONDS):
            try:
                self._attach()
            except StoreError:
                if time.monotonic() < deadline:
                    continue
                self._end_alone(f"{where} could not be reached for {limit:g} s")
                return True
            except (UsageError, _ComesTooLateError):
                return False
            self._away = False
            self._orders.put(Note(f"{where} is reachable again"))
            return True
        return True

    def _end_alone(self, why: str) -> None:
        """Without a coordinator: ranks that recover save and end; others need none to go on."""
        self._over = True
        code = read_settings(os.environ).stopped_exit_code if self._recovers else 0
        does = "save and end" if self._recovers else "go on, and no rank is replaced"
        self._orders.put(Note(f"{why}: the ranks {does}"))
        self._orders.put(EndJob(code, why, ask=self._recovers))
