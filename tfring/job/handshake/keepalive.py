"""Notices that the host of the other end is gone although it has closed no connection."""

from __future__ import annotations

import socket
from collections.abc import Sequence

# A host that is gone or cut off is noticed after about 2 + 3 * 1 seconds. The kernels of both ends
# do it, so that a process may stop, or hold Python's lock for long, without counting as lost.
_IDLE_SECONDS = 2
_INTERVAL_SECONDS = 1
_PROBES = 3
_UNANSWERED_MS = 1000 * (_IDLE_SECONDS + _PROBES * _INTERVAL_SECONDS)


def keep_alive(sock: socket.socket) -> None:
    """Makes a connection break within seconds when the host of the other end is gone."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _IDLE_SECONDS)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _INTERVAL_SECONDS)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _PROBES)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNANSWERED_MS)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def break_when_unanswered(descriptors: Sequence[int]) -> None:
    """Makes connections break when the other end's kernel acknowledges nothing for seconds."""
    for descriptor in descriptors:
        sock = socket.socket(fileno=descriptor)
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNANSWERED_MS)
        finally:
            sock.detach()
