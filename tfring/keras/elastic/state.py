"""KerasState: the state of elastic training with Keras.

A commit after every batch need not copy the weights. Where steps have a gate (training/gate.py) a
step is done completely or not at all. So after a failure the live weights are those of the last
commit, or those of the step after it, which then counts as committed. Only what a step changes
without a gate is copied: BatchNorm's statistics, the states of seed generators, metrics.

This needs a known step: one optimizer of Keras 3, whose hook reduces the gradients in every batch,
makes all updates, `iterations` counts it, and no attribute has a `state_dict`, as a data cursor
has. Otherwise weights are copied as well. A copy costs little by itself: the next update of a
variable takes new memory for its result, since the kept value is not overwritten. So copies are
also safe under XLA, which else may write into the memory of a variable before a step has succeeded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from tfring.collectives.variables import PART
from tfring.elastic import process as processes
from tfring.elastic.copies import Part
from tfring.elastic.messages import NO_UPDATE
from tfring.elastic.state import ObjectState, has_content, position_of
from tfring.elastic.tensorflow_state import TensorFlowKerasState, part_of_tensor
from tfring.keras import detect, facts
from tfring.keras.callbacks import state as shared
from tfring.keras.checks import has_own_train_step
from tfring.keras.elastic.state_parts import StateParts
from tfring.keras.gradient_hook import find_hook, innermost
from tfring.keras.model_optimizers import hooks_of, optimizers_of
from tfring.runtime import topology
from tfring.training import gate
from tfring.training.shard_moves import Choice

# Commits after a change that search the variables again: Keras makes those of metrics in the first
# batch.
_UNTIL_KNOWN = 3


class KerasState(TensorFlowKerasState):
    """A Keras model with its optimizers, and attributes of any kind; Horovod's class.

    All ranks have in common, and get after a change from the rank that is ahead: the weights of the
    model, the variables of its optimizers, the attributes. Each rank keeps its own at a commit, and
    gets them back after a failure: the states of seed generators, metrics, accumulated gradients,
    and local variables.
    """

    def __init__(self, model: Any, optimizer: Any = None, **kwargs: Any) -> None:
        """Takes a model and makes each of `kwargs` an attribute.

        Args:
            model: a built model of Keras 2 or 3. Its optimizer is built if it is not.
            optimizer: one that cannot be reached from the model.
            **kwargs: names and first values of the attributes.

        Raises:
            ValueError: the model is not built.
        """
        self._each_batch = False  # whether every batch is committed
        self._live: int | None = None  # steps of the optimizer in the last commit, if not copied
        self._fresh = _UNTIL_KNOWN
        self._counter: Any = None  # of these steps
        self._common: list[Any] = []  # variables that all ranks have in common
        self._loose: list[Any] = []  # of these, those that also a step that fails changes
        self._own: list[Any] = []  # variables of this rank alone
        self._saved_own: list[tuple[Any, Any]] = []  # with their values
        self._parts = StateParts(model, optimizer)  # of sharded states
        self._saved_steps = 0  # of their optimizers
        self._finished = False  # whether they went on after the last commit, which was the end
        super().__init__(model, optimizer, **kwargs)

    def commits_each_batch(self, each: bool) -> None:
        """Sets whether there is a commit after every batch, and nowhere else.

        If not, every commit copies the weights.
        """
        self._each_batch = each

    def save(self) -> None:
        """Keeps the present state, as `State.save`."""
        if self._fresh:
            self._find()
            self._fresh -= 1
        ObjectState.save(self)  # first: it calls code of the attributes, which may fail
        counter = self._counter if self._each_batch else None
        self._live = None if counter is None else int(facts.number(counter))
        self._save_variables()
        self._saved_own = [(v, _value(v)) for v in self._own]
        self._saved_steps = self._parts.steps

    def copy_all(self) -> None:
        """Copies the weights, too, until the next commit.

        Call it before something other than a step changes them: it may fail when only some are
        changed. They have to be as the last commit has left them.
        """
        if self._live is not None:
            self._live = None
            self._save_variables()

    def restore(self) -> None:
        """Goes back to the last commit, as `State.restore`."""
        ahead = 0 if self._live is None else int(facts.number(self._counter)) - self._live
        if ahead > 0:
            self._take_steps(ahead)
            return
        super().restore()
        for variable, value in self._saved_own:
            variable.assign(value)

    def sync(self) -> None:
        """Gives all ranks the state of the rank that has the most commits. A collective.

        Sharded states are divided among the present ranks.

        Raises:
            RuntimeError: parts of sharded states are lost, with their copies.
        """
        self._fresh = _UNTIL_KNOWN
        self._find()
        super().sync()

    def _settle(self, update: int) -> None:
        if self._parts:
            if update != NO_UPDATE:
                self._parts.spread()  # first: some ranks may still be in the exchange
            self._parts.settle()

    def _commit_here(self) -> None:
        if self._parts:
            self._parts.exchange(self._progress)
        super()._commit_here()

    def _finish(self) -> None:
        # Other ranks may be lost already, and a version needs all. If one of those that are left is
        # lost, the training goes on from the last commit.
        self._finished = bool(self._parts)
        if not self._finished:
            super()._finish()

    def _synchronize(self, send: Callable[[int], None], root: int | None = None) -> None:
        if not self._parts:
            super()._synchronize(send, root)
            return
        trained = self._progress.lineage and self._parts.steps != self._saved_steps
        if self._finished or trained:
            self.restore()  # no rank has copies of what came after the last commit
            self._progress.roll_back()
        self._finished = False
        self._parts.refuse_other_steps(self._saved_steps)
        choice = self._parts.choose(self._progress)
        if choice.lost:
            self._lose(_loss(choice))
        super()._synchronize(send, root if choice.root is None else choice.root)
        if self._parts.take(choice, self._progress):
            self.model.train_function = None  # it has the variables of the former parts
        self.save()

    def _lose(self, what: str) -> None:
        """Is called on all ranks when parts of sharded states are lost."""
        raise RuntimeError(
            f"{what}\nStart again from a checkpoint. hvd.elastic.fit(checkpoint=...) does it by "
            "itself."
        )

    def _take_steps(self, steps: int) -> None:
        """Commits completed steps, after which a callback failed before their commit."""
        ObjectState.restore(self)
        if "batch" in self._names:
            self.batch: Any = self.batch + steps
        self._commit_steps(steps)

    def _knows_data(self) -> bool:
        """Returns whether `_take_steps` brings all attributes to where the steps are.

        The position of a data cursor, for example, after completed steps is not known.
        """
        return not any(has_content(getattr(self, name)) for name in self._names)

    def _commit_steps(self, steps: int) -> None:
        self._progress.roll_back()
        for _ in range(steps):
            self._progress.live_step += 1
            self._progress.commit_now()
        self.save()
        process = processes.present()
        if process is not None:
            process.position = position_of(self)

    def _variables(self) -> list[Any]:
        if not self._common:
            self._find()
        return self._common

    def _save_variables(self) -> None:
        if self._live is None:
            super()._save_variables()
        else:
            self._saved_variables = [(v, _value(v)) for v in self._loose]

    def _send(self, root: int) -> None:
        self.copy_all()
        super()._send(root)

    def _describe(self) -> list[str]:
        return [*super()._describe(), *self._parts.describe()]

    def _pack(self) -> list[Part] | None:
        if not self._parts:
            return super()._pack()
        common = super()._pack() if topology.size() == 1 else None
        if common is None:
            return None
        return [*map(part_of_tensor, self._parts.whole()), *common]

    def _unpack(self, parts: Iterator[bytearray]) -> None:
        self.copy_all()  # so that a copy that breaks off can be undone
        self._parts.take_whole(parts)
        super()._unpack(parts)

    def _find(self) -> None:
        """Finds the variables, which takes longer than to copy them if models are large."""
        self._parts.find()
        optimizers = list(optimizers_of(self.model).values())
        local = shared.local_variables(self.model, ())
        common = [
            *shared.shared_weights(self.model, local),
            *shared.shared_state(self.model, local, accumulators=False),
        ]
        reached = [v for optimizer in optimizers for v in facts.variables_of(optimizer)]
        accumulated = [v for hook in hooks_of(self.model).values() for v in hook.accumulated()]
        self._counter = self._step_counter(optimizers)
        if self.optimizer is not None:
            reached_ids = {id(v) for v in reached}
            given = [v for v in facts.variables_of(self.optimizer) if id(v) not in reached_ids]
            common += [v for v in given if not getattr(v, PART, False)]
            reached += given
        self._common = list({id(v): v for v in common}.values())
        everything = [*_variables_of(self.model), *reached, *accumulated]
        common_ids = {id(v) for v in common}
        self._own = list({id(v): v for v in everything if id(v) not in common_ids}.values())
        # Callbacks change the learning rate before a step, and a LossScaleOptimizer has variables
        # that a step changes which it skips.
        stepped = [
            *facts.weights_of(self.model, trainable=True),
            *(v for optimizer in optimizers for v in facts.variables_of(innermost(optimizer))),
        ]
        rates = {id(getattr(innermost(one), "_learning_rate", None)) for one in optimizers}
        gated = {id(v) for v in stepped} - rates
        self._loose = [v for v in self._common if id(v) not in gated]

    def _step_counter(self, optimizers: Sequence[Any]) -> Any:
        """Returns the counter of steps if a step is done completely or not at all; else None."""
        if detect.is_model(self.model) or not gate.wanted() or len(optimizers) != 1:
            return None
        hook = find_hook(optimizers[0])
        if hook is None or hook.accumulates or hook.finite_here_only:
            return None
        if self.optimizer not in (None, optimizers[0]) or has_own_train_step(self.model):
            return None
        if self.model.jit_compile or self.model.steps_per_execution != 1:
            return None
        if not self._knows_data():
            return None
        return hook.optimizer.iterations


def _loss(choice: Choice) -> str:
    """Says which parts of sharded states are lost."""
    assert choice.version is not None
    commit, _, count = choice.version
    ranks = ", ".join(map(str, choice.lost))
    what = f"rank {ranks}" if len(choice.lost) == 1 else f"ranks {ranks}"
    return (
        f"The optimizer states of {what} (of {count}) after commit {commit} are lost: no rank is "
        "left that has a copy of them (shard_states=True)."
    )


def _variables_of(model: Any) -> list[Any]:
    """Returns the variables of a model and of its metrics."""
    metrics = [variable for metric in model.metrics for variable in metric.variables]
    return [*model.variables, *metrics]


def _value(variable: Any) -> Any:
    """Returns the value of a variable, which later updates do not change."""
    held = variable if isinstance(variable, tf.Variable) else variable.value
    with tf.device("CPU:0"):
        return tf.identity(held.read_value())
