"""fit: training that goes on when ranks are lost or join, in one call."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from types import FrameType
from typing import Any

import keras
import numpy as np

from tfring.checkpoint import Checkpointer
from tfring.collectives.variables import broadcast_variables
from tfring.data.elastic_dataset import ElasticDataset
from tfring.data.policies import Policy
from tfring.elastic import process as processes
from tfring.elastic.loop import run as elastic_run
from tfring.keras import detect, facts
from tfring.keras.callbacks.checkpoints.rank_state import EpochMetrics
from tfring.keras.callbacks.metrics import MetricAverageCallback
from tfring.keras.elastic.fit_state import FitCheckpoints, FitState
from tfring.keras.elastic.loop import CommitEpochs, CommitSteps, UserCallbacks, Validate
from tfring.keras.model_optimizers import sharded_hooks
from tfring.ops import arguments
from tfring.runtime import topology
from tfring.runtime.signals.termination import TerminationRequest

# In a batch that is only there to trace a step.
_TRACED_SAMPLES = 2


def fit(
    model: Any,
    data: Any,
    *,
    epochs: int,
    policy: Policy | int | None = None,
    callbacks: Sequence[Any] = (),
    validation_data: Any = None,
    validation_batch_size: int | None = None,
    checkpoint: Checkpointer | str | None = None,
    every_epochs: int | None = 1,
    every_steps: int | None = None,
    every_seconds: float | None = None,
    restore: bool | str = True,
    shuffle: bool = True,
    seed: int = 0,
    batches_per_commit: int = 1,
    verbose: Any = "auto",
) -> Any:
    """Trains a model of Keras 3, and goes on when ranks are lost or join (`tfring help elastic`).

    Call it in the same way on all ranks, in elastic jobs and in others. SIGTERM ends this process
    after the present batch, and in a job that is not elastic all ranks.

    Args:
        model: compiled with an optimizer that DistributedOptimizer has wrapped, and built.
        data: an array or a tuple (inputs, targets) or (inputs, targets, sample weights) of arrays
            or structures of arrays, all samples on every rank; or an ElasticDataset.
        epochs: how many epochs are trained, those of the checkpoint included.
        policy: of batch and learning rate; a number means samples of a step on all ranks. None with
            an ElasticDataset, which has a policy of its own.
        callbacks: Keras callbacks; they see one training, and each epoch once.
        validation_data: like `data`; each rank evaluates a part after each epoch. Or anything else
            that `model.evaluate` takes, all of which every rank evaluates.
        validation_batch_size: samples of a batch of one rank; None is Keras' default.
        checkpoint: a Checkpointer, or the path or URL of a folder. Training resumes from its newest
            checkpoint, and saves there.
        every_epochs: saves a checkpoint at the end of every n-th epoch; None for never.
        every_steps: saves after every n-th step, at a commit; None for never.
        every_seconds: saves at a commit when this time has passed on rank 0; None for never.
        restore: whether training resumes from the newest checkpoint; "required": it must.
        shuffle: whether to shuffle the samples, differently in each epoch.
        seed: of the shuffle.
        batches_per_commit: after how many batches the state is committed.
        verbose: as in `model.fit`, of rank 0; the others show nothing.

    Returns:
        The keras.callbacks.History of the whole training, the same on all ranks.

    Raises:
        NotImplementedError: a model of Keras 2, which needs KerasState and the callbacks.
        ValueError: the model is not built, or an argument has an impossible value.
        tf.errors.OpError: a rank was lost, in a job that is not elastic.
    """
    arguments.require_init("fit")
    if detect.is_model(model):
        raise NotImplementedError(
            "hvd.elastic.fit is for models of Keras 3: with Keras 2 use hvd.elastic.KerasState and "
            "the callbacks of hvd.elastic"
        )
    state = FitState(model, _dataset(data, policy, shuffle, seed))
    checkpoints = None
    if checkpoint is not None:
        checkpoints = FitCheckpoints(
            checkpoint,
            callbacks,
            every_epochs=every_epochs,
            every_steps=every_steps,
            every_seconds=every_seconds,
            restore=restore,
        )
    training = _Training(state, epochs, verbose, checkpoints)
    validation = (validation_data, validation_batch_size)
    return training.run(callbacks, validation, batches_per_commit)


class _Training:
    """One call of `fit`, over all generations."""

    def __init__(
        self, state: FitState, epochs: int, verbose: Any, checkpoints: FitCheckpoints | None
    ) -> None:
        self.state = state
        state.has_checkpoints = checkpoints is not None
        self._epochs, self._verbose, self._checkpoints = epochs, verbose, checkpoints
        self._termination = TerminationRequest(_trains)
        self._trained = False  # whether this process has begun to train

    def run(
        self, callbacks: Sequence[Any], validation: tuple[Any, int | None], batches: int
    ) -> Any:
        """Trains with these callbacks and a commit after `batches`; returns the History."""
        begun = (lambda: None) if self._checkpoints is None else self._checkpoints.begin_callbacks
        self._users = UserCallbacks(callbacks, self.state, begun)
        self._steps = CommitSteps(self.state, batches)
        self._callbacks = [
            self._steps,
            MetricAverageCallback(),
            *([] if validation[0] is None else [Validate(*validation, self._users)]),
            self._users,
            CommitEpochs(self.state, self._steps, self._checkpoints, self._wants_to_leave),
        ]
        process = processes.present()
        # With sharded states a step that was traced alone is of no use.
        if process is not None and process.record is None and not sharded_hooks(self.state.model):
            self._trace_alone()
        self._termination.watch()
        try:
            elastic_run(self.train)(self.state)
        finally:
            self._termination.unwatch()
        model = self.state.model
        model.history = self.state.epochs.history(model)
        return model.history

    def _wants_to_leave(self) -> bool:
        """Whether SIGTERM has come."""
        return self._termination.requested

    def train(self, state: FitState) -> None:
        """Trains in one generation, from the present state to the end."""
        if self._checkpoints is not None:
            self._checkpoints.begin_generation()
        if self._checkpoints is not None and not state.restored:
            goes_back = bool(state.lost) and self._users.all is not None
            found = self._checkpoints.restore(state)
            resumed = found if state.batch > 0 else None
            self._steps.keep_metrics(None if resumed is None else resumed.metrics)
            if goes_back:
                self._users.go_back(state.epoch)
                self._checkpoints.begin_callbacks()
        elif self._trained and state.batch > 0:
            self._steps.keep_metrics(EpochMetrics.of(state.model))
        if not state.stopped and state.epoch < self._epochs:
            self._trained = True
            with warnings.catch_warnings():
                # A resumed epoch has fewer batches than Keras expects.
                warnings.filterwarnings("ignore", "Your input ran out of data")
                state.model.fit(
                    state.data,
                    epochs=self._epochs,
                    initial_epoch=state.epoch,
                    callbacks=self._callbacks,
                    shuffle=False,
                    verbose=self._verbose if topology.rank() == 0 else 0,
                )
        self._finish(state)

    def _trace_alone(self) -> None:
        """Lets Keras trace its step before this process joins: the others would wait for it."""
        state = self.state
        samples = state.data.few(_TRACED_SAMPLES)
        averages = MetricAverageCallback()
        state.model.fit(samples, shuffle=False, verbose=0, callbacks=[averages])
        state.restore()
        state.model.reset_metrics()

    def _finish(self, state: FitState) -> None:
        if self._users.all is None:  # nothing was left to train
            self._users.set_model(state.model)
            self._users.set_params({"epochs": self._epochs, "steps": None, "verbose": 0})
            self._users.on_train_begin()
        results = state.epochs.results
        logs = results[-1][1] if results else {}
        self._users.finish(dict(logs) or None)
        if topology.size() > 1:  # a callback may have set other weights
            broadcast_variables(facts.weights_of(state.model), root_rank=0)
        if sharded_hooks(state.model):  # the end of an elastic training is no commit of its own
            state.commit_here()
        if self._checkpoints is not None:
            if self._checkpoints.kept != state.trained:
                self._checkpoints.save_state(state, logs, last=True)
            self._checkpoints.publish()


def _trains(frame: FrameType | None) -> bool:
    """Returns whether a training is among the callers of a frame."""
    while frame is not None:
        if frame.f_code is _Training.train.__code__:
            return True
        frame = frame.f_back
    return False


def _dataset(data: Any, policy: Policy | int | None, shuffle: bool, seed: int) -> ElasticDataset:
    if isinstance(data, ElasticDataset):
        if policy is not None:
            raise ValueError("an ElasticDataset has a policy of its own: leave out policy=")
        return data
    if not isinstance(policy, (Policy, int)):
        raise ValueError(
            f"policy={policy!r} is no batch size. Give policy=256, the samples of a step on all "
            "ranks, or hvd.data.Policy(32, per_rank=True)."
        )
    given = tuple(data) if isinstance(data, (tuple, list)) else (data,)
    arrays = keras.tree.map_structure(np.asarray, given)
    lengths = {len(array) for array in keras.tree.flatten(arrays)}
    if len(lengths) != 1:
        raise ValueError(f"the arrays of data have different lengths: {sorted(lengths)}")

    def load(indices: Any) -> Any:
        batch = keras.tree.map_structure(lambda array: array[indices], arrays)
        return batch if len(batch) > 1 else batch[0]

    [samples] = lengths
    return ElasticDataset(load, samples, policy, shuffle=shuffle, seed=seed)
