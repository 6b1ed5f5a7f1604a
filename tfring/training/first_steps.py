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
conditional whose branch is taken in these steps only. Ranks count by the name of the reduction and
the shapes of its variables, from 0 again in a new generation, which may have new ranks, and after a
join. Each rank says in the reduction itself whether it does not look, and all look if none has said
so: a rank never waits for one that has counted otherwise. Functions that XLA compiles, TF1 graphs
and tf.distribute strategies do not look. TFRING_CHECK_START=0 switches it off.
"""

from __future__ import annotations

import dataclasses
import hashlib
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

from tfring.collectives import allgather
from tfring.ops import reduce_ops, xla
from tfring.ops.kept_number import KeptNumber
from tfring.runtime import process_sets, topology
from tfring.runtime.settings.environment import read_settings
from tfring.training.comparison.hashes import name_of, value_of
from tfring.training.local_variables import variable_key

_log = logging.getLogger("tfring")

_COMPARED = (2, 10, 100)  # the reductions at which weights are compared
_GRADIENTS_OF = (2, 3, 4)  # those of which gradients are compared
_UNKNOWN = 1000.0  # what a counter whose key is not known has counted
_PROCESS = uuid.uuid4().hex
_ELEMENTS = 8  # elements of each variable that are sent
# What each rank says in the reduction; it stands among the variables. 16 bits are enough for it.
WIRE = tf.TensorSpec([2], tf.float32, "look_at_first_steps")
_HEAD, _ROW = 3, 1 + _ELEMENTS + 2  # a hash, elements, their sum, that of absolute values
# Relative to the largest element: processors of other kinds round differently, and it grows.
_ROUNDING, _LATER = 1e-4, 1e-3
_SMALL = 4096  # elements of a gradient that is hashed
_GRADIENTS = 3  # gradients that are hashed
_VARIED = 4  # different elements that they need: a single number may be equal by chance


class _State:
    """What this process has counted since its generation began."""

    def __init__(self) -> None:
        self.lock = threading.Lock()  # guards `traced`, `same` and `warned`
        # By process set, name of the reduction ("" in eager mode), and the variables' kinds.
        self.eager: dict[Any, int] = {}
        self.traced: set[Any] = set()  # these have a _counter
        self.same: dict[Any, int] = {}  # successive steps with the same gradients
        self.own: set[Any] = set()  # keys of variables that are this rank's own
        self.broadcast_comes = False
        self.warned = False

    def begin(self, process_set_id: int = 0) -> None:
        """Begins to count anew, for one process set or, with 0, for all."""

        def begins(key: Any) -> bool:
            return process_set_id in (0, key[0])

        self.broadcast_comes = False
        with self.lock:
            for counts in (self.eager, self.same):
                for key in filter(begins, list(counts)):
                    del counts[key]
            traced = list(filter(begins, self.traced))
        with tf.init_scope():
            for key in traced:
                _counter(key).set(0.0)


_state = _State()
topology.on_begin_together(_state.begin)


def broadcast_comes(comes: bool) -> None:
    """Says whether the program will give all ranks the same weights after its first batches."""
    _state.broadcast_comes = comes


def leave_out(variables: Iterable[Any]) -> None:
    """Names variables that are each rank's own, though their gradients may be reduced."""
    _state.own.update(variable_key(v) for v in variables)


