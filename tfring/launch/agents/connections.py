"""The connections of a launcher to the agents of all its hosts."""

from __future__ import annotations

import selectors
import time
from collections.abc import Callable

from tfring.job.bootstrap.hosts import host_name
from tfring.launch.agents.host import Host
from tfring.launch.agents.protocol import KEEPALIVE_SECONDS
from tfring.launch.agents.shells import RemoteShell, Tunnels
from tfring.launch.hosts.errors import UsageError
from tfring.launch.hosts.placement import is_local

# How often to look whether an ssh has ended whose output has.
_POLL_SECONDS = 0.1


class Connections:
    """Opens, watches and closes the connections; a lost host gets a new one when it is needed.

    Used by one thread, which owns the selector: it calls prepare() before it waits, handle() for
    what has happened to a host, and tick() after that.

    `on_output` gets the host, the number of a process there, ``stdout`` or ``stderr``, and data;
    `on_silent` a host that was given up.
    """

    def __init__(
        self,
        selector: selectors.BaseSelector,
        shell: RemoteShell | Tunnels,
        lease: float,
        on_output: Callable[[Host, int, str, bytes], None],
        on_silent: Callable[[Host], None],
        *,
        grace: float,
    ) -> None:
        self._selector = selector
        self._shell = shell
        self._lease = lease
        self._on_output = on_output
        self._on_silent = on_silent
        self._grace = grace
        self._hosts: dict[str, Host] = {}  # "" is this one, whatever its names
        self._local: dict[str, bool] = {}  # whether a name is this host's

    def host(self, name: str) -> Host:
        """Returns the connection to a host, made when it is first asked for, and after its loss.

        UsageError: ssh or the agent cannot be started.
        """
        if name not in self._local:
            # Hosts of an engine are reached by it, also this one.
            by_name = name == "localhost" or isinstance(self._shell, RemoteShell)
            self._local[name] = by_name and is_local(name)
        local = self._local[name]
        key = "" if local else name
        present = self._hosts.get(key)
        if present is not None and not present.ended:
            return present
        if present is not None:
            self._close(present)
        try:
            shell = None if local else self._shell
            host = Host(host_name() if local else name, shell, self._lease, self._grace)
        except (OSError, ValueError) as error:
            raise UsageError(f"tfring cannot start its agent on host {name}: {error}") from None
        self._hosts[key] = host
        for fd in host.fds()[1:]:
            self._selector.register(fd, selectors.EVENT_READ, host)
        return host

    def hosts(self) -> list[Host]:
        """Returns the connections that there are."""
        return list(self._hosts.values())

    def prepare(self) -> float | None:
        """Gets ready for waiting; returns after how many seconds at most tick() is wanted."""
        for host in self._hosts.values():
            self._watch_for_space(host)
        if any(host.ended for host in self._hosts.values()):
            return _POLL_SECONDS
        if any(host.lease for host in self._hosts.values()):
            return KEEPALIVE_SECONDS / 2
        return None

    def handle(self, key: selectors.SelectorKey) -> None:
        """Handles what the selector has seen of a host."""
        host: Host = key.data
        if key.events == selectors.EVENT_WRITE:
            host.flush()
            return
        found = host.read(key.fd)
        if found is None:
            self._selector.unregister(key.fd)
        for number, name, data in found or ():
            self._on_output(host, number, name, data)

    def tick(self) -> None:
        """Gives signs of life, and gives hosts up that gave none."""
        now = time.monotonic()
        for host in self._hosts.values():
            if host.tick(now):
                self._on_silent(host)

    def hold(self) -> None:
        """Tells all agents that this process will stand still for a while."""
        for host in self._hosts.values():
            host.hold()

    def close(self) -> None:
        """Ends all connections, upon which the processes behind them end."""
        for host in self._hosts.values():
            self._close(host)
        for host in self._hosts.values():
            host.wait()
        self._hosts.clear()

    def _close(self, host: Host) -> None:
        for fd in self._watched(host):
            self._selector.unregister(fd)
        host.close()

    def _watched(self, host: Host) -> list[int]:
        watched = self._selector.get_map() or {}  # none after its end
        return [fd for fd in host.fds() if fd in watched]

    def _watch_for_space(self, host: Host) -> None:
        """Waits for space on a connection where something waits to be written, and only there."""
        fd = host.fds()[0]
        watched = fd in self._selector.get_map()
        if host.wants_to_write() and not watched:
            self._selector.register(fd, selectors.EVENT_WRITE, host)
        elif watched and not host.wants_to_write():
            self._selector.unregister(fd)
