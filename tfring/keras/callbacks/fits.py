"""Fit: what the callbacks of one call of `fit` share, and how the ranks keep in step."""

from __future__ import annotations

import contextlib
import logging
import math
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from tfring.collectives import objects
from tfring.collectives.step import step
from tfring.data.sharding import passes
from tfring.keras import checks, detect, facts
from tfring.keras.callbacks.guard import DivergenceGuard, train_together
from tfring.keras.callbacks.observing.event_files import MOST_RANKS, event_files_of
from tfring.keras.callbacks.observing.progress import Progress
from tfring.keras.callbacks.running_fit import fit_variables
from tfring.keras.callbacks.watch import ReductionWatch
from tfring.keras.gradient_hook import hook_of
from tfring.keras.model_optimizers import hooks_of, optimizers_of, parts_of
from tfring.runtime import process_sets, topology

_log = logging.getLogger("tfring")
_fits: weakref.WeakKeyDictionary[Any, Fit] = weakref.WeakKeyDictionary()  # by model
_joins: weakref.WeakKeyDictionary[Any, weakref.ref[Any]] = weakref.WeakKeyDictionary()  # likewise

# Of a learning rate: different kinds of processors may round a schedule's cosine differently.
_ROUNDING = 1e-5

_EQUAL_STEPS = (
    "they would wait for each other. Give every rank equally many batches, by equal shards of the "
    "data or by steps_per_epoch=, or put a JoinCallback among the callbacks"
)
_EQUAL_RATES = (
    "their weights would go apart. A callback that changes the rate by a metric "
    "(ReduceLROnPlateau) must come after MetricAverageCallback, and every rank needs the same "
    "callbacks in the same order"
)
_END_TOGETHER = (
    "the others would wait for ranks that are gone. Give fit the same epochs= on every rank. A "
    "callback that ends training by a metric (EarlyStopping) must come after "
    "MetricAverageCallback, and one that sets stop_training (TerminateOnNaN does, by this rank's "
    "loss) must do so on all ranks after the same batch"
)
_BEGIN_TOGETHER = (
    "the others' epochs would be paired with these. Give fit the same initial_epoch on every rank "
    "(hvd.broadcast_object(epoch, 0)), and BackupAndRestore to all ranks or to none, each with a "
    "folder of its own"
)

# Errors of other ranks show about 300 characters of a text.
_TOGETHER = (
    "set stop_training on all ranks after the same batch. A callback that decides by a metric "
    "(EarlyStopping) must come after MetricAverageCallback"
)


