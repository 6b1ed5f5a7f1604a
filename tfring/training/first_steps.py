"""Checks the first steps of a job: do the ranks train the same weights, on different data?

Ranks that begin with different weights train different models. Ranks that get the same batches do
the same work N times. No collective fails then, so nothing else would report it.

- At the second reduction of a list of variables each rank sends a hash and a few elements of each
  variable. If weights differ, every rank raises. It is the second reduction because Horovod scripts
  broadcast after their first step. The check runs again at the tenth and the hundredth: one rank
  alone may have loaded a state, or skipped a step.
- At the second, third and fourth reduction each rank sends a hash of some small gradients. If they
  were equal on all ranks each time, rank 0 warns once.

A traced function runs no Python in its later steps. So its graph has a counter, and a conditional
that runs both checks, by one allgather, in these steps only. Ranks count by the name of the
reduction and the shapes of its variables. They begin at 0 again in a new generation, which may have
new ranks, and after a join. In the reduction itself each rank says if it skips the check, and the
ranks check only if none does. So no rank waits for one that has counted differently. There is no
check in functions that XLA compiles, in TF1 graphs and in tf.distribute strategies.
TFRING_CHECK_START=0 turns the check off.
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
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfring.collectives import allgather
from tfring.ops import reduce_ops, xla
from tfring.ops.kept_number import KeptNumber
from tfring.runtime import process_sets, topology
from tfring.runtime.settings.environment import read_settings
from tfring.training.comparison.hashes import value_of
from tfring.training.local_variables import variable_key
from tfring.training.value_names import variable_name

_log = logging.getLogger("tfring")

_COMPARED = (2, 10, 100)  # reductions at which weights are compared
_GRADIENTS_OF = (2, 3, 4)  # reductions at which gradients are compared
_UNKNOWN = 1000.0  # the count for a counter whose key is not known
_PROCESS = uuid.uuid4().hex
_ELEMENTS = 8  # elements sent of each variable
# What each rank says in the reduction; it stands among the variables. 16 bits are enough for it.
WIRE = tf.TensorSpec([2], tf.float32, "look_at_first_steps")
_HEAD, _ROW = 3, 1 + _ELEMENTS + 2  # a hash, elements, their sum, the sum of absolute values
# Relative to the largest element: different processors round differently, and the difference grows.
_ROUNDING, _LATER = 1e-4, 1e-3
_SMALL = 4096  # the most elements of a gradient that is hashed
_GRADIENTS = 3  # gradients that are hashed
_VARIED = 4  # different elements that they need: a single number may be equal by chance


class _State:
    """The counts of this process since its generation began."""

    def __init__(self) -> None:
        self.lock = threading.Lock()  # guards `traced`, `same` and `warned`
        # Key: process set, name of the reduction ("" in eager mode), kinds of the variables.
        self.eager: dict[Any, int] = {}
        self.traced: set[Any] = set()  # keys that have a _counter
        self.same: dict[Any, int] = {}  # successive steps with the same gradients
        self.own: set[Any] = set()  # keys of this rank's own variables
        self.broadcast_comes = False
        self.warned = False

    def begin(self, process_set_id: int = 0) -> None:
        """Restarts the counts, for one process set or, with 0, for all."""

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
    """Says whether the program will broadcast weights after its first batches."""
    _state.broadcast_comes = comes


def leave_out(variables: Iterable[Any]) -> None:
    """Names variables that differ between ranks on purpose, even if their gradients are reduced."""
    _state.own.update(variable_key(v) for v in variables)


def ask(
    variables: Sequence[Any], name: str, members: Any, op: int, *, from_first: bool = False
) -> Asked | None:
    """Returns what this rank says in a reduction, or None if no rank says anything.

    Args:
        variables: one per gradient, in the same order on all ranks.
        name: of the reduction's collectives.
        members: the process set that reduces; includes this rank.
        op: the reduce operation.
        from_first: compare the weights at the first reduction, too. Else a program may broadcast
            them after it.
    """
    compares = (1, *_COMPARED) if from_first else _COMPARED
    # No tensors: they are new objects in every step.
    compared = [v for v in variables if hasattr(v, "assign")]
    if not compared or op not in (reduce_ops.Average, reduce_ops.Sum) or topology.always_alone():
        return None
    # Ranks agree on these. They need not agree on which objects were reduced before: one rank may
    # have loaded its model twice. A tape's calls in eager mode have new names each time.
    its = hashlib.sha1(repr([(v.dtype, str(v.shape)) for v in compared]).encode()).hexdigest()
    eager = tf.executing_eagerly()
    key = (process_sets.checked_id(members), "" if eager else name, its)
    if eager:
        number = _state.eager.get(key, 0) + 1
        looks = (number in compares, number in _GRADIENTS_OF)
        said = [float(not each) for each in looks] if any(looks) and _wanted() else [1.0, 1.0]
        return Asked(key, compared, name, members, number, tf.constant(said), compares)
    if not _wanted():
        return Asked(key, compared, name, members, None, tf.ones([2]), compares)
    with _state.lock, tf.init_scope():
        if key not in _state.traced:
            _state.traced.add(key)
            _counter(key).set(0.0)
    with tf.device("CPU:0"):
        number = _counter(key).get() + 1
        said = ~tf.stack([_is_one_of(number, compares), _is_one_of(number, _GRADIENTS_OF)])
        return Asked(key, compared, name, members, number, tf.cast(said, tf.float32), compares)


@dataclasses.dataclass(frozen=True)
class Asked:
    """Whether this rank checks one reduction.

    Attributes:
        key: of the count.
        variables: one per gradient.
        name: of the reduction.
        members: the process set that reduces.
        number: of the reduction; None if this rank does not check it.
        said: 1.0 if this rank does not compare weights, else 0.0; the same for gradients.
        compares: the reductions at which weights are compared.
    """

    key: Any
    variables: Sequence[Any]
    name: str
    members: Any
    number: Any
    said: Any
    compares: Sequence[int]

    def look(self, gradients: Sequence[Any], reduced: Sequence[Any], answers: Any) -> None:
        """Checks one step's gradients and variables, if all ranks do.

        Call it between the reduction and the update. A reduction that fails is not counted.

        Args:
            gradients: what this rank has reduced, None where there is none.
            reduced: the results; None is None on all ranks.
            answers: what the ranks have said, reduced.

        Raises:
            RuntimeError: in eager mode: the ranks have different weights. A graph raises when it
                runs: tf.errors.UnknownError with the same text, or AbortedError if another rank was
                first.
        """
        if self.number is None:
            return
        look, samples = _Look(self.key, self.variables), _samples(gradients)
        numbers = {*self.compares, *_GRADIENTS_OF}
        if tf.executing_eagerly():
            _state.eager[self.key] = self.number
            if self.number in numbers and 0 in (said := answers.numpy()):
                weights = [None if said[0] else value_of(v) for v in self.variables]
                mine = look.describe(said, self.number, *weights, *(s.numpy() for s in samples))
                look.judge(said, self._gathered(mine).numpy())
            return
        # The branch reads the variables, so TensorFlow lets no later op update them first.
        held = [v if isinstance(v, tf.Variable) else v.value for v in self.variables]
        results = [g.values if isinstance(g, tf.IndexedSlices) else g for g in reduced]

        def looked() -> Any:
            given = [answers, self.number, *(v.read_value() for v in held), *samples]
            mine = tf.numpy_function(look.describe, given, tf.int64)
            everywhere = self._gathered(tf.ensure_shape(mine, [None]))
            done = tf.numpy_function(look.judge, [answers, everywhere], tf.bool)
            return tf.ensure_shape(done, [])

        def nothing() -> Any:
            return tf.constant(True)

        def looked_if_all_do() -> Any:
            # The answers may be in GPU memory, so only these steps read them.
            return tf.cond(tf.reduce_any(tf.equal(answers, 0)), looked, nothing)

        with tf.device("CPU:0"):
            tf.cond(_is_one_of(self.number, sorted(numbers)), looked_if_all_do, nothing)
            with tf.control_dependencies([result for result in results if result is not None]):
                _counter(self.key).set(self.number)

    def _gathered(self, mine: Any) -> Any:
        name = f"{self.name}.start"
        return allgather.allgather(
            mine, name=name, ignore_name_scope=True, process_set=self.members
        )


def _is_one_of(number: Any, numbers: Sequence[int]) -> Any:
    return tf.reduce_any(tf.equal(number, np.array(numbers, np.float32)))


def _wanted() -> bool:
    try:
        # An elastic job may trace a step with one rank, and grow later.
        several = topology.size() > 1 or topology.slot() is not None
    except topology.NotInitializedError:  # the reduction raises it
        return False
    if not several or tf.distribute.has_strategy() or xla.compiling():
        return False
    with tf.init_scope():
        in_graph = not tf.executing_eagerly()  # a TF1 graph
    return not in_graph and read_settings(os.environ).check_start


def _counter(key: Any) -> KeptNumber:
    """Returns how many reductions graphs have counted under a key.

    A function that another process saved has an unknown key. Its steps are not checked, because the
    Python of the check does not exist here.
    """
    return KeptNumber(f"{_PROCESS} {key!r}", _UNKNOWN)


class _Look:
    """What a rank sends of its weights and gradients, and what follows from that of all ranks.

    It holds no tensor of a graph, because TensorFlow never lets go of it and of what it holds.
    """

    def __init__(self, key: Any, variables: Sequence[Any]) -> None:
        self._weights, self._batches = _Weights(variables), _Batches(key)

    def describe(self, answers: Any, number: Any, *values: Any) -> Any:
        """Returns what this rank sends: of weights, of gradients or of both, as all ranks compare.

        Args:
            answers: of all ranks; they are the same everywhere.
            number: of the reduction.
            values: of the variables, and then samples of gradients.
        """
        count = len(self._weights.variables)
        mine = []
        if answers[0] == 0:
            mine.append(self._weights.describe(number, *values[:count]))
        if answers[1] == 0:
            mine.append(self._batches.describe(*values[count:]))
        return np.concatenate(mine)

    def judge(self, answers: Any, everywhere: Any) -> Any:
        """Judges what all ranks have sent.

        It ignores what has another size: the reduction itself handles ranks that have other
        variables, or that have joined.
        """
        weights, gradients = answers[0] == 0, answers[1] == 0
        each = self._weights.size * weights + gradients
        if everywhere.size % each == 0:
            rows = everywhere.reshape(-1, each)
            if weights:
                self._weights.judge(rows[:, : self._weights.size])
            if gradients:
                self._batches.judge(rows[:, -1])
        return np.bool_(True)


class _Weights:
    """Compares the values of variables over the ranks."""

    def __init__(self, variables: Sequence[Any]) -> None:
        self.variables = list(variables)
        self.size = _HEAD + _ROW * len(self.variables)  # of what a rank sends

    def describe(self, number: Any, *values: Any) -> Any:
        """Returns this rank's part: its rank, and a hash and some elements of each value.

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

    def judge(self, parts: Any) -> None:
        """Raises RuntimeError if the ranks' variables differ by more than rounding.

        Horovod scripts get a warning: they may take several steps on a first batch and broadcast
        after it. `parts` has a row for each rank.
        """
        if parts[:, 1].any():
            return
        later = parts[0, 2] > _COMPARED[0]
        rows = parts[:, _HEAD:].reshape(len(parts), len(self.variables), _ROW)
        rounding = _LATER if later else _ROUNDING
        found = [p for p in range(len(self.variables)) if _differ(rows[:, p], rounding)]
        if not found:
            return
        position = found[0]
        name = variable_name(self.variables[position])
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
            f"rank {topology.rank()}: the ranks train different weights: {where} of '{name}' is "
            f"{numbers[0, at]:.9g} on rank {ranks[0]} and {numbers[other, at]:.9g} on rank "
            f"{ranks[other]}.{more}\n"
            f"{_CHANGED if later else _BEGUN} If a variable should differ between ranks, give it "
            "to register_local_var of the optimizer, or to register_local_source of the tape. "
            "TFRING_CHECK_START=0 turns this check off."
        )
        if "horovod" not in sys.modules:
            raise RuntimeError(text)
        if topology.rank() == 0:
            _log.warning("%s", text)


