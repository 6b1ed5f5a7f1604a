"""The signals that the launcher gets, and what they mean."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

# These end the job: they are passed on, and the ranks have some time to end.
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
# These are passed on and mean what the ranks take them for: schedulers warn with them (Slurm's
# --signal, SGE's -notify), and SIGUSR1 has ranks show their stacks.
PASSED_ON = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGXCPU, signal.SIGCONT)
# Programs send these, and one end may bring several: Slurm sends SIGTERM to all processes of a job,
# and a batch script passes its own on. All that come so soon after the first are one.
_FROM_PROGRAMS = (signal.SIGTERM, signal.SIGHUP)
_ONE_END_SECONDS = 5.0


class SignalWatch:
    """Has signals to this process wake its main thread through a pipe instead of acting.

    An ignored signal (nohup) stays ignored. In another thread than the main one nothing is changed,
    and the pipe stays empty. Used in a `with` statement by one thread.
    """

    def __init__(self) -> None:
        self.fd = -1  # gives the numbers of the signals, a byte each
        self._write = -1
        self._handlers: dict[int, Any] = {}
        self._wakeup = -1
        self._main = threading.current_thread() is threading.main_thread()
        self._one_end_until = 0.0

    def __enter__(self) -> SignalWatch:
        self.fd, self._write = os.pipe()
        os.set_blocking(self.fd, False)
        os.set_blocking(self._write, False)
        if self._main:
            self._wakeup = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
            wanted = (*ENDING, *PASSED_ON, signal.SIGTSTP, signal.SIGCHLD)
            for number in wanted:
                if signal.getsignal(number) is not signal.SIG_IGN or number == signal.SIGCHLD:
                    self._handlers[number] = signal.signal(number, lambda *_: None)
        return self

    def __exit__(self, *exc: object) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        if self._main:
            signal.set_wakeup_fd(self._wakeup)
        os.close(self.fd)
        os.close(self._write)

    def read(self) -> list[int]:
        """Returns the signals that have come, without those that repeat one."""
        try:
            return [number for number in os.read(self.fd, 4096) if not self._repeats(number)]
        except BlockingIOError:
            return []

    def _repeats(self, number: int) -> bool:
        if number not in _FROM_PROGRAMS:
            return False
        now = time.monotonic()
        if now < self._one_end_until:
            return True
        self._one_end_until = now + _ONE_END_SECONDS
        return False


@contextlib.contextmanager
def called_at_ends(call: Callable[[int], None]) -> Iterator[None]:
    """Calls a function at a signal that ends the job, in the block; in the main thread only.

    It gets the number, between any two instructions of the block, and may raise. An ignored signal
    stays ignored.
    """
    here = threading.current_thread() is threading.main_thread()
    wanted = [n for n in ENDING if here and signal.getsignal(n) is not signal.SIG_IGN]
    handlers = {number: signal.signal(number, lambda n, _: call(n)) for number in wanted}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def second_signal_text(number: int) -> str:
    """Returns which signal after this one leaves the ranks no time, as the end of a sentence."""
    when = f" after {_ONE_END_SECONDS:g} s" if number in _FROM_PROGRAMS else ""
    return f"a second one{when} kills them at once"


def signal_name(number: int) -> str:
    """Returns ``SIGTERM`` for 15, and ``signal 40`` for a number without a name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
