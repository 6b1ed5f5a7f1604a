"""Keras callbacks for training on several ranks: the same ones in the same order on each."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from typing import Any

import keras
import numpy as np

from tfring import objects, reduce_ops, world
from tfring._native import core
from tfring.exceptions import tf_errors
from tfring.keras import checks
from tfring.keras.hook import find_hook, innermost
from tfring.variables import broadcast_variables, describe_variables


class _DistributedCallback(keras.callbacks.Callback):  # type: ignore[misc]
    """Checks, whatever else a callback does, that the gradients of this training get reduced."""

    def __init__(self) -> None:
        super().__init__()
        self._watch: checks.ReductionWatch | None = None

    def set_model(self, model: Any) -> None:
        """As in keras.callbacks.Callback."""
        super().set_model(model)
        checks.before_train_function(model)

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """As in keras.callbacks.Callback."""
        checks.at_train_begin(self.model)
        self._watch = checks.ReductionWatch(self.model)

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """As in keras.callbacks.Callback."""
        if self._watch is not None:
            self._watch.after_first_batch()
            self._watch = None


class BroadcastGlobalVariablesCallback(_DistributedCallback):
    """Gives every rank the weights and the optimizer state of one rank, in every `fit`.

    Broadcasts before the first batch what exists by then, so that all ranks take their first step
    from the same weights, and once more at the end of the first batch, where Horovod broadcasts: by
    then every optimizer has its state. Random seeds of layers stay each rank's own. Refuses ranks
    with different numbers of steps per epoch, where `fit` knows them.
    """

    def __init__(self, root_rank: int, device: str = "", local_variables: Any = None) -> None:
        """Sets what to broadcast.

        Args:
            root_rank: the rank whose values all get.
            device: TensorFlow device for the broadcast, "" for TensorFlow's choice.
            local_variables: variables that are this rank's own and stay as they are.
        """
        super().__init__()
        self.root_rank = root_rank
        self.device = device
        self._local = list(local_variables or ())
        self._pending = False

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """As in keras.callbacks.Callback."""
        super().on_train_begin(logs)
        self._pending = True
        weights, state = self._variables(state=False), self._variables(weights=False)
        mine = {
            "weights": describe_variables(weights),
            "state": describe_variables(state),
            "steps": self._steps(),
            "optimizer": self._optimizer_name(),
        }
        everywhere = objects.allgather_object(mine, name="tfring.broadcast_callback.begin")
        _refuse_unequal_steps([other["steps"] for other in everywhere])
        _refuse_unequal_names([other["optimizer"] for other in everywhere])
        # Ranks may differ in what exists by now: the root alone has resumed from a checkpoint, say.
        # Then the weights suffice: its own first step is right, and its state follows after that.
        same = [key for key in ("weights", "state") if _all_equal(o[key] for o in everywhere)]
        if same == ["weights", "state"]:
            self._broadcast([*weights, *state])
        elif "weights" in same:
            self._broadcast(weights)

    def _steps(self) -> int | None:
        """The steps of an epoch if they are known and each of them waits for all ranks."""
        hook = find_hook(self.model.optimizer)
        every_step = hook is not None and not hook.accumulates
        return self.params.get("steps") if every_step else None

    def _optimizer_name(self) -> str | None:
        hook = find_hook(self.model.optimizer)
        return None if hook is None else hook.name

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """As in keras.callbacks.Callback."""
        super().on_train_batch_end(batch, logs)
        if self._pending:
            self._pending = False
            optimizer = innermost(self.model.optimizer)
            # By now these hold this rank's part of an update to come.
            accumulated = getattr(optimizer, "_accumulated_gradients", None) or ()
            self._broadcast(self._variables(besides=accumulated))

    def _variables(
        self, *, weights: bool = True, state: bool = True, besides: Iterable[Any] = ()
    ) -> list[Any]:
        local = {id(v) for v in (*self._local, *besides)}
        chosen = list(self.model.weights) if weights else []
        if state and self.model.optimizer is not None:
            chosen += self.model.optimizer.variables
        return [v for v in chosen if id(v) not in local]

    def _broadcast(self, variables: list[Any]) -> None:
        broadcast_variables(variables, root_rank=self.root_rank, device=self.device)


def _all_equal(values: Iterable[Any]) -> bool:
    first, *others = values
    return all(other == first for other in others)


def _refuse_unequal_steps(steps: list[int | None]) -> None:
    """Raises RuntimeError on every rank if some would wait for steps that others never take."""
    known = [(rank, count) for rank, count in enumerate(steps) if count is not None]
    if len({count for _, count in known}) <= 1:
        return
    listed = ", ".join(f"rank {rank}: {count}" for rank, count in known)
    raise RuntimeError(
        f"rank {world.rank()}: the ranks have different numbers of steps per epoch ({listed}), and "
        "each step waits for all ranks: give every rank equally many batches, by equal shards of "
        "the data or by steps_per_epoch="
    )


def _refuse_unequal_names(names: list[str | None]) -> None:
    """Raises RuntimeError on every rank if their gradients would wait under different names."""
    if len(set(names)) <= 1:
        return
    listed = ", ".join(f"rank {rank}: {name}" for rank, name in enumerate(names))
    raise RuntimeError(
        f"rank {world.rank()}: the optimizers of the ranks have different names ({listed}), as "
        "some ranks wrapped more optimizers than others before this one: give "
        "DistributedOptimizer the same name= on every rank"
    )


class MetricAverageCallback(_DistributedCallback):
    """Replaces the epoch's metrics by their mean over the ranks.

    Put it before callbacks that act on metrics (ReduceLROnPlateau, EarlyStopping, checkpoints), so
    that all ranks decide alike.
    """

    def __init__(self, device: str = "") -> None:
        """`device` is accepted for Horovod's sake: the metrics are averaged on the CPU."""
        super().__init__()
        self.device = device

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """As in keras.callbacks.Callback."""
        if logs is None:
            return
        keys = sorted(key for key, value in logs.items() if _is_number(value))
        self._check_keys(epoch, keys)
        if not keys:
            return
        values = np.array([float(logs[key]) for key in keys], dtype=np.float64)
        with tf_errors():
            mean = core.allreduce(values, name="tfring.metric_average", op=reduce_ops.Average)
        for key, value in zip(keys, mean, strict=True):
            logs[key] = float(value)

    def _check_keys(self, epoch: int, keys: list[str]) -> None:
        digest = hashlib.sha256("\n".join(keys).encode()).digest()[:8]
        mine = np.frombuffer(digest, dtype=np.int64)
        with tf_errors():
            hashes = core.allgather(mine, name="tfring.metric_average.keys")
        if len(set(hashes.tolist())) == 1:
            return
        everywhere = objects.allgather_object(keys, name="tfring.metric_average.differ")
        lists = "; ".join(f"rank {rank}: {', '.join(k)}" for rank, k in enumerate(everywhere))
        raise RuntimeError(
            f"rank {world.rank()}: the ranks have different metrics at the end of epoch "
            f"{epoch + 1} ({lists}). Give all ranks the same metrics and validation data"
        )


