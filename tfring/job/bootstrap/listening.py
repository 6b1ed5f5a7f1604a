"""The socket at which rank 0 listens for the other ranks; the launcher may have opened it."""

from __future__ import annotations

import contextlib
import errno
import logging
import socket
import time
from collections.abc import Sequence

from tfring.job.handshake.errors import BootstrapError
from tfring.job.handshake.listener import bind

_log = logging.getLogger("tfring")

_IN_USE_SECONDS = 5.0

# By port, the sockets with which this process keeps ports of the launcher's for the next init: they
# are from the range of outgoing connections, so that another program could get them in between.
# They are bound and do not listen, because nobody accepts what comes.
_kept: dict[int, socket.socket] = {}


def listen(
    address: str, ports: Sequence[int], inherited_fd: int | None, size: int, place: str
) -> tuple[socket.socket, bool]:
    """Returns where to accept the others, and whether the launcher has chosen the port.

    Address "" is all of this host. `inherited_fd` is a socket that the launcher has passed on.
    `place` is the address and the ports as messages name them.

    BootstrapError: the address or the ports cannot be used.
    """
    backlog = max(1024, size + 16)
    for port in ports:
        sock = _kept.pop(port, None)
        if sock is None and inherited_fd is not None:
            sock = adopt_socket(inherited_fd, port)
        if sock is not None:
            try:
                # While connections of an earlier init are in TIME_WAIT.
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                sock.listen(backlog)
                return sock, True
            except OSError as error:
                _log.info("port %d of the launcher cannot be used: %s", port, error)
                sock.close()
    if not address and ports[0]:  # 0: the address is passed on with the port
        _log.info("rank 0 listens on all addresses of this host, port %d", ports[0])
    return _bind_one(address, ports, backlog, place), False


def stop_listening(sock: socket.socket) -> None:
    """Ends the listening of a socket, in all processes that have it, and keeps its port.

    The kernel keeps a port that was bound by its number. Without SO_REUSEADDR nobody else can bind
    it, too.
    """
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
    _kept[sock.getsockname()[1]] = sock


def _bind_one(address: str, ports: Sequence[int], backlog: int, place: str) -> socket.socket:
    # The next init after a shutdown uses the same port; a process that is about to end may hold it.
    deadline = time.monotonic() + _IN_USE_SECONDS
    while True:
        for port in ports:
            try:
                return bind(address, port, backlog)
            except OSError as error:
                failure = error
                if error.errno != errno.EADDRINUSE:
                    break
        if failure.errno == errno.EADDRINUSE and time.monotonic() < deadline:
            time.sleep(0.1)
            continue
        hint = "TFRING_BIND_ADDR says where rank 0 listens"
        if failure.errno == errno.EADDRINUSE:
            hint = "another program uses the port"
        raise BootstrapError(
            f"rank 0 cannot listen at {place} ({failure}): {hint}; "
            "TFRING_RENDEZVOUS_ADDR and TFRING_RENDEZVOUS_PORT, the same for all ranks, override it"
        )


def adopt_socket(fd: int, port: int) -> socket.socket | None:
    """Takes over an inherited socket; None if ``fd`` is not one that is bound to that port."""
    try:
        sock = socket.socket(fileno=fd)
    except OSError:
        return None
    if sock.getsockname()[1:2] != (port,):
        sock.detach()
        return None
    sock.set_inheritable(False)
    return sock
