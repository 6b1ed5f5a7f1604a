"""A store that one process serves to others over TCP."""

from __future__ import annotations

import ipaddress
import os
import weakref
from collections.abc import Sequence

from tfring.job.handshake.listener import bind
from tfring.job.security.errors import SecretError
from tfring.job.security.secret import expand, job_key
from tfring.job.security.sources import given_secret, secret_of_this_user
from tfring.job.store.errors import StoreConnectionError, StoreTimeoutError
from tfring.job.store.store import (
    DEFAULT_TIMEOUT,
    Store,
    Timeout,
    as_bytes,
    key_list,
    missing_error,
    pairs,
    seconds_of,
)
from tfring.job.store.table import Limits, check_key
from tfring.job.store.tcp.connection import Connection, Server
from tfring.job.store.tcp.messages import Op
from tfring.job.store.tcp.server import ServerLimits, StoreServer
from tfring.job.store.watch import Watch
from tfring.settings.environment import read_settings

_BACKLOG = 1024
DEFAULT_LEASE = 10.0
DEFAULT_LOST_AFTER = 5.0
# By port, for multi_tenant; of a server that was closed somebody else may have the port.
_served_here: weakref.WeakValueDictionary[int, StoreServer] = weakref.WeakValueDictionary()


class TCPStore(Store):
    """A store that lives in the process of one of its users, or of a launcher.

    All ends prove to each other to know a secret, and every message carries a proof that it comes
    from the other end; nothing is encrypted. Without a secret (`secret`, TFRING_SECRET,
    TFRING_SECRET_FILE) the store is for processes of this user on this host only.

    A connection that breaks is made again; a request is then sent again and happens once. When the
    server is gone for longer than `lost_after`, whatever waits gets a StoreConnectionError. What
    is in the store ends with the server.
    """

    def __init__(
        self,
        host: str,
        port: int,
        world_size: int | None = None,
        is_master: bool = False,
        timeout: Timeout = DEFAULT_TIMEOUT,
        wait_for_workers: bool = True,
        multi_tenant: bool = False,
        *,
        secret: str | None = None,
        lease: float = DEFAULT_LEASE,
        lost_after: float = DEFAULT_LOST_AFTER,
        bind_addr: str | None = None,
        limits: ServerLimits | None = None,
    ) -> None:
        """Connects to the server; starts it first where it shall run.

        Args:
            host: Name or address of the server's host, as all users know it.
            port: The server's port; with `is_master` 0 takes a free one, which `port` then says.
            world_size: How many clients there are, this one among them; None: any number.
            is_master: Whether this process runs the server, until close().
            timeout: How long to wait for the server now, and an operation by default.
            wait_for_workers: Wait until `world_size` clients have connected.
            multi_tenant: Whether this process may run the server for this port already; then this
                store is a client of it.
            secret: What all users of the store know, at least 16 characters; None: TFRING_SECRET.
            lease: Seconds that ephemeral keys of this client stay when its connection is gone, at
                most an hour.
            lost_after: Seconds after which a server that cannot be reached any more is given up.
            bind_addr: The address at which the server listens, "" for all; None: TFRING_BIND_ADDR,
                else with a secret all, and without one the loopback interface.
            limits: How much the server takes.

        Raises:
            SecretError: There is no secret, and `host` is not this one; or it is too short.
            StoreConnectionError: The server could not be reached, or its address is taken.
            StoreAuthError: A process listens there that does not know the secret.
            StoreTimeoutError: The other clients did not come.
            ValueError: A time limit is impossible.
        """
        super().__init__(timeout)
        key = _key(host, port, secret)
        served: StoreServer | None = None
        if is_master and not (multi_tenant and port in _served_here):
            served = _serve(host, port, key, bind_addr, limits)
            port = served.address[1]
            _served_here[port] = served
        server = Server(host, [port], key, seconds_of(lease), seconds_of(lost_after))
        self._connect(server, served, (world_size or 0) if wait_for_workers else 0)

    @classmethod
    def of_job(
        cls, server: Server, timeout: Timeout, served: StoreServer | None = None
    ) -> TCPStore:
        """Returns a store through which the ranks of a job meet.

        Args:
            server: Where it is.
            timeout: How long to wait for it now, and an operation by default.
            served: The server itself, if it runs here; it belongs to the store now.

        Raises:
            StoreConnectionError, StoreAuthError: As for the constructor.
        """
        store = cls.__new__(cls)
        Store.__init__(store, timeout)
        store._connect(server, served, 0)
        return store

    def _connect(self, server: Server, served: StoreServer | None, clients: int) -> None:
        self._key = server.key
        self.host, self.port = server.host, server.ports[0]
        try:
            self._connection = Connection(server, self._timeout, clients)
        except BaseException:
            if served is not None:
                served.close()
            raise
        # Where nobody closes the store: before the interpreter ends, or when it is forgotten.
        self._finalizer = weakref.finalize(self, _close, self._connection, served)

    def set(
        self,
        key: str,
        value: bytes | str,
        *,
        ephemeral: bool = False,
        timeout: Timeout | None = None,
    ) -> None:
        """See `Store.set`."""
        fields = (_name(key), as_bytes(value), b"1" if ephemeral else b"")
        self._request(Op.SET, fields, timeout)

    def multi_set(
        self, keys: Sequence[str], values: Sequence[bytes | str], timeout: Timeout | None = None
    ) -> None:
        """See `Store.multi_set`; all are sent before the first is answered."""
        several = [(_name(key), as_bytes(value), b"") for key, value in pairs(keys, values)]
        limit = self._limit(timeout)
        if None in self._connection.request_all(Op.SET, several, limit):
            raise self._silent(Op.SET, limit)

    def get(self, key: str, timeout: Timeout | None = None) -> bytes:
        """See `Store.get`."""
        return self.multi_get([key], timeout)[0]

    def multi_get(self, keys: Sequence[str], timeout: Timeout | None = None) -> list[bytes]:
        """See `Store.multi_get`; all are asked for before the first is answered."""
        names, limit = key_list(keys), self._limit(timeout)
        found = self._connection.request_all(Op.GET, [(_name(key),) for key in names], limit)
        values = [fields[0] for fields in found if fields is not None]
        if len(values) < len(names):
            missing = [name for name, fields in zip(names, found, strict=True) if fields is None]
            raise missing_error(self._where(), missing, limit)
        return values

    def wait(self, keys: Sequence[str], timeout: Timeout | None = None) -> None:
        """See `Store.wait`."""
        limit, names = self._limit(timeout), key_list(keys)
        fields = tuple(_name(key) for key in names)
        if names and self._connection.request(Op.WAIT, fields, limit) is None:
            raise missing_error(self._where(), self._missing(names), limit)

    def check(self, keys: Sequence[str], timeout: Timeout | None = None) -> bool:
        """See `Store.check`."""
        fields = tuple(_name(key) for key in key_list(keys))
        return bool(self._request(Op.CHECK, fields, timeout)[0])

    def add(self, key: str, amount: int, timeout: Timeout | None = None) -> int:
        """See `Store.add`."""
        return int(self._request(Op.ADD, (_name(key), b"%d" % amount), timeout)[0])

    def append(self, key: str, value: bytes | str, timeout: Timeout | None = None) -> None:
        """See `Store.append`."""
        self._request(Op.APPEND, (_name(key), as_bytes(value)), timeout)

    def compare_set(
        self, key: str, expected: bytes | str, desired: bytes | str, timeout: Timeout | None = None
    ) -> bytes:
        """See `Store.compare_set`."""
        fields = (_name(key), as_bytes(expected), as_bytes(desired))
        return self._request(Op.COMPARE_SET, fields, timeout)[0]

    def delete_key(self, key: str, timeout: Timeout | None = None) -> bool:
        """See `Store.delete_key`."""
        return bool(self._request(Op.DELETE, (_name(key),), timeout)[0])

    def num_keys(self, prefix: str = "", timeout: Timeout | None = None) -> int:
        """See `Store.num_keys`."""
        return int(self._request(Op.NUM_KEYS, (prefix.encode(),), timeout)[0])

    def watch(
        self, prefix: str = "", *, exact: bool = False, timeout: Timeout | None = None
    ) -> Watch:
        """See `Store.watch`."""
        limit = self._limit(timeout)
        watch = Watch(self._where(), prefix, exact, limit, closed=self._connection.end_watch)
        fields = (prefix.encode(), b"1" if exact else b"")
        if self._connection.request(Op.WATCH, fields, limit, watch) is None:
            raise self._silent(Op.WATCH, limit)
        return watch

    def close(self) -> None:
        """Ends the use of the store here; where the server runs, all users lose the store."""
        self._finalizer()

    def cut(self) -> None:
        """Ends what waits here with a StoreConnectionError, and later calls; waits for nothing.

        For a thread that must not wait for a server that may be gone. close() has to follow. The
        server hears no goodbye: ephemeral keys of this client stay for its lease.
        """
        self._connection.cut()

    def secret(self) -> str:
        """See `Store.secret`."""
        return expand(self._key, b"job of a store").hex()

    def _where(self) -> str:
        return f"the TCPStore at {self.host} port {self.port}"

    def _request(
        self, op: Op, fields: tuple[bytes, ...], timeout: Timeout | None
    ) -> tuple[bytes, ...]:
        limit = self._limit(timeout)
        answer = self._connection.request(op, fields, limit)
        if answer is None:
            raise self._silent(op, limit)
        return answer

    def _silent(self, op: Op, limit: float) -> StoreTimeoutError:
        return StoreTimeoutError(
            f"{self._where()} has not answered {op.name} within {limit:g} s, and it is not known "
            "whether it has happened: its server is stopped or busy, or its host is cut off"
        )

    def _missing(self, names: list[str]) -> list[str]:
        """Returns those keys that do not exist, all of them where the server does not answer."""
        try:
            return [name for name in names if not self.check([name], 1.0)] or names
        except StoreTimeoutError:
            return names


