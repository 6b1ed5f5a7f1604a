"""Finds where a rank is in its program, from the stacks of its threads."""

from __future__ import annotations

import re
from typing import NamedTuple

from tfring.observe.recorder.stacks import MAIN
from tfring.runtime.texts.frames import FRAME, is_users

_HEAD = re.compile(r"Thread \[(.*)\]")
_TENSORFLOW = re.compile(r"-packages/(tensorflow|keras|tf_keras)/")
# Files of the standard library, and what a thread in them waits for.
_WAITS = (
    (re.compile(r"/queue\.py$|/multiprocessing/queues\.py$"), "a queue"),
    (re.compile(r"/concurrent/futures/"), "a future"),
    (re.compile(r"/subprocess\.py$|/multiprocessing/popen_\w+\.py$"), "another process"),
    (re.compile(r"/multiprocessing/"), "another process"),
    (re.compile(r"/(socket|ssl|http/client)\.py$"), "the network"),
    (re.compile(r"/threading\.py$"), "a lock or another thread"),
)


class Frame(NamedTuple):
    """A call on a stack."""

    path: str
    line: str
    function: str

    @property
    def users(self) -> bool:
        """Whether it is code of the program and not of a library."""
        return is_users(self.path)

    def text(self) -> str:
        """Returns "next_batch (data.py:12)"."""
        return f"{self.function} ({self.path.rpartition('/')[2]}:{self.line})"


def find_place(stacks: str, kernel: str = "") -> str:
    """Returns where a rank is, as "next_batch (data.py:12), waiting for a lock"; "": unknown.

    It is the innermost line of the program in the main thread, and what that waits for. If this
    line called TensorFlow or Keras, a line of the program that TensorFlow called on its own thread
    follows, such as a generator of input.

    Args:
        stacks: Of its threads, as `take_stacks` returns them.
        kernel: Where in the kernel its main thread waits, from /proc/PID/wchan; "": unknown, or it
            runs.
    """
    threads = parse_threads(stacks)
    main = threads.pop(MAIN, [])
    here = next((i for i, frame in enumerate(main) if frame.users), None)
    parts = []
    if here is not None:
        parts.append(main[here].text() + _waiting(main[:here], kernel))
    if here is None or any(_TENSORFLOW.search(frame.path) for frame in main[:here]):
        parts += _called_by_tensorflow(threads)
    return ", and ".join(parts)


def parse_threads(stacks: str) -> dict[str, list[Frame]]:
    """Returns the frames of each thread by its name, the innermost first."""
    threads: dict[str, list[Frame]] = {}
    frames: list[Frame] = []
    for line in stacks.splitlines():
        if head := _HEAD.match(line):
            name = head[1]
            while name in threads:  # threads may have equal names
                name += "'"
            frames = threads[name] = []
        elif frame := FRAME.match(line):
            frames.append(Frame(frame[2], frame[3], frame[4]))
    return threads


def _waiting(above: list[Frame], kernel: str) -> str:
    """Returns what a thread waits for, from the frames above the program's line and the kernel."""
    for frame in reversed(above):  # the outer frame says more
        for pattern, what in _WAITS:
            if pattern.search(frame.path):
                return f", waiting for {what}"
    if above:
        return ""
    # The line itself waits in C. A thread that waits for the interpreter's lock looks the same.
    if "futex" in kernel:
        return ", waiting for a lock or another thread"
    return ", sleeping" if "nanosleep" in kernel else ""


def _called_by_tensorflow(threads: dict[str, list[Frame]]) -> list[str]:
    """Returns a line of the program in a thread that Python has not started, if there is one."""
    for frames in threads.values():
        if frames and frames[-1].path.endswith("/threading.py"):
            continue  # a thread of the program may wait for ever and harm nobody
        here = next((i for i, frame in enumerate(frames) if frame.users), None)
        if here is not None:
            where = f"in {frames[here].text()} on a thread of TensorFlow's"
            return [where + _waiting(frames[:here], "")]
    return []
