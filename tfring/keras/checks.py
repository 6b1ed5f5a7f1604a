"""Refuses training that would not reduce gradients, or makes it reduce them if possible.

The callbacks of tfring call this, so without one of them a plain optimizer is not noticed.
"""

from __future__ import annotations

import itertools
import warnings
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from tfring.collectives import objects
from tfring.keras import detect, facts
from tfring.keras.gradient_hook import hook_of, innermost
from tfring.keras.model_optimizers import hooks_of, reachable
from tfring.ops import library
from tfring.runtime import topology
from tfring.training.local_variables import variable_key
from tfring.training.value_names import variable_name

_LISTED = 5  # variables in a message


def before_train_function(model: Any) -> None:
    """Drops the train function, unless an earlier call verified it; `fit` then makes another.

    Called when a callback gets its model, before `fit` makes or reuses the train function: one that
    was traced before the optimizer was wrapped would go on without reducing. Switches off XLA where
    it cannot compile collectives.
    """
    if model is None or not hasattr(model, "optimizer"):  # which compile sets
        return
    reduces = hook_of(model) is not None or has_own_train_step(model)
    if reduces and model.jit_compile and (reason := library.xla_trouble()):
        warnings.warn(
            "tfring: this model has jit_compile=True (Keras chooses that by itself when it sees a "
            f"GPU), and collectives cannot be compiled by XLA: {reason}. Training goes on with "
            "jit_compile=False. Compile the model with jit_compile=False to avoid this message.",
            stacklevel=2,
        )
        model.jit_compile = False
        model.train_function = None
    known = _verified.get(model)
    if known is None or not known.holds(model):
        model.train_function = None
        _verified.pop(model, None)


def at_train_begin(model: Any) -> None:
    """Raises RuntimeError when `fit` is about to train with an optimizer that does not reduce.

    A model without trainable weights is not trained, whatever its optimizer.
    """
    if not hasattr(model, "optimizer"):
        raise RuntimeError(
            f"rank {topology.rank()}: the model was never compiled, and callbacks look at the "
            "optimizer that compile() sets: call model.compile(hvd.DistributedOptimizer(...)) "
            "first. In a loop of your own that needs no compile(), use "
            "hvd.broadcast_variables(model.weights, root_rank=0) in place of callbacks"
        )
    hook = hook_of(model)
    optimizer = model.optimizer
    standard = optimizer is not None and not has_own_train_step(model)
    may_train = not model.built or bool(facts.weights_of(model, trainable=True))
    if hook is None and standard and topology.size() > 1 and may_train:
        raise RuntimeError(
            f"rank {topology.rank()}: the model's optimizer {facts.name_of(optimizer)!r} "
            f"({type(optimizer).__name__}) does not reduce gradients over the {topology.size()} "
            "ranks: each would train a model of its own.\nGive compile() what "
            "hvd.DistributedOptimizer returned. load_model, clone, pickle and from_config make "
            "plain optimizers: wrap those again. If you average weights yourself, say "
            "reduced_by_user=True to BroadcastGlobalVariablesCallback."
        )
    if hook is not None:
        _remember(model)


def refuse_other_models(weights: Sequence[Any], everywhere: Sequence[Mapping[str, Any]]) -> None:
    """Raises RuntimeError on all ranks if a rank has built another model than rank 0.

    Ranks that have not built theirs are left alone. A collective if there is a difference.

    Args:
        weights: of this rank's model, without its own ones.
        everywhere: of each rank: "whole", whether its model is built, and "weights", dtype and
            shape of each.
    """
    mine = everywhere[0]["weights"]
    built = [rank for rank, each in enumerate(everywhere) if each["whole"]]
    other = next((rank for rank in built if everywhere[rank]["weights"] != mine), None)
    if other is None or 0 not in built:
        return
    its = everywhere[other]["weights"]
    pairs = enumerate(itertools.zip_longest(mine, its))
    at = next(i for i, (one, another) in pairs if one != another)
    name = variable_name(weights[at]) if at < len(weights) else ""
    names = objects.allgather_json(name, name="tfring.broadcast_callback.names")
    shown = [
        f"{names[rank]!r} of {each[at][0]} {tuple(each[at][1])}" if at < len(each) else "missing"
        for rank, each in ((other, its), (0, mine))
    ]
    raise RuntimeError(
        f"Rank {other} builds another model than rank 0: weight {at + 1} is {shown[0]} there, "
        f"{shown[1]} on rank 0 ({len(its)} and {len(mine)} weights in all).\n"
        "Build the same model on every rank; look for code that depends on hvd.rank()."
    )