def ask(variables: Sequence[Any], name: str, members: Any, op: int) -> Asked | None:
    """Returns what this rank says in a reduction, or None if none says anything.

    Args:
        variables: of the gradients, in the same order on all ranks.
        name: what the collectives of this reduction are called.
        members: the process set that reduces; this rank is in it.
        op: the reduce operation.
    """
    # Not a tensor: it is another one in every step.
    compared = [v for v in variables if hasattr(v, "assign")]
    if not compared or op not in (reduce_ops.Average, reduce_ops.Sum) or topology.always_alone():
        return None
    # Ranks agree on these. They need not on which objects have been reduced before: one of them may
    # have loaded its model a second time. The calls of a tape in eager mode have new names each.
    its = hashlib.sha1(repr([(v.dtype, str(v.shape)) for v in compared]).encode()).hexdigest()
    eager = tf.executing_eagerly()
    key = (process_sets.checked_id(members), "" if eager else name, its)
    if eager:
        number = _state.eager.get(key, 0) + 1
        looks = (number in _COMPARED, number in _GRADIENTS_OF)
        said = [float(not each) for each in looks] if any(looks) and _wanted() else [1.0, 1.0]
        return Asked(key, compared, name, members, number, tf.constant(said))
    if not _wanted():
        return Asked(key, compared, name, members, None, tf.ones([2]))
    with _state.lock, tf.init_scope():
        if key not in _state.traced:
            _state.traced.add(key)
            _counter(key).set(0.0)
    with tf.device("CPU:0"):
        number = _counter(key).get() + 1
        said = ~tf.stack([_is_one_of(number, _COMPARED), _is_one_of(number, _GRADIENTS_OF)])
        return Asked(key, compared, name, members, number, tf.cast(said, tf.float32))


@dataclasses.dataclass(frozen=True)
class Asked:
    """Whether this rank is to look at one reduction.

    Attributes:
        key: by which it counts.
        variables: what the gradients belong to.
        name: of the reduction.
        members: the process set that reduces.
        number: of the reduction; None if this rank does not look.
        said: 1.0 if it does not compare weights, else 0.0; the same for gradients.
    """

    key: Any
    variables: Sequence[Any]
    name: str
    members: Any
    number: Any
    said: Any

    def look(self, gradients: Sequence[Any], reduced: Sequence[Any], answers: Any) -> None:
        """Looks at one step's gradients and variables, if all ranks are to.

        To be called between the reduction and the update. A reduction that fails is not counted.

        Args:
            gradients: what this rank has reduced, None where there is none.
            reduced: the results; those that are None are None on all ranks.
            answers: what the ranks have said, reduced.

        Raises:
            RuntimeError: in eager mode: the ranks have different weights. A graph raises, when it
                runs, tf.errors.UnknownError with the same text, or AbortedError where another rank
                was first.
        """
        if self.number is None:
            return
        judge, batches = _Weights(self.variables), _Batches(self.key)
        if tf.executing_eagerly():
            _state.eager[self.key] = self.number
            if self.number in _COMPARED and answers[0] == 0:
                mine = judge.describe(self.number, *map(value_of, self.variables))
                judge.judge(self._gathered(mine, "start").numpy())
            if self.number in _GRADIENTS_OF and answers[1] == 0:
                mine = batches.describe(*(sample.numpy() for sample in _samples(gradients)))
                batches.judge(self._gathered(mine, "batches").numpy())
            return
        # The branch reads the variables, so that TensorFlow lets no later op update them before.
        held = [v if isinstance(v, tf.Variable) else v.value for v in self.variables]
        samples = _samples(gradients)
        results = [g.values if isinstance(g, tf.IndexedSlices) else g for g in reduced]
        with tf.device("CPU:0"):
            done = self._in_graph(
                _is_one_of(self.number, _COMPARED),
                lambda: answers[0],
                judge,
                lambda: [self.number, *(v.read_value() for v in held)],
                "start",
            )
            with tf.control_dependencies([result for result in results if result is not None]):
                _counter(self.key).set(self.number)
            # A rank that waited in this collective when another one raises would not say why.
            with tf.control_dependencies([done]):
                some = _is_one_of(self.number, _GRADIENTS_OF)
                self._in_graph(some, lambda: answers[1], batches, lambda: samples, "batches")

    def _gathered(self, mine: Any, what: str) -> Any:
        name = f"{self.name}.{what}"
        return allgather.allgather(
            mine, name=name, ignore_name_scope=True, process_set=self.members
        )

    def _in_graph(
        self,
        condition: Any,
        answer: Callable[[], Any],
        judge: Any,
        tensors: Callable[[], Sequence[Any]],
        what: str,
    ) -> Any:
        """Describes, gathers and judges where `condition` holds and no rank has said no."""

        def judged(everywhere: Any) -> Any:
            judge.judge(everywhere)
            return np.bool_(True)

        def taken() -> Any:
            mine = tf.numpy_function(judge.describe, tensors(), tf.int64)
            everywhere = self._gathered(tf.ensure_shape(mine, [None]), what)
            return tf.ensure_shape(tf.numpy_function(judged, [everywhere], tf.bool), [])

        def nothing() -> Any:
            return tf.constant(True)

        # The answer may be in a GPU's memory: it is read in these steps only.
        return tf.cond(condition, lambda: tf.cond(tf.equal(answer(), 0), taken, nothing), nothing)


