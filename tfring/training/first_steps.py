"""Looks at the first steps of a job: do the ranks train the same weights, with different data?

Ranks that begin with different weights train different models, and ranks that get the same batches
do the same work N times. Neither is an error of a collective, so nothing else would say it.

- At the second reduction of a list of variables each rank sends a hash and a few elements of each
  variable. Different weights are an error on every rank. It is the second one because programs for
  Horovod broadcast after their first step. The same at the tenth and the hundredth: a rank alone
  may have loaded a state, or have left out a step.
- At the second, third and fourth reduction each rank sends a hash of some small gradients. If they
  were equal on all ranks each time, rank 0 warns once.

A traced function runs no Python in its later steps. There a counter stands in the graph, and a
conditional whose branch is taken in these steps only. All ranks count alike: by the name of the
reduction and the shapes of its variables. They begin at 0 again in a new generation, which may have
new ranks, and after a join, before which ranks took different numbers of steps. Functions that XLA
compiles, TF1 graphs and tf.distribute strategies are left out. TFRING_CHECK_START=0 switches it
off.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import uuid
import zlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfring import process_sets, topology
from tfring.collectives import allgather
from tfring.comparison.hashes import name_of, value_of
from tfring.config import read_settings
from tfring.ops import xla
from tfring.training.local_variables import variable_key

_log = logging.getLogger("tfring")

_COMPARED = (2, 10, 100)  # the reductions at which weights are compared
_GRADIENTS_OF = (2, 3, 4)  # those of which gradients are compared
_UNKNOWN = 1000  # what a counter that is not in the table has counted
_ELEMENTS = 8  # elements of each variable that are sent
_HEAD, _ROW = 3, 1 + _ELEMENTS
# Relative to the largest element: processors of other kinds round differently, and it grows.
_ROUNDING, _LATER = 1e-4, 1e-3
_SMALL = 4096  # elements of a gradient that is hashed
_GRADIENTS = 3  # gradients that are hashed
_VARIED = 4  # different elements that they need: a single number may be equal by chance


class _State:
    """What this process has counted since its generation began."""

    def __init__(self) -> None:
        self.lock = threading.Lock()  # guards everything below
        # By process set, name of the reduction ("" in eager mode), and the variables' kinds.
        self.eager: dict[Any, int] = {}
        self.traced: set[Any] = set()  # these have a _Counter
        self.same: dict[Any, int] = {}  # successive steps with the same gradients
        self.own: set[Any] = set()  # keys of variables that are this rank's own
        self.broadcast_comes = False
        self.warned = False

    def begin(self, process_set_id: int = 0) -> None:
        """Begins to count anew, for one process set or, with 0, for all."""

        def begins(key: Any) -> bool:
            return process_set_id in (0, key[0])

        with self.lock:
            for counts in (self.eager, self.same):
                for key in filter(begins, list(counts)):
                    del counts[key]
            traced = list(filter(begins, self.traced))
        with tf.init_scope():
            for key in traced:
                _Counter(key).set(np.int64(0))


_state = _State()
topology.on_begin_together(_state.begin)


def broadcast_comes(comes: bool) -> None:
    """Says whether the program will give all ranks the same weights after its first batches."""
    _state.broadcast_comes = comes


def leave_out(variables: Iterable[Any]) -> None:
    """Names variables that are each rank's own, though their gradients may be reduced."""
    _state.own.update(variable_key(v) for v in variables)


def look(
    gradients: Sequence[Any],
    variables: Sequence[Any],
    reduced: Sequence[Any],
    name: str,
    members: Any,
) -> None:
    """Looks at one step's gradients and variables, if it is one of the first.

    To be called between the reduction and the update. A reduction that fails is counted on no rank,
    so that all count alike.

    Args:
        gradients: what this rank has reduced, None where there is none.
        variables: what they belong to, in the same order on all ranks.
        reduced: the results; those that are None are None on all ranks.
        name: what the collectives of this reduction are called.
        members: the process set that reduces; this rank is in it.

    Raises:
        RuntimeError: in eager mode: the ranks have different weights. A graph raises, when it runs,
            tf.errors.UnknownError with the same text, or AbortedError where another rank was first.
    """
    # Not a tensor: it is another one in every step.
    compared = [v for v in variables if hasattr(v, "assign")]
    results = [g.values if isinstance(g, tf.IndexedSlices) else g for g in reduced]
    results = [result for result in results if result is not None]
    if not compared or not results:
        return
    eager = tf.executing_eagerly()
    # Ranks agree on these. They need not on which objects have been reduced before: one of them may
    # have loaded its model a second time. The calls of a tape in eager mode have new names each.
    its = tuple((v.dtype, str(v.shape)) for v in compared)
    key = (process_sets.checked_id(members), "" if eager else name, its)
    if eager:
        _look_now(key, _Weights(compared), gradients, name, members)
    elif _wanted():
        _look_in_graph(key, _Weights(compared), _samples(gradients), results, name, members)


