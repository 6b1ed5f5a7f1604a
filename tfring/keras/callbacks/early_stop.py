"""What a rank does that stops training within an epoch: others that train on must not wait."""

from __future__ import annotations

import contextlib
from typing import Any

import tensorflow as tf

from tfring import process_sets, topology
from tfring.collectives.step import step
from tfring.keras.callbacks.guard import train_together
from tfring.keras.checks import has_own_train_step
from tfring.keras.hook import find_hook
from tfring.keras.model_optimizers import optimizers_of


class StoppedEarly(Exception):
    """On this rank training was stopped within an epoch; other ranks are told so."""


def leave_epoch(model: Any, batches: int, steps: int, advice: str) -> None:
    """Is called on a rank that stops; the training steps of ranks that train on fail.

    Where Keras' own train_step reduces in every batch, this rank meets the others in what their
    next step calls first, and fails as well if there is one. What a step of the user's calls first
    is not known, and with accumulation there may be no next reduction. There this rank fails its
    step: that ends the others' step too, and nothing if they stop after the same batch.

    Args:
        model: the model that is trained.
        batches: how many batches of the epoch this rank has trained.
        steps: how many the epoch has.
        advice: how the ranks end together.

    Raises:
        RuntimeError: other ranks train on; these get an error from their training step.
    """
    hook = find_hook(model.optimizer) if model.optimizer is not None else None
    own = has_own_train_step(model)
    when = f"after batch {batches} of {steps}"
    if own or (hook is not None and hook.accumulates):
        _fail_step(model, f"it ended training {when}: {_TOGETHER}")
    elif hook is not None:
        try:
            with step(hook.process_set):  # the others' step fails; so this rank's ends as well
                hook.meet_after_early_stop()
        except (tf.errors.FailedPreconditionError, tf.errors.AbortedError) as error:
            raise RuntimeError(
                f"rank {topology.rank()}: training was stopped here {when}, and other ranks train "
                f"on: {advice}"
            ) from error


# Errors of other ranks show about 300 characters of a text.
_TOGETHER = (
    "set stop_training on all ranks after the same batch. A callback that decides by a metric "
    "(EarlyStopping) must come after MetricAverageCallback"
)


def _fail_step(model: Any, text: str) -> None:
    hooks = [find_hook(optimizer) for optimizer in optimizers_of(model).values()]
    used = {process_sets.checked_id(h.process_set): h.process_set for h in hooks if h is not None}
    if train_together(model):
        used[0] = process_sets.global_process_set
    with contextlib.suppress(StoppedEarly), contextlib.ExitStack() as steps:
        for each in used.values():
            if each.included():
                steps.enter_context(step(each))
        raise StoppedEarly(text)
