"""Ctrl-C while a thread of this process waits for other ranks.

Python runs the handler of a signal in the main thread, between two steps of the interpreter. A main
thread that waits inside a collective gets there only when the collective ends, which may be never.
So Python's wake-up descriptor tells a thread of the signal, and the thread withdraws this rank's
calls. They end with an error, the main thread returns to the interpreter, and KeyboardInterrupt is
raised there. The other ranks' calls end with an error that names this rank.

Done only while SIGINT has Python's own handler or the one below: a program with another one may
want to finish its step. Nothing is done if the program, or a library, has a wake-up descriptor.

The handler below differs from Python's own in two points. TensorFlow creates the exception for an
operation that failed in C++; a KeyboardInterrupt in the midst of that comes out as a RuntimeError
about mismatched exceptions. So it waits until the exception is complete. And that exception leaves
a block in which tapes record nothing; a KeyboardInterrupt where that ends would keep the state, and
later tapes would have no gradients. So it waits until TensorFlow has left the block.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from types import FrameType

from tfring.runtime import _native

# Until the main thread is back in the interpreter its calls are withdrawn again and again: it may
# have been on its way to the next one. Seconds.
_AT_FIRST = 0.02
_AGAIN = 0.5
_HANDLED = 0  # no signal has this number
_CAUSE = "interrupted (Ctrl-C, SIGINT)"

# How many frames up a constructor of an exception is looked for; each class calls its base's.
_DEPTH = 8
# What ends the block of a context manager that is a generator, and where TensorFlow's are.
_LEAVES = contextlib._GeneratorContextManager.__exit__.__code__
_TENSORFLOW = f"{os.sep}tensorflow{os.sep}"


class _State:
    """What the main thread writes, and it alone."""

    write_end: int | None = None  # of the pipe; None while nothing is watched
    handled: int = 0  # how often the handler below has run, and said so in the pipe


def watch() -> None:
    """Begins to watch; does nothing outside of the main thread, or if it cannot."""
    if threading.current_thread() is not threading.main_thread() or _State.write_end is not None:
        return
    read_end, write_end = os.pipe()
    os.set_blocking(write_end, False)
    before = signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
    if before != -1:
        signal.set_wakeup_fd(before)
        os.close(read_end)
        os.close(write_end)
        return
    _State.write_end = write_end
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _on_interrupt)
    arguments = (read_end, _State.handled)
    threading.Thread(target=_wait, args=arguments, name="tfring-sigint", daemon=True).start()


def unwatch() -> None:
    """Stops watching. A handler or wake-up descriptor that the program set meanwhile stays."""
    if threading.current_thread() is not threading.main_thread() or _State.write_end is None:
        return
    if signal.getsignal(signal.SIGINT) is _on_interrupt:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    now = signal.set_wakeup_fd(-1)
    if now not in (-1, _State.write_end):
        signal.set_wakeup_fd(now)
    os.close(_State.write_end)  # the thread reads end of file
    _State.write_end = None


def _in_forked_child() -> None:
    """A signal to the child is none of the parent's."""
    if _State.write_end is not None and threading.current_thread() is threading.main_thread():
        unwatch()


os.register_at_fork(after_in_child=_in_forked_child)


def _wait(read_end: int, handled: int) -> None:
    """Reads what comes through the pipe, to its end; `handled` counts as _State.handled does."""
    while numbers := os.read(read_end, 64):
        interrupted = None  # how often the handler had run when the last SIGINT came
        for number in numbers:
            if number == _HANDLED:
                handled += 1
            elif number == signal.SIGINT:
                interrupted = handled
        handler = signal.getsignal(signal.SIGINT)
        if interrupted is not None and handler in (_on_interrupt, signal.default_int_handler):
            _withdraw_until_main_thread_runs(interrupted)
    os.close(read_end)


def _withdraw_until_main_thread_runs(handled: int) -> None:
    """Ends the calls in which the main thread was when a signal came.

    If the handler, which had run `handled` times then, has run since, the main thread has been in
    the interpreter. By the time this thread gets to run it may be in its next step, which is not to
    be withdrawn.
    """
    back = threading.Event()

    def is_back() -> bool:
        return back.is_set() or _State.handled > handled

    asked = False
    limit = _AT_FIRST
    while True:
        asked = asked or _native.core.call_in_main_thread(back.set)
        if back.wait(limit) or not _native.core.cancel_calls(_CAUSE, is_back):
            return
        limit = _AGAIN


def _on_interrupt(number: int, frame: FrameType | None) -> None:
    """Raises KeyboardInterrupt, now or when this place may be left."""
    with contextlib.suppress(BlockingIOError):
        if _State.write_end is not None:
            os.write(_State.write_end, bytes([_HANDLED]))  # between the signals before and after
            _State.handled += 1
    if not (_must_not_be_left(frame) and _native.core.call_in_main_thread(_raise_later)):
        signal.default_int_handler(number, frame)


def _raise_later() -> None:
    caller = sys._getframe(1)
    if not (_must_not_be_left(caller) and _native.core.call_in_main_thread(_raise_later)):
        raise KeyboardInterrupt


def _must_not_be_left(frame: FrameType | None) -> bool:
    """Whether an exception is being created here, or a context manager of TensorFlow left."""
    for _ in range(_DEPTH):
        if frame is None:
            return False
        if frame.f_code.co_name == "__init__":
            return isinstance(frame.f_locals.get("self"), BaseException)
        if frame.f_code is _LEAVES:
            manager = frame.f_locals.get("self")
            return _TENSORFLOW in manager.gen.gi_code.co_filename if manager else False
        frame = frame.f_back
    return False
