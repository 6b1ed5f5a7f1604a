"""SIGTERM as a request that a program looks at between two steps.

Schedulers send it before they end a job. The handler only notes it, so the step that is under way
is finished.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType

from tfring.runtime.settings.environment import read_settings


class TerminationRequest:
    """Whether SIGTERM has come while some part of a program was under way.

    A signal that comes at another time does what it would do without this object: the program may
    have left that part by an exception, after which nobody looks here any more. Only the main
    thread can watch, and only where SIGTERM has its default handler: a program with another one
    knows better, and one that ignores it goes on ignoring it.
    """

    def __init__(self, under_way: Callable[[FrameType | None], bool]) -> None:
        """Sets what part of the program is meant.

        Args:
            under_way: says of the main thread's innermost frame whether it is in that part.
        """
        self._under_way = under_way
        self.requested = False

    def watch(self) -> bool:
        """Begins to watch; returns whether it can. A later object takes the place of this one."""
        if threading.current_thread() is not threading.main_thread():
            return False
        if signal.getsignal(signal.SIGTERM) not in (signal.SIG_DFL, _on_terminate):
            return False
        _State.watching, _State.signalled_at = self, None
        signal.signal(signal.SIGTERM, _on_terminate)
        return True

    def unwatch(self) -> None:
        """Gives SIGTERM its default handler back, unless the program has set another one since."""
        if _State.watching is not self:
            return
        _State.watching = None
        if signal.getsignal(signal.SIGTERM) is _on_terminate:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


def seconds_left() -> float | None:
    """Returns in how many seconds this process is killed; None if it knows of no such time.

    It knows where SIGTERM has come while a TerminationRequest watched, and TFRING_STOP_TIMEOUT says
    what follows.
    """
    at, allowed = _State.signalled_at, read_settings(os.environ).stop_timeout
    if at is None or allowed is None:
        return None
    return max(0.0, at + allowed - time.monotonic())


class _State:
    """What the main thread writes, and it alone."""

    watching: TerminationRequest | None = None
    signalled_at: float | None = None  # since a watch began


def _on_terminate(number: int, frame: FrameType | None) -> None:
    request = _State.watching
    if request is not None and request._under_way(frame):
        request.requested = True
        _State.signalled_at = _State.signalled_at or time.monotonic()
        return
    _State.watching = None
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
