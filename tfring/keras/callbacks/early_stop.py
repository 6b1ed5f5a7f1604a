"""What a rank does that ends an epoch before others: they train on and must not wait."""

from __future__ import annotations

import contextlib
from typing import Any

import tensorflow as tf

from tfring.collectives.step import step
from tfring.keras.callbacks.guard import train_together
from tfring.keras.checks import has_own_train_step
from tfring.keras.gradient_hook import hook_of
from tfring.keras.model_optimizers import hooks_of
from tfring.runtime import process_sets, topology


class StoppedEarly(Exception):
    """Training was stopped within an epoch on this rank; other ranks are told so."""


def knows_next_collective(model: Any) -> bool:
    """Returns whether the model's optimizer reduces in every batch, in Keras' own train_step.

    The first collective of a user's own step is unknown, and with accumulation there may be no next
    reduction.
    """
    hook = hook_of(model)
    return hook is not None and not hook.accumulates and not has_own_train_step(model)


def leave_epoch(model: Any, batches: int, steps: int, advice: str) -> None:
    """Ends the training steps of the ranks that train on with an error, when this rank stops.

    If the next collective is known, this rank meets the others in it, and fails as well if one of
    them trains on. Else this rank fails its step, which also ends the others' step. It has no
    effect if they stop after the same batch.

    Args:
        model: the model that is trained.
        batches: how many batches of the epoch this rank has trained.
        steps: how many the epoch has.
        advice: how the ranks end together.

    Raises:
        RuntimeError: other ranks train on; these get an error from their training step.
    """
    when = f"after batch {batches} of {steps}"
    if knows_next_collective(model):
        meet_after_epoch(model, f"training was stopped here {when}", advice)
    elif hook_of(model) is not None or has_own_train_step(model):
        _fail_step(model, f"it ended training {when}: {_TOGETHER}")


def meet_after_epoch(model: Any, what: str, advice: str) -> None:
    """Meets the other ranks in the first collective of their next training step.

    Args:
        model: a model whose next collective is known.
        what: what has happened on this rank, for the error.
        advice: how the ranks end together.

    Raises:
        RuntimeError: other ranks train on; these get an error from their training step.
    """
    hook = hook_of(model)
    assert hook is not None
    try:
        with step(hook.process_set):  # the others' step fails; so this rank's ends as well
            hook.meet_after_early_stop()
    except (tf.errors.FailedPreconditionError, tf.errors.AbortedError) as error:
        raise RuntimeError(
            f"rank {topology.rank()}: {what}, and other ranks train on: {advice}"
        ) from error


# Errors of other ranks show about 300 characters of a text.
_TOGETHER = (
    "set stop_training on all ranks after the same batch. A callback that decides by a metric "
    "(EarlyStopping) must come after MetricAverageCallback"
)


def _fail_step(model: Any, text: str) -> None:
    sets = [hook.process_set for hook in hooks_of(model).values()]
    used = {process_sets.checked_id(each): each for each in sets}
    if train_together(model):
        used[0] = process_sets.global_process_set
    with contextlib.suppress(StoppedEarly), contextlib.ExitStack() as steps:
        for each in used.values():
            if each.included():
                steps.enter_context(step(each))
        raise StoppedEarly(text)