class Fit:
    """One call of `fit` on this rank.

    At the beginning of every epoch, and at the end of training, all ranks exchange their epoch,
    learning rates, numbers of steps and a hash of their weights. Ranks that differ would wait for
    each other for ever, or their weights would go apart unnoticed, so all get an error. The first
    callback that is called does it for all. The thread that calls `fit` uses it.

    Attributes:
        local: variables that are this rank's own, as callbacks were told.
        reduced_by_user: whether the user reduces gradients without tfring.
        made_equal_later: whether the ranks get equal weights and states after the first batch only.
        averaged: the last epoch whose metrics are means over the ranks.
        passes: of the data that is trained on, if `shard` or `shard_batches` has made it.
        progress: what it writes into the record.
    """

    def __init__(self, model: Any, params: Any) -> None:
        """Begins a record of a model, which is not kept, with the `params` of its callbacks."""
        self.params = params
        self.local: list[Any] = []
        self.reduced_by_user = False
        self.made_equal_later = False
        self.averaged: int | None = None
        given = fit_variables(model)
        stream = given.get("steps_per_epoch") is not None
        self.passes = passes.of(given.get("x"), stream=stream, within=not detect.is_model(model))
        first = topology.rank() == 0
        self._event_files = event_files_of(given.get("callbacks")) if first else None
        self.progress = Progress(params)
        self._watch = ReductionWatch(model)
        self._guard = DivergenceGuard()
        self._epoch: int | None = None
        self._batches = 0  # of this epoch
        self._batch_seen = False
        self._left = False
        # Whether the ranks meet at the end of this epoch, because some rank does not know its
        # number of steps.
        self._meets = False
        self._ended = False
        self._nan = False  # whether the loss has become NaN

    def begin_epoch(self, model: Any, epoch: int) -> None:
        """Compares epoch, learning rates and steps of all ranks; a collective.

        Raises:
            RuntimeError: the ranks differ; on every rank.
        """
        if self._epoch == epoch:
            return
        if self._epoch is None and not self.reduced_by_user:
            self._watch.start(model, self.local)
        self._meet(model, epoch)
        if self.passes is not None:
            self.passes.begin_epoch(epoch, first=self._epoch is None)
        self._epoch, self._batches = epoch, 0
        self.progress.begin_epoch(epoch)

    def end_batch(self, model: Any, batch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Counts a batch, for the first callback that says so; looks at what the first one changed.

        A collective after the first batches.
        """
        done = batch + 1 - self._batches
        if done <= 0:
            return
        self.progress.end_batch(model, done, logs)
        if self.passes is not None:
            self.passes.commit(done)
        self._batches = batch + 1
        self.look_at_loss(logs)
        if not self._batch_seen and not self.reduced_by_user and topology.size() > 1:
            checks.warn_of_untracked(model, self.local)
        self._batch_seen = True
        if not self.reduced_by_user:
            again = find_join(model) is None
            self._watch.after_batch(model, self.local, self._batches, again=again)

    def end_epoch(self, model: Any) -> None:
        """Ends the pass through the data, and the epoch after the same batch on all ranks."""
        self.progress.end_epoch(model)
        if self.passes is not None:
            self.passes.end_epoch()
        self.stop_together(model)

    def stop_together(self, model: Any) -> None:
        """Makes sure that ranks end the epoch after the same batch (see _leave_epoch).

        Raises:
            RuntimeError: other ranks train on; these get an error from their training step.
        """
        steps: int | None = self.params.get("steps") if self.params else None
        if self._meets:
            self._meets = False
            what = f"the epoch has ended here after batch {self._batches}"
            advice = _END_TOGETHER if model.stop_training else _EQUAL_STEPS
            _meet_after_epoch(model, what, advice)
            return
        if steps is None or self._batches >= steps or not model.stop_training:
            return
        joins = find_join(model) is not None
        if joins or self._left or self.reduced_by_user or topology.size() == 1:
            return
        self._left = True
        _leave_epoch(model, self._batches, steps, _END_TOGETHER)

    def look_at_loss(self, logs: Mapping[str, Any] | None) -> None:
        """Warns on rank 0, once, if the loss has become NaN; `logs` are the last batch's."""
        if self._nan or not math.isnan(facts.loss_in(logs) or 0.0):
            return
        self._nan = True
        if topology.rank() == 0:
            _log.warning(
                "The loss became NaN in step %d of epoch %d.\nRun again with "
                "TFRING_CHECK_VALUES=error: it stops at the first gradient that is NaN, and names "
                "it and its rank.",
                self._batches,
                (self._epoch or 0) + 1,
            )

    def made_equal(self, model: Any) -> None:
        """Notes that all ranks have been given the same weights."""
        self.made_equal_later = False
        if not self.reduced_by_user:
            self._watch.start(model, self.local)

    def end(self, model: Any) -> None:
        """Ends training, on all ranks; compares as begin_epoch does."""
        if not self._ended:
            self._ended = True
            self._meet(model, None)
            self._guard.end()
            if self._event_files is not None:
                self._event_files.close()

    def _meet(self, model: Any, epoch: int | None) -> None:
        if topology.size() == 1:
            return
        together = not self.reduced_by_user and train_together(model)
        alike = together and find_join(model) is None
        rated = together and epoch is not None and not self.made_equal_later
        compares = self._batch_seen and not self.reduced_by_user
        begins = self._epoch is None and epoch is not None
        mine: dict[str, Any] = {
            "weights": self._guard.hashes(model, self.local) if compares else None,
            "epoch": epoch,
            "steps": self.params.get("steps") if alike and self.params else None,
            "meets": alike and _knows_next_collective(model),
            "batches": self._batches if alike and self._epoch is not None else None,
            "rates": _rates(model) if rated else {},
            "passes": passes.begun() if begins else {},
            "times": self.progress.times,
        }
        everywhere = objects.allgather_json(mine, name="tfring.fit")
        if self._event_files is not None and self._epoch is not None:
            for rank, each in enumerate(everywhere[:MOST_RANKS]):
                times = {f"tfring/{name}_seconds": s for name, s in each["times"].items()}
                self._event_files.write(rank, times, self._epoch)
        _refuse_other_epochs([each["epoch"] for each in everywhere])
        before = f"after epoch {self._epoch + 1}" if self._epoch is not None else "at the beginning"
        _refuse_unequal("steps per epoch", [each["steps"] for each in everywhere], _EQUAL_STEPS)
        unknown = any(each["steps"] is None for each in everywhere)
        self._meets = epoch is not None and unknown and all(each["meets"] for each in everywhere)
        batches = [each["batches"] for each in everywhere]
        _refuse_unequal(f"batches that they have trained {before}", batches, _EQUAL_STEPS)
        for path in mine["rates"]:
            rates = [each["rates"].get(path) for each in everywhere]
            _refuse_unequal(f"the learning rate of {path} {before}", rates, _EQUAL_RATES, _ROUNDING)
        if begins:
            passes.catch_up([each["passes"] for each in everywhere])
        if compares:
            self._watch.check(model, self.local, before)
        hashes = [each["weights"] for each in everywhere]
        self._guard.compare(model, self.local, hashes, before)


def fit_of(model: Any, params: Any) -> Fit:
    """Returns the Fit of a model and the `params` that Keras gives to all callbacks of one fit."""
    fit = _fits.get(model)
    if fit is None or params is None or fit.params is not params:
        fit = _fits[model] = Fit(model, params)
    return fit


def register_join(model: Any, callback: Any) -> None:
    """Makes `callback` the JoinCallback of the model's fit; None for the end of it."""
    if callback is None:
        _joins.pop(model, None)
    else:
        _joins[model] = weakref.ref(callback)


def find_join(model: Any) -> Any:
    """Returns the JoinCallback of the model's fit, or None."""
    reference = _joins.get(model)
    return None if reference is None else reference()


def refuse(what: str, values: Sequence[Any], advice: str, show: Callable[[Any], str] = str) -> None:
    """Raises RuntimeError if the values that the ranks have are not all equal."""
    if any(value != values[0] for value in values):
        listed = ", ".join(f"rank {rank}: {show(value)}" for rank, value in enumerate(values))
        raise RuntimeError(
            f"rank {topology.rank()}: the ranks differ in {what} ({listed}): {advice}"
        )


def _refuse_unequal(what: str, values: Sequence[Any], advice: str, tolerance: float = 0.0) -> None:
    """Does what `refuse` does for numbers; a rank that does not know its number (None) is right."""
    known = [value for value in values if value is not None]
    if any(not math.isclose(value, known[0], rel_tol=tolerance) for value in known):
        refuse(what, values, advice, _shown)


def _shown(value: Any) -> str:
    if value is None:
        return "unknown"
    return f"{value:.9g}" if isinstance(value, float) else str(value)


def _refuse_other_epochs(epochs: Sequence[int | None]) -> None:
    ended = any(epoch is None for epoch in epochs)
    refuse(
        "when training ends" if ended else "the epoch that they begin",
        epochs,
        _END_TOGETHER if ended else _BEGIN_TOGETHER,
        lambda epoch: "has ended" if epoch is None else f"begins epoch {epoch + 1}",
    )


def _rates(model: Any) -> dict[str, float]:
    rates = {}
    for path, optimizer in optimizers_of(model).items():
        for number, part in enumerate(parts_of(optimizer)):
            rates[f"{path}.optimizers[{number}]" if number else path] = facts.rate_of(part)
    return rates


class _StoppedEarly(Exception):
    """Training was stopped within an epoch on this rank; other ranks are told so."""


def _knows_next_collective(model: Any) -> bool:
    """Returns whether the model's optimizer reduces in every batch, in Keras' own train_step.

    The first collective of a user's own step is unknown, and with accumulation there may be no next
    reduction.
    """
    hook = hook_of(model)
    return hook is not None and not hook.accumulates and not checks.has_own_train_step(model)


def _leave_epoch(model: Any, batches: int, steps: int, advice: str) -> None:
    """Ends the training steps of the ranks that train on with an error, when this rank stops.

    If the next collective is known, this rank meets the others in it, and fails as well if one of
    them trains on. Else this rank fails its step, which also ends the others' step. It has no
    effect if they stop after the same batch.

    Raises:
        RuntimeError: other ranks train on; these get an error from their training step.
    """
    when = f"after batch {batches} of {steps}"
    if _knows_next_collective(model):
        _meet_after_epoch(model, f"training was stopped here {when}", advice)
    elif hook_of(model) is not None or checks.has_own_train_step(model):
        _fail_step(model, f"it ended training {when}: {_TOGETHER}")


def _meet_after_epoch(model: Any, what: str, advice: str) -> None:
    """Meets the other ranks in the first collective of their next training step.

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


def _fail_step(model: Any, text: str) -> None:
    sets = [hook.process_set for hook in hooks_of(model).values()]
    used = {process_sets.checked_id(each): each for each in sets}
    if train_together(model):
        used[0] = process_sets.global_process_set
    with contextlib.suppress(_StoppedEarly), contextlib.ExitStack() as steps:
        for each in used.values():
            if each.included():
                steps.enter_context(step(each))
        raise _StoppedEarly(text)
