"""Listens for the ranks of a job, with the handshake on every connection."""

from __future__ import annotations

import errno
import ipaddress
import os
import random
import resource
import select
import socket
import threading
import time
from collections.abc import Mapping
from typing import Any

from tfring.job.handshake import auth
from tfring.job.handshake.errors import BootstrapError
from tfring.job.handshake.handshakes import ADMITTED, Decision, Handshakes
from tfring.job.security.mac import Channel
from tfring.runtime.settings.setting import ports_of

# How long a name of this host may be looked up.
LOOKUP_SECONDS = 30.0

Who = tuple[auth.Role, int]


class Listener(Handshakes):
    """Accepts connections from the ranks of one job."""

    def accept(self, expected: set[Who], deadline: float) -> dict[Who, Channel]:
        """Waits until all expected connections are there, each of a role and a rank.

        Returns them, their sockets non-blocking; fewer if the deadline passed or after interrupt().

        BootstrapError: two processes that know the secret say that they are the same rank; or there
        are not enough descriptors for all connections.
        """
        self._check_limit(len(expected))
        present: dict[Who, Channel] = {}
        twice: list[Who] = []

        def decide(hello: auth.Hello) -> Decision:
            decision = _decision((hello.role, hello.connector), expected, present)
            if decision is _TWICE:
                twice.append((hello.role, hello.connector))
            return decision

        def admitted(hello: auth.Hello, channel: Channel) -> None:
            present[hello.role, hello.connector] = channel

        try:
            while not self._interrupted:
                if len(present) >= len(expected) or time.monotonic() >= deadline:
                    break
                self.step(deadline, decide, admitted)
                if twice:
                    raise BootstrapError(
                        f"two processes say that they are rank {twice[0][1]} of this job: check "
                        "the variables that set the rank, and that no process of an earlier run "
                        "still runs"
                    )
        except BaseException:
            for channel in present.values():
                channel.sock.close()
            raise
        return present

    def _check_limit(self, connections: int) -> None:
        """Raises BootstrapError if the limit of descriptors is too low for these connections."""
        soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        free = soft - len(os.listdir("/proc/self/fd"))
        if soft != resource.RLIM_INFINITY and free < connections:
            raise BootstrapError(
                f"{self._name} needs {connections} more connections, and its limit of {soft} "
                f"descriptors leaves {max(0, free)}: raise the hard limit (ulimit -Hn)"
            )


_TWICE = Decision(auth.Verdict.REFUSED)


def _decision(who: Who, expected: set[Who], present: dict[Who, Channel]) -> Decision:
    if who in present and _is_closed(present[who].sock):
        present.pop(who).sock.close()  # it did not get our answer and tries again
    if who in present:
        return _TWICE
    if who in expected:
        return ADMITTED
    return Decision(
        auth.Verdict.REFUSED, f"no {who[0].name.lower()} connection of rank {who[1]} is expected"
    )


def _is_closed(sock: socket.socket) -> bool:
    """Whether the other end has closed, also if it has sent something that nobody has read yet."""
    watch = select.poll()
    watch.register(sock, select.POLLRDHUP)
    return bool(watch.poll(0))


def bind(address: str, port: int, backlog: int) -> socket.socket:
    """Returns a listening socket, closed on exec.

    Address "" is all of this host. Port 0 is a free one, of TFRING_PORT_RANGE if that is set.

    OSError: the address is not of this host, or the port is taken.
    """
    for candidate in [port] if port else ports_to_try(os.environ):
        try:
            return _bind_to(address, candidate, backlog)
        except OSError as error:
            failure = error
            if error.errno != errno.EADDRINUSE:
                break
    raise failure


def ports_to_try(environ: Mapping[str, str]) -> list[int]:
    """Returns the ports that a listener may have, in the order in which to try them.

    They are those of TFRING_PORT_RANGE in any order, else 0. ValueError: it is no range of ports.
    """
    text = environ.get("TFRING_PORT_RANGE")
    if not text:
        return [0]
    found = ports_of(text)
    return random.sample(found, len(found))


def _bind_to(address: str, port: int, backlog: int) -> socket.socket:
    if not address:
        both = socket.has_dualstack_ipv6()
        any_family = socket.AF_INET6 if both else socket.AF_INET
        return socket.create_server(
            ("", port), family=any_family, backlog=backlog, dualstack_ipv6=both
        )
    error: OSError = OSError(f"{address} has no address")
    for family, kind, protocol, _, where in resolve(address, port, LOOKUP_SECONDS):
        sock = socket.socket(family, kind, protocol)
        try:
            # A later init binds the same port while connections of the first are in TIME_WAIT.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind(where)
            sock.listen(backlog)
            return sock
        except OSError as failure:
            sock.close()
            error = failure
    raise error


Found = list[tuple[int, int, int, str, tuple[object, ...]]]  # as socket.getaddrinfo returns


def resolve(address: str, port: int, seconds: float) -> Found:
    """Returns what `look_up` does, IPv4 first.

    So all ranks try the addresses of "localhost" in the same order.
    """
    found = look_up(address, port, seconds)
    return sorted(found, key=lambda entry: entry[0] != socket.AF_INET)


def look_up(address: str, port: int, seconds: float) -> Found:
    """Returns the addresses of a name in the order that the system prefers; OSError if it has none.

    It takes `seconds` at most: a name server may be silent for minutes.
    """
    answer: list[Any] = []

    def ask() -> None:
        try:
            answer.append(socket.getaddrinfo(address, port, type=socket.SOCK_STREAM))
        except (OSError, UnicodeError) as error:  # the second: a part of the name is empty
            answer.append(error)

    if _is_address(address):
        ask()
    else:
        thread = threading.Thread(target=ask, name="tfring look-up", daemon=True)
        thread.start()
        thread.join(seconds)
    if not answer:
        raise OSError(f"no name server has told the address of {address} within {seconds:.0f} s")
    if isinstance(answer[0], (OSError, UnicodeError)):
        raise OSError(f"{address} has no address: {answer[0]}") from None
    return [(int(f), int(k), p, name, tuple(where)) for f, k, p, name, where in answer[0]]


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return False
    return True
