"""SIGTERM as a request that a program looks at between two steps.

Schedulers send it before they end a job. The handler only notes it, so the step that is under way
is finished.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from types import FrameType


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
        _State.watching = self
        signal.signal(signal.SIGTERM, _on_terminate)
        return True

    def unwatch(self) -> None:
        """Gives SIGTERM its default handler back, unless somebody has set another one since."""
        if _State.watching is not self:
            return
        _State.watching = None
        if signal.getsignal(signal.SIGTERM) is _on_terminate:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


class _State:
    """What the main thread writes, and it alone."""

    watching: TerminationRequest | None = None


def _on_terminate(number: int, frame: FrameType | None) -> None:
    request = _State.watching
    if request is not None and request._under_way(frame):
        request.requested = True
        return
    _State.watching = None
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
