"""Ends the waits of a generation that is being formed, from another thread."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Callable, Iterable, Iterator


class Cancel:
    """Gives a generation up before it has begun. Thread-safe.

    A thread that waits registers an action that ends its wait.
    """

    def __init__(self) -> None:
        """Not set."""
        # Guards what follows, and is held while an action runs: after the block that registers it,
        # none does.
        self._lock = threading.RLock()
        self._set = False
        self._actions: list[Callable[[], None]] = []

    def set(self) -> None:
        """Runs what is registered now, and at once what will be."""
        with self._lock:
            self._set = True
            for action in self._actions:
                action()

    def is_set(self) -> bool:
        """Whether set() was called."""
        return self._set

    @contextlib.contextmanager
    def runs(self, action: Callable[[], None]) -> Iterator[None]:
        """While the block runs, set() calls an action, which returns soon and raises nothing."""
        with self._lock:
            self._actions.append(action)
            if self._set:
                action()
        try:
            yield
        finally:
            with self._lock:
                self._actions.remove(action)

    @contextlib.contextmanager
    def cuts(self, descriptors: Iterable[int]) -> Iterator[None]:
        """While the block runs, set() ends connections, also of a thread that reads from them."""
        with contextlib.ExitStack() as held:
            copies = [
                held.enter_context(socket.socket(fileno=os.dup(number))) for number in descriptors
            ]

            def cut() -> None:
                for copy in copies:
                    with contextlib.suppress(OSError):  # the other end may be gone
                        copy.shutdown(socket.SHUT_RDWR)

            held.enter_context(self.runs(cut))
            yield
