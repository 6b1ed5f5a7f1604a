"""Connections between the program that starts a job and the processes of an engine.

Both ends prove to know the job's secret, and every message carries a MAC.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from tfring.job.handshake import connector
from tfring.job.handshake.auth import Hello, Role
from tfring.job.handshake.errors import BootstrapError
from tfring.job.handshake.handshakes import ADMITTED, Handshakes
from tfring.job.handshake.listener import bind
from tfring.job.security.mac import Channel
from tfring.job.security.secret import job_key

_JOB_ID = "tasks"
_BACKLOG = 1024
_STEP_SECONDS = 60.0


class Links:
    """Takes the connections of one job in a thread of its own, until `close`.

    Args:
        address: Where to listen.
        secret: The secret of the job.
        on_link: Called with each new connection, in a thread of its own.
    """

    def __init__(self, address: str, secret: str, on_link: Callable[[Channel], None]) -> None:
        listener = bind(address, 0, _BACKLOG)
        self.port = int(listener.getsockname()[1])
        self._on_link = on_link
        self._closing = False
        self._handshakes = Handshakes(
            listener, job_key(secret, _JOB_ID), 0, name="the program that started the job"
        )
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Takes no more connections. Those that there are stay."""
        self._closing = True
        self._handshakes.interrupt()
        self._thread.join()

    def _accept(self) -> None:
        while not self._closing:
            self._handshakes.step(
                time.monotonic() + _STEP_SECONDS, lambda _: ADMITTED, self._admitted
            )
        self._handshakes.close()

    def _admitted(self, hello: Hello, channel: Channel) -> None:
        del hello
        threading.Thread(target=self._on_link, args=(channel,), daemon=True).start()


def link_to(address: str, port: int, secret: str, number: int, seconds: float) -> Channel:
    """Connects to the program that has started the job.

    Args:
        address: Its address.
        port: Of its `Links`.
        secret: The secret of the job.
        number: Names this process in messages.
        seconds: How long to try.

    Raises:
        ConnectionError: It could not be reached, or does not know the secret.
    """
    hello = Hello(Role.TUNNEL, number & 0xFFFFFFFF, 0)
    deadline = time.monotonic() + seconds
    try:
        channel = connector.connect(address, port, job_key(secret, _JOB_ID), hello, deadline)
    except BootstrapError as error:
        raise ConnectionError(str(error)) from None
    channel.sock.settimeout(None)
    return channel
