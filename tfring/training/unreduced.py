"""Warns about Keras optimizers that apply gradients which nothing has reduced.

A wrapped optimizer refuses them itself, and tfring's callbacks refuse an optimizer that is not
wrapped. Without either (`fit` without callbacks, train_on_batch, a custom loop) each rank would
train its own model in silence: after a forgotten tape, or with a loaded optimizer, which is a plain
one. So this module replaces the methods of Keras that apply gradients, in their classes: `apply` of
Keras 3, `apply_gradients` of Keras 2.

A program may mean it: each rank tries other parameters, or the program averages weights. So the
warning comes early only if the program has made a tape or wrapped an optimizer, or if the optimizer
has taken steps before. Otherwise it comes at the end, if the rank has reduced nothing. In graphs,
the search recognises gradients that the program's own calls reduced. In eager mode any allreduce
with as many elements as the largest variable counts as one. TFRING_CHECK_START=0 turns the warning
off.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import logging
import os
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from tfring.collectives import allreduce
from tfring.runtime import topology
from tfring.runtime.settings.environment import read_settings
from tfring.training import double_reduction, graph_search
from tfring.training.reduction_record import reductions
from tfring.training.value_names import variable_name

_log = logging.getLogger("tfring")

_REMEDY = (
    "Give compile() the result of hvd.DistributedOptimizer, or take gradients from an "
    "hvd.DistributedGradientTape. keras.saving.load_model returns a plain optimizer: use "
    "hvd.load_model, or wrap it with resumed=True"
)


class _State:
    """The state of this process. The training thread writes it."""

    expected = False  # whether the program has made a tape or an optimizer that reduces
    warned = False
    elements = 0  # of the largest variable that was updated without a reduction
    name = ""  # of that variable


_seen: weakref.WeakSet[Any] = weakref.WeakSet()  # optimizers that have applied gradients


class _Thread(threading.local):
    """The state of this thread."""

    takes_gradients = False


_thread = _Thread()


@contextlib.contextmanager
def taking_gradients() -> Iterator[None]:
    """In this context a step of Keras takes gradients with a tape that is not wrapped."""
    before, _thread.takes_gradients = _thread.takes_gradients, True
    try:
        yield
    finally:
        _thread.takes_gradients = before


def expect() -> None:
    """Notes that the program has made something that reduces gradients."""
    _State.expected = True


def watch(keras: Any) -> None:
    """Watches the optimizers of Keras 3, the module given; a second call changes nothing."""

    def make(original: Any) -> Any:
        def apply(self: Any, grads: Any, trainable_variables: Any = None) -> Any:
            grads = list(grads)
            if trainable_variables is not None:
                trainable_variables = list(trainable_variables)
            _look(self, grads, trainable_variables)
            return original(self, grads, trainable_variables)

        return apply

    _replace(keras.optimizers.Optimizer, "apply", make)


def watch_keras2(tf_keras: Any) -> None:
    """Watches the optimizers of Keras 2, new and legacy; as `watch`."""

    def make(original: Any) -> Any:
        def apply_gradients(self: Any, grads_and_vars: Any, *args: Any, **kwargs: Any) -> Any:
            pairs = list(grads_and_vars)
            _look(self, [g for g, _ in pairs], [v for _, v in pairs])
            return original(self, pairs, *args, **kwargs)

        return apply_gradients

    for kind in (tf_keras.optimizers.Optimizer, tf_keras.optimizers.legacy.Optimizer):
        _replace(kind, "apply_gradients", make)


def _replace(kind: Any, method: str, make: Callable[[Any], Any]) -> None:
    owner: Any = next((each for each in kind.__mro__ if method in vars(each)), None)
    if owner is None or hasattr(getattr(owner, method), "tfring_watches"):
        return
    original = getattr(owner, method)
    wrapped = functools.wraps(original)(make(original))
    wrapped = tf.autograph.experimental.do_not_convert(wrapped)
    wrapped.tfring_watches = True
    setattr(owner, method, wrapped)


def _look(optimizer: Any, gradients: Sequence[Any], variables: Any) -> None:
    if _State.warned or not topology.is_initialized() or topology.size() == 1:
        return
    if _reduces(optimizer):
        return
    if variables is None:
        variables = getattr(optimizer, "_trainable_variables", None) or []
    if len(variables) != len(gradients):
        return
    if any(map(double_reduction.is_marked, gradients)):
        return
    pairs = [(g, v) for g, v in zip(gradients, variables, strict=True) if g is not None]
    alone = [(g, v) for g, v in pairs if not _may_be_reduced(v)]
    symbolic = double_reduction.symbolic_parts(g for g, _ in alone)
    if not alone or next(graph_search.collectives_behind(symbolic), None) is not None:
        return
    if not read_settings(os.environ).check_start:
        return
    for _, variable in alone:
        _note(variable)
    if allreduce.largest() >= _State.elements:
        return
    loaded = optimizer not in _seen and _has_trained(optimizer)
    _seen.add(optimizer)
    if topology.rank() == 0 and (_State.expected or loaded):
        _State.warned = True
        _log.warning(
            "optimizer %r (%s) applies gradients of %r and other variables that were not "
            "reduced: each of the %d ranks trains its own model.\n"
            "%s. If you mean that, TFRING_CHECK_START=0 turns this warning off.",
            getattr(optimizer, "name", None) or optimizer._name,
            type(optimizer).__name__,
            _State.name,
            topology.size(),
            _REMEDY,
        )


def at_end(kinds: Sequence[type]) -> None:
    """Warns on rank 0 at the end of a job if it has trained without any reduction.

    Args:
        kinds: classes of optimizers; they may have been loaded too late to be watched.
    """
    if reductions.now() or _State.warned or topology.size() == 1:
        return
    wanted = not _State.elements and read_settings(os.environ).check_start
    for optimizer in gc.get_objects() if wanted else []:
        if not issubclass(type(optimizer), tuple(kinds)) or not _has_trained(optimizer):
            continue
        if not _reduces(optimizer):  # otherwise its steps come from a checkpoint
            for variable in getattr(optimizer, "_trainable_variables", None) or []:
                _note(variable)
    if allreduce.largest() < _State.elements and topology.rank() == 0:
        _log.warning(
            "rank 0 of %d has applied gradients to %r and other variables but reduced none: it "
            "trained its own model.\n"
            "%s. If you mean that, nothing is wrong.",
            topology.size(),
            _State.name,
            _REMEDY,
        )
    _State.elements = 0


def _may_be_reduced(variable: Any) -> bool:
    covered = not _thread.takes_gradients and reductions.covers(variable, 0)
    return covered or reductions.is_local(variable)


def _note(variable: Any) -> None:
    if _elements(variable) > _State.elements:
        _State.elements, _State.name = _elements(variable), variable_name(variable)


def _reduces(optimizer: Any) -> bool:
    """Returns whether an optimizer reduces, or wraps one that does."""
    held = vars(optimizer).values()
    return any(hasattr(each, "_tfring_hook") for each in (optimizer, *held))


def _has_trained(optimizer: Any) -> bool:
    steps = getattr(optimizer, "_iterations", None)  # a legacy optimizer creates it on first use
    with tf.init_scope(), contextlib.suppress(Exception):  # it may be in a TF1 graph
        return steps is not None and int(steps) > 0
    return False


def _elements(variable: Any) -> int:
    return int(tf.TensorShape(variable.shape).num_elements() or 0)
