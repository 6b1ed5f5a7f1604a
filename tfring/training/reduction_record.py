"""Records which gradients this process reduced: when, over what, and whether by a tape."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from typing import Any

import tensorflow as tf

from tfring.training.local_variables import variable_key


class ReductionRecord:
    """Remembers for every variable when its gradient was last reduced, and when by a tape.

    A reduction is recorded when it is built: once per trace of a tf.function, in eager mode in
    every step. Times are counts of records. Tensors are left out: they are new objects in every
    step. What a user declares as reduced (`declare`) has no time: its function may have been traced
    at any time. Any thread may ask. The record keeps keys of variables as long as the process runs.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards everything below
        self._time = 0
        self._reduced: dict[Any, int] = {}  # variable -> time
        self._by_tape: dict[tuple[Any, int], int] = {}  # (variable, process set) -> time
        self._over: dict[Any, int] = {}  # variable -> process set of its last reduction, or _LOCAL
        self._declared: set[Any] = set()  # variables
        self._declared_kinds: set[Any] = set()  # dtypes and shapes

    def now(self) -> int:
        """Returns a time before all later records."""
        with self._lock:
            return self._time

    def add(self, variables: Iterable[Any], process_set_id: int = 0) -> None:
        """Records that the gradients of these variables are reduced over a process set."""
        keys = _keys(variables)
        with self._lock:
            self._time += 1
            self._reduced.update(dict.fromkeys(keys, self._time))
            self._over.update(dict.fromkeys(keys, process_set_id))

    def add_local(self, variables: Iterable[Any]) -> None:
        """Records that the gradients of these variables stay this rank's own."""
        keys = _keys(variables)
        with self._lock:
            self._over.update(dict.fromkeys(keys, _LOCAL))

    def add_by_tape(self, variables: Iterable[Any], process_set_id: int) -> None:
        """Records that a tape reduces gradients of these variables over a process set."""
        keys = [(key, process_set_id) for key in _keys(variables)]
        with self._lock:
            self._time += 1
            self._by_tape.update(dict.fromkeys(keys, self._time))

    def declare(self, gradients: Sequence[Any], variables: Iterable[Any] | None) -> None:
        """Records that the user's own code reduces gradients.

        Args:
            gradients: tf.Tensor, tf.IndexedSlices or None.
            variables: one per gradient; None means all variables with the dtype and shape of a
                gradient.
        """
        keys = None if variables is None else _keys(variables)
        kinds = {_kind_of(g) for g in gradients if g is not None} if keys is None else set()
        with self._lock:
            self._time += 1
            self._declared.update(keys or ())
            self._declared_kinds |= kinds

    def forget_tapes(self) -> None:
        """Forgets what tapes reduced: the program has applied or dropped it by now."""
        with self._lock:
            self._by_tape.clear()

    def is_local(self, variable: Any) -> bool:
        """Returns whether this variable's gradient stayed local the last time."""
        with self._lock:
            return self._over.get(variable_key(variable)) == _LOCAL

    def any_in_process_set(self, variables: Iterable[Any]) -> bool:
        """Returns whether one of these was last reduced over a process set that the user made."""
        with self._lock:
            return any(self._over.get(key, 0) > 0 for key in _keys(variables))

    def covers(self, variable: Any, time: int) -> bool:
        """Returns whether this variable's gradient was reduced after `time`, or declared to be."""
        key, kind = variable_key(variable), _kind_of(variable)
        with self._lock:
            declared = key in self._declared or kind in self._declared_kinds
            return declared or self._reduced.get(key, 0) > time

    def any_by_tape_since(self, variables: Iterable[Any], process_set_id: int, time: int) -> bool:
        """Returns whether a tape reduced one of them over this process set after `time`."""
        keys = [(key, process_set_id) for key in _keys(variables)]
        with self._lock:
            return any(self._by_tape.get(key, 0) > time for key in keys)


reductions = ReductionRecord()
"""The record of this process: a tape does not know which optimizer will apply its gradients."""


def mark_reduced(gradients: Any, variables: Any = None) -> Any:
    """Marks gradients that your own code has reduced over the ranks; returns them.

    For training steps that call `allreduce` themselves and then a plain optimizer. Without the
    mark, tfring's callbacks refuse a step after which a variable differs between ranks and whose
    gradient no DistributedGradientTape or DistributedOptimizer has reduced. Runs no collective. A
    DistributedOptimizer refuses marked gradients: it would reduce them again.

        gradients = hvd.grouped_allreduce(tape.gradient(loss, variables))
        gradients = hvd.mark_reduced(gradients, variables)

    Args:
        gradients: structure of tf.Tensor, tf.IndexedSlices or None.
        variables: one per gradient. Without them the mark holds for all variables with the dtype
            and shape of one of the gradients.

    Returns:
        `gradients`.
    """
    flat = tf.nest.flatten(gradients)
    reductions.declare(flat, None if variables is None else tf.nest.flatten(variables))
    for gradient in flat:
        if gradient is not None:
            setattr(gradient, REDUCED_MARK, 0)
    return gradients


_LOCAL = -1

REDUCED_MARK = "_tfring_reduced"
"""Attribute of a reduced gradient: the id of the process set that it was reduced over."""


def _keys(variables: Iterable[Any]) -> list[Any]:
    return [variable_key(v) for v in variables if not isinstance(v, tf.Tensor)]


def _kind_of(value: Any) -> Any:
    shape = value.dense_shape if isinstance(value, tf.IndexedSlices) else value.shape
    if isinstance(shape, tf.Tensor):
        shape = tf.get_static_value(shape)
    return tf.as_dtype(value.dtype).name, None if shape is None else tuple(shape)
