"""A store that one process serves to others over TCP."""

from __future__ import annotations

import ipaddress
import os
import weakref

from tfring.job.handshake.listener import bind
from tfring.job.security.errors import SecretError
from tfring.job.security.secret import expand, job_key
from tfring.job.security.sources import given_secret, secret_of_this_user
from tfring.job.store.errors import StoreConnectionError
from tfring.job.store.store import DEFAULT_TIMEOUT, Store, Timeout, seconds_of
from tfring.job.store.tcp.connection import Connection, Server
from tfring.job.store.tcp.server import ServerLimits, StoreServer
from tfring.runtime.settings.environment import read_settings

_BACKLOG = 1024
DEFAULT_LEASE = 10.0
DEFAULT_LOST_AFTER = 5.0
# By port, for multi_tenant. The port of a closed server may belong to another process by now.
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
        may_restart: bool = False,
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
            may_restart: Whether to stay with a server that was started again. It is empty, so
                calls that wait then, and all watches, get a StoreConnectionError.

        Raises:
            SecretError: There is no secret, and `host` is not this one; or it is too short.
            StoreConnectionError: The server could not be reached, or its address is taken.
            StoreAuthError: A process listens there that does not know the secret.
            StoreTimeoutError: The other clients did not come.
            ValueError: A port or a time limit is impossible.
        """
        super().__init__(timeout)
        if not 0 <= port < 1 << 16:
            raise ValueError(f"a store's port is {port}, and has to be from 0 to 65535")
        key = _key(host, port, secret)
        served: StoreServer | None = None
        if is_master and not (multi_tenant and port in _served_here):
            served = _serve(host, port, key, bind_addr, limits)
            port = served.address[1]
            _served_here[port] = served
        server = Server(
            host, port, key, seconds_of(lease), seconds_of(lost_after), may_restart=may_restart
        )
        self._connect(server, served, (world_size or 0) if wait_for_workers else 0)

    @classmethod
    def of_job(
        cls,
        server: Server,
        timeout: Timeout,
        served: StoreServer | None = None,
        *,
        again: bool = True,
    ) -> TCPStore:
        """Returns a store through which the ranks of a job meet; raises what the constructor does.

        A server that runs here belongs to the store now. With `again` it tries until the time is
        up.
        """
        store = cls.__new__(cls)
        Store.__init__(store, timeout)
        store._connect(server, served, 0, again)
        return store

    def _connect(
        self, server: Server, served: StoreServer | None, clients: int, again: bool = True
    ) -> None:
        self._key = server.key
        self.host, self.port = server.host, server.port
        try:
            self._connection = Connection(server, self._timeout, clients, again=again)
        except BaseException:
            if served is not None:
                served.close()
            raise
        # Where nobody closes the store: before the interpreter ends, or when it is forgotten.
        self._finalizer = weakref.finalize(self, _close, self._connection, served)

    def close(self) -> None:
        """Ends the use of the store here; where the server runs, all users lose the store."""
        self._finalizer()

    def cut(self) -> None:
        """Ends calls that wait here, and later ones, with a StoreConnectionError. Does not wait.

        For a thread that must not wait for a server that may be gone. Call close() afterwards. The
        server hears no goodbye, so ephemeral keys of this client stay for its lease.
        """
        self._connection.cut()

    def secret(self) -> str:
        """See `Store.secret`."""
        return expand(self._key, b"job of a store").hex()


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
    """Whether a host is the loopback interface wherever it is looked up."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