def _close(connection: Connection, server: StoreServer | None) -> None:
    connection.close()
    if server is not None:
        server.close()


def _key(host: str, port: int, secret: str | None) -> bytes:
    """Returns what both ends of a store prove to know."""
    text = secret or given_secret(os.environ)
    if text is None and not _only_loopback(host):
        raise SecretError(
            f"the TCPStore at {host} port {port} has no secret, and {host} is not the loopback "
            "address: set TFRING_SECRET or TFRING_SECRET_FILE, the same for all its users, or "
            'pass secret=; a store for this host alone is at "localhost"'
        )
    return job_key(text or secret_of_this_user(), "store")


def _serve(
    host: str,
    port: int,
    key: bytes,
    bind_addr: str | None,
    limits: ServerLimits | None,
) -> StoreServer:
    if bind_addr is None:
        bind_addr = read_settings(os.environ).bind_addr
    address = host if _only_loopback(host) else (bind_addr or "")
    try:
        return StoreServer(bind(address, port, _BACKLOG), key, limits)
    except OSError as error:
        raise StoreConnectionError(
            f"the server of the TCPStore cannot listen at {address or 'all addresses'} port {port} "
            f"({error}): choose another port, or 0 for a free one"
        ) from None


def _only_loopback(host: str) -> bool:
    """Whether a host is this one, whoever asks, so that nobody else can connect."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _name(key: str) -> bytes:
    check_key(key, Limits())
    return key.encode()
