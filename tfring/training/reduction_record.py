"""When gradients were reduced in this process, and which of them by tapes."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from tfring.training.local_variables import variable_key


class ReductionRecord:
    """Remembers when a gradient was last reduced, and for every variable when a tape did that.

    A reduction is recorded where it is built: once per trace of a tf.function, in every step in
    eager mode. Times are counts of what was recorded. Tensors are left out: they are new objects in
    every step. Any thread may ask; keys of variables are kept as long as the process runs.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards everything below
        self._time = 0
        self._last_reduction = 0
        self._by_tape: dict[tuple[Any, int], int] = {}  # (variable, process set) -> time

    def now(self) -> int:
        """Returns a time that is earlier than that of everything recorded from here on."""
        with self._lock:
            return self._time

    def add(self) -> None:
        """Records that gradients are reduced, whatever they belong to."""
        with self._lock:
            self._time += 1
            self._last_reduction = self._time

    def add_by_tape(self, variables: Iterable[Any], process_set_id: int) -> None:
        """Records that a tape reduces gradients of these variables over a process set."""
        keys = [(key, process_set_id) for key in _keys(variables)]
        with self._lock:
            self._time += 1
            self._by_tape.update(dict.fromkeys(keys, self._time))

    def any_since(self, time: int) -> bool:
        """Returns whether any gradient was reduced after `time`."""
        with self._lock:
            return self._last_reduction > time

    def any_by_tape_since(self, variables: Iterable[Any], process_set_id: int, time: int) -> bool:
        """Returns whether a tape reduced one of them over this process set after `time`."""
        keys = [(key, process_set_id) for key in _keys(variables)]
        with self._lock:
            return any(self._by_tape.get(key, 0) > time for key in keys)


reductions = ReductionRecord()
"""The record of this process: a tape does not know which optimizer will apply its gradients."""


def _keys(variables: Iterable[Any]) -> list[Any]:
    return [variable_key(v) for v in variables if not isinstance(v, tf.Tensor)]