def _look_now(key: Any, judge: _Weights, gradients: Sequence[Any], name: str, members: Any) -> None:
    number = _state.eager[key] = _state.eager.get(key, 0) + 1
    if number not in {*_COMPARED, *_GRADIENTS_OF} or not _wanted():
        return
    if number in _COMPARED:
        mine = judge.describe(number, *map(value_of, judge.variables))
        judge.judge(_gathered(mine, f"{name}.start", members).numpy())
    if number not in _GRADIENTS_OF:
        return
    batches = _Batches(key)
    mine = batches.describe(*(sample.numpy() for sample in _samples(gradients)))
    batches.judge(_gathered(mine, f"{name}.batches", members).numpy())


def _look_in_graph(
    key: Any,
    judge: _Weights,
    samples: Sequence[Any],
    results: Sequence[Any],
    name: str,
    members: Any,
) -> None:
    with _state.lock, tf.init_scope():
        if key not in _state.traced:
            _state.traced.add(key)
            _Counter(key).set(np.int64(0))
    # The branch reads the variables, so that TensorFlow lets no later op update them before.
    held = [v if isinstance(v, tf.Variable) else v.value for v in judge.variables]
    with tf.device("CPU:0"):
        counter = _Counter(key)
        number = counter.get() + 1
        done = _in_graph(
            _is_one_of(number, _COMPARED),
            judge,
            lambda: [number, *(v.read_value() for v in held)],
            f"{name}.start",
            members,
        )
        with tf.control_dependencies(results):
            counter.set(number)
        some = _is_one_of(number, _GRADIENTS_OF)
        # A rank that waited in this collective when another one raises would not say why.
        with tf.control_dependencies([done]):
            _in_graph(some, _Batches(key), lambda: samples, f"{name}.batches", members)


def _is_one_of(number: Any, numbers: Sequence[int]) -> Any:
    return tf.reduce_any(tf.equal(number, np.array(numbers, np.int64)))


def _wanted() -> bool:
    try:
        # A rank may be alone in an elastic job when it traces a step, and later not.
        several = topology.size() > 1 or topology.slot() is not None
    except topology.NotInitializedError:  # the reduction says so
        return False
    if not several or tf.distribute.has_strategy() or xla.compiling():
        return False
    with tf.init_scope():
        in_graph = not tf.executing_eagerly()  # of TF1
    return not in_graph and read_settings(os.environ).check_start


class _Counter:
    """A number in a table that the graph itself looks up.

    A tf.Variable would be captured, and a function that captures a variable of nobody's cannot be
    saved. Where one is loaded that another process has saved, its key is not in the table, and its
    steps are not looked at: the Python of that look is not there.
    """

    _process = uuid.uuid4().hex

    def __init__(self, key: Any) -> None:
        self._key = f"{self._process} {key!r}"
        with tf.device("CPU:0"):
            self._table = tf.raw_ops.MutableHashTableV2(
                key_dtype=tf.string, value_dtype=tf.int64, shared_name="tfring.first_steps"
            )

    def get(self) -> Any:
        return tf.raw_ops.LookupTableFindV2(
            table_handle=self._table, keys=self._key, default_value=np.int64(_UNKNOWN)
        )

    def set(self, value: Any) -> None:
        tf.raw_ops.LookupTableInsertV2(table_handle=self._table, keys=self._key, values=value)


def _gathered(mine: Any, name: str, members: Any) -> Any:
    return allgather.allgather(mine, name=name, ignore_name_scope=True, process_set=members)


def _in_graph(
    condition: Any, what: Any, tensors: Callable[[], Sequence[Any]], name: str, members: Any
) -> Any:
    """Describes, gathers and judges in a branch that is taken where `condition` holds."""

    def judge(everywhere: Any) -> Any:
        what.judge(everywhere)
        return np.bool_(True)

    def taken() -> Any:
        mine = tf.numpy_function(what.describe, tensors(), tf.int64)
        everywhere = _gathered(tf.ensure_shape(mine, [None]), name, members)
        return tf.ensure_shape(tf.numpy_function(judge, [everywhere], tf.bool), [])

    return tf.cond(condition, taken, lambda: tf.constant(True))