_BEGUN = (
    "Add callbacks=hvd.fit_callbacks() to model.fit, or call "
    "hvd.broadcast_variables(model.weights, 0) before the first step. A model without keras.Input "
    "has no weights before that step: build it first."
)
_CHANGED = (
    "They were equal at first. Whatever changes weights or the learning rate (a callback, a "
    "loaded state, a skipped step) must do so on all ranks; otherwise call "
    "hvd.broadcast_variables(model.weights, 0) after it."
)


def _places(size: int) -> Any:
    return np.unique(np.linspace(0, size - 1, min(size, _ELEMENTS)).astype(np.int64))


def _differ(rows: Any, rounding: float) -> bool:
    """Returns whether a variable differs between ranks by more than rounding."""
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
    """Returns a few small gradients: the first that the backward pass computes."""
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
        """Returns a hash of these gradients; 0 if they cannot tell batches apart."""
        crc, varied = 0, 0
        for sample in samples:
            values = np.ascontiguousarray(sample).reshape(-1)
            crc = zlib.crc32(values.view(np.uint8).data, crc)
            numbers = values.astype(np.float64)
            varied += len(np.unique(numbers[np.isfinite(numbers) & (numbers != 0)]))
        return np.array([crc if varied >= _VARIED else 0], np.int64)

    def judge(self, everywhere: Any) -> None:
        """Warns on rank 0 if all ranks had the same gradients each time so far."""
        same = len(everywhere) > 1 and everywhere[0] != 0 and (everywhere == everywhere[0]).all()
        with _state.lock:
            seen = _state.same[self.key] = _state.same.get(self.key, 0) + 1 if same else 0
            if seen < len(_GRADIENTS_OF) or _state.warned:
                return
            _state.warned = True
        if topology.rank() == 0:
            _log.warning(
                "all %d ranks have computed the same gradients in their first steps, so they "
                "probably train on the same batches. If so, each step is done %d times and "
                "training is not faster.\n"
                "Give each rank its own part of the data: model.fit(hvd.shard((x, y), "
                "batch_size=32), ...), or hvd.shard_batches(dataset) for a dataset of batches. "
                "TFRING_CHECK_START=0 turns this check off.",
                len(everywhere),
                len(everywhere),
            )