class LearningRateScheduleCallback(_DistributedCallback):
    """Sets the learning rate to `initial_lr` times a multiplier, in a range of epochs.

    With momentum correction the velocity is scaled along with the learning rate (Goyal et al.,
    "Accurate, Large Minibatch SGD", remark 2), for SGD and RMSprop with momentum.
    """

    def __init__(
        self,
        initial_lr: float,
        multiplier: float | Callable[[float], float],
        start_epoch: int = 0,
        end_epoch: int | None = None,
        staircase: bool = True,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
    ) -> None:
        """Sets the schedule.

        Args:
            initial_lr: what the multiplier is applied to.
            multiplier: a number, or a function of the epoch; with staircase=False of a fractional
                epoch, at every batch.
            start_epoch: first epoch that is adjusted.
            end_epoch: first epoch that is not adjusted any more; None for never.
            staircase: adjust once per epoch. A constant multiplier always does.
            momentum_correction: scale the velocity with the learning rate.
            steps_per_epoch: batches per epoch; found out by itself where `fit` knows it.

        Raises:
            ValueError: no initial_lr.
        """
        super().__init__()
        if initial_lr is None:
            raise ValueError("LearningRateScheduleCallback needs initial_lr")
        self.initial_lr = initial_lr
        self.start_epoch = start_epoch
        self.end_epoch = end_epoch
        self.momentum_correction = momentum_correction
        self.steps_per_epoch = steps_per_epoch
        self.current_epoch = 0
        if callable(multiplier):
            self.multiplier, self.staircase = multiplier, staircase
        else:
            factor = float(multiplier)
            self.multiplier, self.staircase = (lambda epoch: factor), True

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """As in keras.callbacks.Callback."""
        super().on_train_begin(logs)
        optimizer = innermost(self.model.optimizer)
        if not isinstance(getattr(optimizer, "_learning_rate", None), keras.Variable):
            raise TypeError(
                f"optimizer {optimizer.name!r} was made with a learning rate schedule; "
                f"{type(self).__name__} needs one with a number for learning_rate"
            )
        if not self.staircase and not self.steps_per_epoch:
            self.steps_per_epoch = self.params.get("steps")
            if not self.steps_per_epoch:
                raise ValueError(
                    f"fit does not know the number of steps per epoch; give {type(self).__name__} "
                    "steps_per_epoch="
                )

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """As in keras.callbacks.Callback."""
        self.current_epoch = epoch

    def on_train_batch_begin(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """As in keras.callbacks.Callback."""
        if self.current_epoch < self.start_epoch:
            return
        if self.end_epoch is not None and self.current_epoch >= self.end_epoch:
            return
        if not self.staircase:
            self._adjust(self.current_epoch + batch / float(self.steps_per_epoch or 1))
        elif batch == 0:
            self._adjust(self.current_epoch)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """As in keras.callbacks.Callback."""
        if logs is not None:
            logs["lr"] = float(self.model.optimizer.learning_rate)

    def _adjust(self, epoch: float) -> None:
        optimizer = innermost(self.model.optimizer)
        old = float(optimizer.learning_rate)
        new = self.initial_lr * self.multiplier(epoch)
        optimizer.learning_rate = new
        if self.momentum_correction and old > 0 and new != old:
            _scale_velocity(optimizer, new / old)


class LearningRateWarmupCallback(LearningRateScheduleCallback):
    """Raises the learning rate from initial_lr / size to initial_lr over the first epochs.

    Starting with the single process' learning rate and ending with that multiplied by the number of
    ranks: `initial_lr` is the latter, as given to the optimizer.
    """

    def __init__(
        self,
        initial_lr: float,
        warmup_epochs: int = 5,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
        verbose: int = 0,
    ) -> None:
        """Sets the warm-up.

        Args:
            initial_lr: the learning rate at its end.
            warmup_epochs: how long it takes.
            momentum_correction: scale the velocity with the learning rate.
            steps_per_epoch: batches per epoch; found out by itself where `fit` knows it.
            verbose: 1 prints a line at its end.
        """
        super().__init__(
            initial_lr,
            self._warm_up,
            start_epoch=0,
            end_epoch=warmup_epochs,
            staircase=False,
            momentum_correction=momentum_correction,
            steps_per_epoch=steps_per_epoch,
        )
        self.warmup_epochs = warmup_epochs
        self.verbose = verbose

    def _warm_up(self, epoch: float) -> float:
        # As far as the coming batches lead, so that the last ones of the warm-up end at initial_lr:
        # with steps_per_execution Keras asks once for several.
        epoch += self.model.steps_per_execution / float(self.steps_per_epoch or 1)
        epoch = min(epoch, float(self.warmup_epochs))
        size = world.size()
        return (epoch * (size - 1) / self.warmup_epochs + 1) / size

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """As in keras.callbacks.Callback."""
        super().on_epoch_end(epoch, logs)
        if self.verbose > 0 and epoch == self.warmup_epochs - 1:
            lr = float(self.model.optimizer.learning_rate)
            print(f"\nEpoch {epoch + 1}: finished gradual learning rate warmup to {lr:g}.")


def _scale_velocity(optimizer: Any, factor: float) -> None:
    """Multiplies the velocity, which is what scaling the momentum for one step comes to.

    Keras traces the momentum as a constant, so changing it between steps would do nothing.
    """
    for name in ("momentums", "_momentums"):  # SGD, RMSprop: velocities with the rate in them
        if isinstance(optimizer, (keras.optimizers.SGD, keras.optimizers.RMSprop)):
            for velocity in getattr(optimizer, name, None) or ():
                if velocity is not None:
                    velocity.assign(velocity * factor)


def _is_number(value: Any) -> bool:
    if isinstance(value, (bool, str)) or value is None:
        return False
    return np.ndim(value) == 0 and np.issubdtype(np.asarray(value).dtype, np.number)