def _is_one_of(number: Any, numbers: Sequence[int]) -> Any:
    return tf.reduce_any(tf.equal(number, np.array(numbers, np.float32)))


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


def _counter(key: Any) -> KeptNumber:
    """Returns how many reductions graphs have counted under a key.

    Where a function is loaded that another process has saved, its key is not known, and its steps
    are not looked at: the Python of that look is not there.
    """
    return KeptNumber(f"{_PROCESS} {key!r}", _UNKNOWN)


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
            numbers = np.zeros(_ROW - 1)
            places = _places(value.size)
            if value.dtype.kind != "c":
                numbers[: len(places)] = value[places].astype(np.float64)
                numbers[-2:] = value.sum(dtype=np.float64), np.abs(value).sum(dtype=np.float64)
            crc = zlib.crc32(value.view(np.uint8).data)
            rows += [np.array([crc], np.int64), numbers.view(np.int64)]
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
        numbers = rows[:, position, 1:].copy().view(np.float64)
        other = next(i for i in range(len(rows)) if (numbers[i] != numbers[0]).any())
        at = int(np.argmax(numbers[other] != numbers[0]))
        shape = tf.TensorShape(self.variables[position].shape)
        where = "the sum"
        if at < _ELEMENTS:
            where = f"element {_places(shape.num_elements())[at]}"
        ranks = parts[:, 0]
        others = f"{len(found) - 1} more variable{'s differ' if len(found) > 2 else ' differs'}"
        more = f" {others}." if len(found) > 1 else ""
        text = (
            f"rank {topology.rank()}: the ranks train different weights: {where} of "
            f"'{name}' is {numbers[0, at]:.9g} on rank {ranks[0]} and {numbers[other, at]:.9g} on "
            f"rank {ranks[other]}.{more}\n{_CHANGED if later else _BEGUN} A variable that is each "
            "rank's own goes into register_local_var of the optimizer, or register_local_source of "
            "the tape. TFRING_CHECK_START=0 leaves this check out."
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
    numbers = rows[:, 1:].copy().view(np.float64)
    elements, sums = numbers[:, :_ELEMENTS], numbers[:, _ELEMENTS]
    smallest = np.finfo(np.float64).tiny
    with np.errstate(invalid="ignore", over="ignore"):
        apart = np.abs(elements - elements[0]).max() / max(np.abs(elements).max(), smallest)
        in_sum = np.abs(sums - sums[0]).max() / max(numbers[:, -1].max(), smallest)
    return bool(apart > rounding or in_sum > rounding)


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
                "all %d ranks have computed the same gradients in their first steps, as ranks do "
                "that train on the same batches. If so, each step is done %d times and training is "
                "not faster.\nGive each rank its own part of the data: "
                "model.fit(hvd.shard((x, y), batch_size=32), ...), or hvd.shard_batches(dataset) "
                "of batches. TFRING_CHECK_START=0 leaves this out.",
                len(everywhere),
                len(everywhere),
            )