class _Weights:
    """Compares the values of variables over the ranks."""

    def __init__(self, variables: Sequence[Any]) -> None:
        self.variables = list(variables)

    def describe(self, number: Any, *values: Any) -> Any:
        """Returns this rank's part: who it is, and a hash and some elements of each value.

        Args:
            number: of the reduction.
            values: of the variables.
        """
        rows = [np.array([topology.rank(), _state.broadcast_comes, number], np.int64)]
        for variable, given in zip(self.variables, values, strict=True):
            if variable_key(variable) in _state.own:
                rows.append(np.zeros(_ROW, np.int64))
                continue
            value = np.ascontiguousarray(given).reshape(-1)
            elements = np.zeros(_ELEMENTS)
            places = _places(value.size)
            if value.dtype.kind != "c":
                elements[: len(places)] = value[places].astype(np.float64)
            crc = zlib.crc32(value.view(np.uint8).data)
            rows += [np.array([crc], np.int64), elements.view(np.int64)]
        return np.concatenate(rows)

    def judge(self, everywhere: Any) -> None:
        """Raises RuntimeError if the ranks' variables differ by more than rounding.

        Ranks that have other variables, or that have joined, are left to the reduction itself.
        Scripts of Horovod get a warning: they may broadcast later, after a first batch of which
        they have made several steps.
        """
        each = _HEAD + _ROW * len(self.variables)
        if everywhere.size % each:
            return
        parts = everywhere.reshape(-1, each)
        if parts[:, 1].any():
            return
        later = parts[0, 2] > _COMPARED[0]
        rows = parts[:, _HEAD:].reshape(len(parts), len(self.variables), _ROW)
        rounding = _LATER if later else _ROUNDING
        found = [p for p in range(len(self.variables)) if _differ(rows[:, p], rounding)]
        if not found:
            return
        position = found[0]
        name = name_of(self.variables[position])
        elements = rows[:, position, 1:].copy().view(np.float64)
        other = next(i for i in range(len(rows)) if (elements[i] != elements[0]).any())
        at = int(np.argmax(elements[other] != elements[0]))
        shape = tf.TensorShape(self.variables[position].shape)
        place = _places(shape.num_elements())[at]
        ranks = parts[:, 0]
        more = f" {len(found) - 1} more variables differ." if len(found) > 1 else ""
        text = (
            f"rank {topology.rank()}: the ranks train different weights: element {place} of "
            f"'{name}' is {elements[0, at]:.9g} on rank {ranks[0]} and {elements[other, at]:.9g} "
            f"on rank {ranks[other]}.{more}\n{_CHANGED if later else _BEGUN} A variable that is "
            "each rank's own goes into register_local_var. TFRING_CHECK_START=0 leaves this check "
            "out."
        )
        if "horovod" not in sys.modules:
            raise RuntimeError(text)
        if topology.rank() == 0:
            _log.warning("%s", text)


_BEGUN = (
    "Add callbacks=hvd.fit_callbacks() to model.fit, or call "
    "hvd.broadcast_variables(model.weights, 0) before the first step."
)
_CHANGED = (
    "They were equal at first. What changes weights or the learning rate (a callback, a state that "
    "is loaded, a step that is left out) must do so on all ranks, or "
    "hvd.broadcast_variables(model.weights, 0) has to follow."
)


def _places(size: int) -> Any:
    return np.unique(np.linspace(0, size - 1, min(size, _ELEMENTS)).astype(np.int64))


def _differ(rows: Any, rounding: float) -> bool:
    """Returns whether a variable has other bits on some rank, and not by rounding only."""
    if (rows[:, 0] == rows[0, 0]).all():
        return False
    elements = rows[:, 1:].copy().view(np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        apart = np.abs(elements - elements[0]).max()
        return bool(apart > rounding * max(np.abs(elements).max(), np.finfo(np.float64).tiny))


def _samples(gradients: Sequence[Any]) -> list[Any]:
    """Returns a few small gradients, the first that the backward pass computes."""
    small = [
        gradient
        for gradient in reversed(gradients)
        if isinstance(gradient, tf.Tensor)
        and gradient.dtype.is_floating
        and 1 <= (gradient.shape.num_elements() or 0) <= _SMALL
    ]
    return small[:_GRADIENTS]


class _Batches:
    """Notices that the ranks compute the same gradients, step after step."""

    def __init__(self, key: Any) -> None:
        self.key = key

    def describe(self, *samples: Any) -> Any:
        """Returns a hash of these gradients; 0 if they do not tell batches apart."""
        crc, varied = 0, 0
        for sample in samples:
            values = np.ascontiguousarray(sample).reshape(-1)
            crc = zlib.crc32(values.view(np.uint8).data, crc)
            numbers = values.astype(np.float64)
            varied += len(np.unique(numbers[np.isfinite(numbers) & (numbers != 0)]))
        return np.array([crc if varied >= _VARIED else 0], np.int64)

    def judge(self, everywhere: Any) -> None:
        """Warns on rank 0 when all ranks had the same gradients each time so far."""
        same = len(everywhere) > 1 and everywhere[0] != 0 and (everywhere == everywhere[0]).all()
        with _state.lock:
            seen = _state.same[self.key] = _state.same.get(self.key, 0) + 1 if same else 0
            if seen < len(_GRADIENTS_OF) or _state.warned:
                return
            _state.warned = True
        if topology.rank() == 0:
            _log.warning(
                "all %d ranks compute the same gradients: they train on the same batches, so each "
                "step is done %d times and training is not faster. Give each rank its own part of "
                "the data: model.fit(hvd.shard((x, y), batch_size=32), ...), or "
                "hvd.shard_batches(dataset) of batches.",
                len(everywhere),
                len(everywhere),
            )
