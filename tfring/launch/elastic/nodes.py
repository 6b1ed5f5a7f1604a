"""Jobs that are started once per node: the nodes meet in a store, which the first of them serves.

Keys of the store: `job` the job's name; `nodes/NAME` a node and its slots, as long as its launcher
is there; `orders/NAME/N` what the coordinator wants of a node; `ended/WORKER` how a worker ended;
`said/generation`, `said/restart` and `said/end` what all nodes are told. Values are JSON.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import logging
import socket
import threading
import time
from collections.abc import Callable, Mapping

from tfring.job.security.errors import SecretError
from tfring.job.store import (
    PrefixStore,
    Store,
    StoreAuthError,
    StoreConnectionError,
    StoreError,
    StoreTimeoutError,
    TCPStore,
    Watch,
)
from tfring.job.store.tcp_store import DEFAULT_LEASE
from tfring.launch.elastic.coordinator import Service
from tfring.launch.elastic.options import ElasticOptions, NodeOptions
from tfring.launch.elastic.orders import (
    EndJob,
    Generation,
    KillWorker,
    Member,
    Note,
    Order,
    Orders,
    Restart,
    StartWorker,
)
from tfring.launch.exit_codes import LOST_PEER
from tfring.launch.hosts.errors import UsageError
from tfring.launch.hosts.placement import is_local

_log = logging.getLogger("tfring")

_STORE_SECONDS = 5.0
# A store that does not answer is asked again for as long as it keeps the key of a node that it does
# not hear.
_ATTEMPTS = round(DEFAULT_LEASE / _STORE_SECONDS)
# How long the node that serves the store waits for others to hear of the end of the job.
_FAREWELL_SECONDS = 10.0


def until_answered(request: Callable[[float], object]) -> None:
    """Makes a request that may happen twice; asks again where the store does not answer.

    Args:
        request: Makes it; gets the seconds that it may take.

    Raises:
        StoreTimeoutError: There was no answer for the time of the lease.
        StoreConnectionError: The store is gone.
    """
    # Attempts are counted, and not time: this process may have been stopped meanwhile.
    for left in reversed(range(_ATTEMPTS)):
        try:
            request(_STORE_SECONDS)
            return
        except StoreTimeoutError as error:
            if left == 0:
                raise StoreTimeoutError(
                    f"it was asked {_ATTEMPTS} times, for {_STORE_SECONDS:g} s each: {error}"
                ) from None


def open_store(options: NodeOptions, timeout: float) -> tuple[TCPStore, bool]:
    """Opens the store where the nodes meet; the first node that can, serves it.

    Args:
        options: Where they meet.
        timeout: Seconds to wait for the node that serves it.

    Returns:
        The store, and whether this process serves it.

    Raises:
        UsageError: It cannot be reached, or another job meets there.
    """
    store, served = _serve_or_connect(options, timeout)
    try:
        if served:
            store.set("job", options.job)
        elif (other := store.get("job", timeout).decode()) != options.job:
            store.close()
            raise UsageError(
                f'at {options.host} port {options.port} the nodes of the job "{other}" meet, and '
                f'this is one of "{options.job}": choose another port, or the same --rdzv-id'
            )
    except (StoreError, OSError) as error:
        raise UsageError(f"the nodes cannot meet: {error}") from None
    return store, served


def _serve_or_connect(options: NodeOptions, timeout: float) -> tuple[TCPStore, bool]:
    """Serves the store, or connects with the node that does; says so if that takes long.

    The name of the endpoint may get its address later, as those of new pods do, and that may then
    be one of this host: so it is looked up again and again.
    """
    deadline, warned, not_here = time.monotonic() + timeout, False, ""
    try:
        while True:
            not_here = "it is the address of another host"
            if is_local(options.host):
                try:
                    where = (options.host, options.port)
                    return TCPStore(*where, is_master=True, timeout=_STORE_SECONDS), True
                except StoreConnectionError as error:
                    not_here = str(error)
            left = max(0.01, deadline - time.monotonic())
            try:
                patience = min(left, _STORE_SECONDS)
                return TCPStore(options.host, options.port, timeout=patience), False
            except StoreAuthError:
                raise
            except StoreError:
                if left <= _STORE_SECONDS:
                    raise
            if not warned:
                warned = True
                _log.warning(
                    "no node serves the job at %s port %d yet: waits for one for %g s",
                    options.host,
                    options.port,
                    left - _STORE_SECONDS,
                )
    except (StoreError, SecretError, OSError) as error:
        raise UsageError(
            f"the nodes cannot meet: {error}. This launcher does not serve there: {not_here}"
        ) from None


class _Follower:
    """A thread that hands on what changes below some prefixes of a store."""

    def __init__(
        self,
        store: Store,
        follow: Mapping[str, Callable[[str, bytes | None], None]],
        on_lost: Callable[[str], None],
    ) -> None:
        self._watches: list[tuple[Watch, Callable[[str, bytes | None], None]]] = []
        self._on_lost = on_lost
        self._closing = False
        self._wake = threading.Event()
        for prefix, handle in follow.items():
            watch = store.watch(prefix, timeout=_STORE_SECONDS)
            self._watches.append((watch, handle))
            watch.on_ready(self._wake.set)
        self._thread = threading.Thread(target=self._run, name="tfring nodes", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            while not self._closing:
                self._wake.clear()
                if self._closing:  # the clear() may have come after close()
                    return
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
            self._thread.join(_STORE_SECONDS)
        for watch, _ in self._watches:
            with contextlib.suppress(StoreError):
                watch.close()


class _Coordinator:
    """The coordinator of all nodes, in the process that serves the store.

    Its wishes go to the nodes through the store, to that of this process, too.
    """

    def __init__(
        self, store: Store, elastic: ElasticOptions, start_timeout: float, notes: Orders
    ) -> None:
        self._store = store
        self._notes = notes
        self._numbers = itertools.count(1)
        self._hosts: dict[str, int] = {}  # in the order in which they came
        self._where: dict[int, str] = {}  # the host of each worker
        self._service = Service(store, elastic, start_timeout, self)
        follow = {"nodes/": self._on_node, "ended/": self._on_end}
        self._follower = _Follower(store, follow, self._on_lost)

    def put(self, order: Order) -> None:
        """Sends a wish of the coordinator; called in its thread."""
        if isinstance(order, Note):
            self._notes.put(order)
            return
        if isinstance(order, Generation):
            key, value = "said/generation", dataclasses.asdict(order)
        elif isinstance(order, Restart):
            key, value = "said/restart", dataclasses.asdict(order)
        elif isinstance(order, EndJob):
            key, value = "said/end", dataclasses.asdict(order)
        else:
            if isinstance(order, StartWorker):
                self._where[order.worker] = order.host
            name = type(order).__name__
            key = f"orders/{self._where.get(order.worker, '')}/{next(self._numbers)}"
            value = {"order": name, **dataclasses.asdict(order)}
        text = json.dumps(value)
        try:
            until_answered(lambda seconds: self._store.set(key, text, timeout=seconds))
        except StoreError as error:
            _log.warning("the nodes do not hear the coordinator: %s", error)

    def _on_node(self, name: str, value: bytes | None) -> None:
        if value is None:
            self._hosts.pop(name, None)
        else:
            self._hosts[name] = int(json.loads(value)["slots"])
        text = ", ".join(f"{host}:{slots}" for host, slots in self._hosts.items())
        self._notes.put(Note(f"the nodes are now {text or 'none'}"))
        self._service.set_hosts(list(self._hosts.items()))

    def _on_end(self, worker: str, value: bytes | None) -> None:
        if value is not None:
            end = json.loads(value)
            self._service.ended(int(worker), int(end["exit_code"]), str(end["cause"]))
            key = f"ended/{worker}"
            until_answered(lambda seconds: self._store.delete_key(key, timeout=seconds))

    def _on_lost(self, why: str) -> None:
        self.put(EndJob(1, f"the launcher that serves the nodes failed: {why}"))

    def stop(self) -> None:
        """Says that this node ends by a signal, and the job with it."""
        self._service.stop()

    def close(self) -> None:
        """Ends the coordinator, after the nodes have heard that the job is over."""
        deadline = time.monotonic() + _FAREWELL_SECONDS
        with contextlib.suppress(StoreError):
            while self._store.num_keys("nodes/", _STORE_SECONDS) and time.monotonic() < deadline:
                time.sleep(0.05)
        self._follower.close()
        self._service.close()


class NodeHead:
    """See `Head`: the coordinator is in the launcher of the node that serves the store.

    Args:
        node: Where the nodes meet, and what this one gives.
        elastic: How many ranks the job has.
        start_timeout: Seconds to wait for the node that serves the store, and for all ranks.
        orders: Where the coordinator's wishes go.

    Raises:
        UsageError: The nodes cannot meet.
    """

    def __init__(
        self, node: NodeOptions, elastic: ElasticOptions, start_timeout: float, orders: Orders
    ) -> None:
        self._node, self._orders = node, orders
        self._store, served = open_store(node, start_timeout)
        self._coordinator: _Coordinator | None = None
        self._over = False
        self._last_order = 0  # of the follower's thread
        try:
            if served:
                self._coordinator = _Coordinator(self._store, elastic, start_timeout, orders)
            self.name = self._own_name()
            follow = {f"orders/{self.name}/": self._on_order, "said/": self._on_said}
            self._follower = _Follower(self._store, follow, self._on_lost)
            self._orders_here = PrefixStore(f"orders/{self.name}", self._store)
            self._store.set(self._key(), json.dumps({"slots": node.slots}), ephemeral=True)
        except StoreError as error:
            raise UsageError(f"the nodes cannot meet: {error}") from None

    def _own_name(self) -> str:
        """This host's name, with a number if a node of that name has been there."""
        host = socket.gethostname()
        number = self._store.add(f"names/{host}", 1)
        return host if number == 1 else f"{host}.{number}"

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
        return {"TFRING_ELASTIC_STORE": f"{host}:{self._node.port}"}

    def hosts_found(self, hosts: list[tuple[str, int]]) -> None:
        """See `Head.hosts_found`: each node names itself."""
        raise AssertionError(f"no script names the hosts {hosts}")

    def ended(self, worker: int, exit_code: int, cause: str) -> None:
        """See `Head.ended`."""
        if self._over:
            return
        value = json.dumps({"exit_code": exit_code, "cause": cause})
        try:
            until_answered(
                lambda seconds: self._store.set(f"ended/{worker}", value, timeout=seconds)
            )
        except StoreError as error:
            self._on_lost(str(error))

    def stop(self) -> None:
        """See `Head.stop`."""
        if self._coordinator is not None:
            self._coordinator.stop()
        with contextlib.suppress(StoreError):
            self._store.delete_key(self._key(), timeout=_STORE_SECONDS)

    def close(self) -> None:
        """See `Head.close`."""
        if not self._over or self._coordinator is not None:  # its close() waits for all nodes
            self.stop()
        self._follower.close()
        if self._coordinator is not None:
            self._coordinator.close()
        self._store.close()

    # In the follower's thread.

    def _on_order(self, key: str, value: bytes | None) -> None:
        if value is None:
            return
        if int(key) > self._last_order:  # else it was sent a second time
            self._last_order = int(key)
            fields = json.loads(value)
            kind = {"StartWorker": StartWorker, "KillWorker": KillWorker}[fields.pop("order")]
            self._orders.put(kind(**fields))
        until_answered(lambda seconds: self._orders_here.delete_key(key, timeout=seconds))

    def _on_said(self, key: str, value: bytes | None) -> None:
        if value is None:
            return
        fields = json.loads(value)
        if key == "end":
            self._over = True
            self._orders.put(EndJob(**fields))
            self.stop()
        elif key == "restart":
            self._orders.put(Restart(**fields))
        else:
            members = tuple(Member(*member) for member in fields["members"])
            self._orders.put(Generation(fields["number"], members))

    def _on_lost(self, why: str) -> None:
        if not self._over:
            self._over = True
            served, code = f"the node at {self._node.host}", LOST_PEER
            if self._coordinator is not None:
                served, code = "this node", 1
            self._orders.put(EndJob(code, f"{served} does not serve the job any more: {why}"))