def warn_of_untracked(model: Any, local: Sequence[Any]) -> None:
    """Warns of trainable tf.Variables in a model's attributes that are not among its weights.

    Keras 3 knows only its own variables: others are neither trained nor saved. Keras 2 knows all,
    except counters that each of its models has. `local` are this rank's own variables.
    """
    if detect.is_model(model):
        return
    known = {variable_key(v) for v in (*facts.weights_of(model), *local)}
    found = [
        path
        for path, value in reachable(model).items()
        if isinstance(value, tf.Variable) and value.trainable and variable_key(value) not in known
    ]
    if found and topology.rank() == 0:
        more = f" and {len(found) - _LISTED} more" if len(found) > _LISTED else ""
        warnings.warn(
            f"tfring: the model holds tf.Variables that Keras does not know as its weights: "
            f"{', '.join(found[:_LISTED])}{more}. So they are neither broadcast nor compared, and "
            "may differ between the ranks. Make them by self.add_weight(...) or keras.Variable(...)"
            ". Those that are each rank's own go into local_variables of "
            "BroadcastGlobalVariablesCallback",
            stacklevel=2,
        )


def settled(model: Any) -> set[Any]:
    """Returns the keys of variables whose gradients the present train function reduces."""
    known = _verified.get(model)
    return set() if known is None or not known.holds(model) else set(known.reduced)


def settle(model: Any, reduced: set[Any]) -> None:
    """Keeps these keys for `settled` in the next `fit`, if it uses the same train function."""
    known = _remember(model)
    known.reduced = set(reduced)


def may_skip_reduction(model: Any) -> bool:
    """Returns whether a step may apply gradients that were not reduced.

    Code of the user decides that, in train_step or in an optimizer that holds the wrapped one: it
    may call that optimizer's `apply`, or only take its settings.
    """
    hook = hook_of(model)
    own = hook is not None and hook.optimizer is not innermost(model.optimizer)
    return own or has_own_train_step(model)


def has_own_train_step(model: Any) -> bool:
    """Returns whether a model has a train_step of its own, and not Keras'."""
    step = getattr(model.train_step, "__func__", model.train_step)
    own = detect.model_class() if detect.is_model(model) else keras.Model
    return step is not own.train_step


class _Verified:
    """A train function that was made while these hooks were in place.

    Its references are weak: the hooks refer to the model, which would never be freed otherwise.
    """

    def __init__(self, model: Any) -> None:
        self._parts = [_weak(part) for part in _parts(model)]
        self.reduced: set[Any] = set()

    def holds(self, model: Any) -> bool:
        """Returns whether the model still has this train function and these hooks."""
        now = _parts(model)
        same = (ref() is part for ref, part in zip(self._parts, now, strict=False))
        return len(now) == len(self._parts) and all(same)


_verified: weakref.WeakKeyDictionary[Any, _Verified] = weakref.WeakKeyDictionary()  # by model


def _parts(model: Any) -> list[Any]:
    return [model.train_function, *hooks_of(model).values()]


def _remember(model: Any) -> _Verified:
    known = _verified.get(model)
    if known is None or not known.holds(model):
        known = _verified[model] = _Verified(model)
    return known


def _weak(value: Any) -> Callable[[], Any]:
    return weakref.ref(value) if value is not None else lambda: None
