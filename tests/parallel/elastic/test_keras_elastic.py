"""Elastic training with Keras in a job whose ranks stay: states, callbacks, fit."""

from __future__ import annotations

import os
import signal
import warnings
from pathlib import Path
from typing import Any

import keras
import keras_cases as cases
import numpy as np
import pytest
import tensorflow as tf

import tfring.keras as hvd
from tfring.checkpoint import Checkpointer
from tfring.data.cursor import Cursor
from tfring.elastic import tensorflow_state
from tfring.runtime import topology

BATCH, SEED, SAMPLES = 8, 5, 3 * 8 + 3


def samples() -> tuple[Any, Any]:
    rng = np.random.default_rng(2)
    x = rng.normal(size=(SAMPLES, cases.FEATURES)).astype(np.float32)
    return x, rng.integers(0, cases.CLASSES, SAMPLES)


def model_of_this_rank(*middle: Any, **compile_kwargs: Any) -> Any:
    how = {"jit_compile": False, "weighted_metrics": ["accuracy"], **compile_kwargs}
    return cases.compiled(sgd(), seed=3 + hvd.rank(), middle=middle, **how)


def sgd() -> Any:
    return keras.optimizers.SGD(0.2, momentum=0.9)


def reference(epochs: int) -> Any:
    """Weights and losses of one process with plain Keras and the same batches: rank 0 does it."""
    result = None
    if hvd.rank() == 0:
        x, y = samples()
        model = cases.build_model(seed=3)
        model.compile(sgd(), cases.loss(), jit_compile=False)
        losses = []
        for epoch in range(epochs):
            order = Cursor(SAMPLES, SEED, epoch=epoch).order()
            done = model.fit(x[order], y[order], batch_size=BATCH, shuffle=False, verbose=0)
            losses += done.history["loss"]
        result = model.get_weights(), losses
    return hvd.broadcast_object(result)


def assert_same_losses(ours: Any, theirs: Any) -> None:
    """Not quite: Keras adds up a rank's losses by samples, where its part of a batch is larger."""
    np.testing.assert_allclose(ours, theirs, rtol=0.05)


class Events(keras.callbacks.Callback):  # type: ignore[misc]
    """Notes what Keras calls."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Any] = []

    def on_train_begin(self, logs: Any = None) -> None:
        self.seen.append("begin")

    def on_train_end(self, logs: Any = None) -> None:
        self.seen.append("end")

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.seen.append(("epoch", epoch))

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.seen.append(("ended", epoch))

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.seen.append(batch)


def events(first: int, epochs: int, steps: int) -> list[Any]:
    within = [
        event
        for epoch in range(first, epochs)
        for event in (("epoch", epoch), *range(steps), ("ended", epoch))
    ]
    return ["begin", *within, "end"]


def elastic_fit(model: Any, epochs: int, *callbacks: Any, **more: Any) -> Any:
    how = {"policy": BATCH, "seed": SEED, "verbose": 0, **more}
    return hvd.elastic.fit(model, samples(), epochs=epochs, callbacks=list(callbacks), **how)


def test_fit_is_that_of_one_process() -> None:
    model, seen = model_of_this_rank(), Events()
    history = elastic_fit(model, 2, seen)
    weights, losses = reference(2)
    cases.assert_same_weights(model, weights)
    cases.assert_same_on_all_ranks(model)
    assert history.epoch == [0, 1] and model.history is history
    assert_same_losses(history.history["loss"], losses)
    assert seen.seen == events(0, 2, 4)


def test_fit_goes_on_from_a_checkpoint_within_an_epoch(tmp_path: Path) -> None:
    """A first job is asked to end after six of eight steps; the second one does the rest."""
    folder = hvd.broadcast_object(str(tmp_path))
    asked = 6

    class AskToEnd(keras.callbacks.Callback):  # type: ignore[misc]
        steps = 0

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            self.steps += 1
            if self.steps == asked and hvd.rank() == hvd.size() - 1:
                os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(SystemExit) as left:
        elastic_fit(model_of_this_rank(), 2, AskToEnd(), checkpoint=folder)
    assert left.value.code == 75
    model, seen = model_of_this_rank(), Events()
    history = elastic_fit(model, 2, seen, checkpoint=folder)
    weights, losses = reference(2)
    cases.assert_same_weights(model, weights)
    assert seen.seen[:3] == ["begin", ("epoch", 1), asked - 4]
    assert history.epoch == [0, 1]
    assert_same_losses(history.history["loss"][:1], losses[:1])


@pytest.mark.parametrize("every", ["every_steps", "every_seconds"])
def test_fit_saves_within_epochs(tmp_path: Path, every: str) -> None:
    folder = hvd.broadcast_object(str(tmp_path))
    often = {"every_steps": 2} if every == "every_steps" else {"every_seconds": 1e-9}
    checkpoints = Checkpointer(folder, keep_last=100, asynchronous=False)
    model = model_of_this_rank()
    elastic_fit(model, 2, checkpoint=checkpoints, every_epochs=None, **often)
    if hvd.rank() == 0:
        saved = [info.metadata["tfring"] for info in checkpoints.all()]
        wanted = range(2, 9, 2) if every == "every_steps" else range(1, 9)
        assert [4 * each["epoch"] + each["batch"] for each in saved] == list(wanted)
        assert [each["batch"] for each in saved] == [n % 4 for n in wanted]
    with pytest.raises(RuntimeError, match="finds no checkpoint"):
        elastic_fit(model, 2, checkpoint=f"{folder}/none", restore="required")
    resumed, seen = model_of_this_rank(), Events()
    elastic_fit(resumed, 3, seen, checkpoint=folder, restore="required")
    assert seen.seen == events(2, 3, 4)


def test_fit_and_callbacks_read_each_others_checkpoints(tmp_path: Path) -> None:
    folder = hvd.broadcast_object(str(tmp_path))
    x, y = samples()
    callbacks = hvd.fit_callbacks(checkpoint=folder)
    model_of_this_rank().fit(x, y, batch_size=BATCH, epochs=1, verbose=0, callbacks=callbacks)
    seen = Events()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "the checkpoint has no data cursor")
        elastic_fit(model_of_this_rank(), 3, seen, checkpoint=folder, restore="required")
    assert seen.seen == events(1, 3, 4), "two whole epochs"
    seen = Events()
    callbacks = hvd.fit_callbacks(seen, checkpoint=folder, restore="required")
    model_of_this_rank().fit(x, y, batch_size=BATCH, epochs=4, verbose=0, callbacks=callbacks)
    assert seen.seen == events(3, 4, 4)


def test_what_callbacks_decide_at_the_end_of_an_epoch_holds_after_a_failure() -> None:
    """It comes when they have decided, and before all ranks have agreed and committed."""
    model, failures = model_of_this_rank(), [1, 2]

    class Decide(keras.callbacks.Callback):  # type: ignore[misc]
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            self.model.optimizer.learning_rate = 0.1 / (epoch + 1)
            self.model.stop_training = epoch == 2

    class Fail(keras.callbacks.Callback):  # type: ignore[misc]
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            if failures and failures[0] == epoch:
                failures.pop(0)
                raise hvd.elastic.HorovodInternalError("planted")

    rates: list[float] = []
    note = keras.callbacks.LambdaCallback(
        on_epoch_begin=lambda epoch, logs: rates.append(float(model.optimizer.learning_rate))
    )
    history = elastic_fit(model, 9, Decide(), Fail(), note)
    assert not failures and history.epoch == [0, 1, 2]
    np.testing.assert_allclose(rates, [0.2, 0.1, 0.05], rtol=1e-6)
    np.testing.assert_allclose(float(model.optimizer.learning_rate), 0.1 / 3, rtol=1e-6)


@pytest.mark.any_ranks
def test_fit_of_arrays_needs_a_policy() -> None:
    policy = "scaled"
    with pytest.raises(ValueError, match=f"policy={policy!r} is no batch size. Give policy=256"):
        elastic_fit(model_of_this_rank(), 1, policy=policy)


def test_fit_validates_and_stops() -> None:
    x, y = samples()
    stop = keras.callbacks.EarlyStopping("val_loss", min_delta=1e9, patience=1)
    model = model_of_this_rank()
    policy = hvd.data.Policy(2, per_rank=True)
    history = elastic_fit(model, 9, stop, validation_data=(x, y), policy=policy)
    assert history.epoch == [0, 1]
    loss, accuracy = model.evaluate(x, y, verbose=0)
    np.testing.assert_allclose(history.history["val_loss"][-1], loss, rtol=1e-4)
    np.testing.assert_allclose(history.history["val_accuracy"][-1], accuracy, rtol=1e-4)
    np.testing.assert_allclose(float(model.optimizer.learning_rate), 0.2 * hvd.size(), rtol=1e-5)
    cases.assert_same_on_all_ranks(model)


class Fault(keras.layers.Layer):  # type: ignore[misc]
    """Passes its input on, or makes the step fail."""

    fails = False

    def call(self, x: Any) -> Any:
        def maybe(value: Any) -> Any:
            if self.fails:
                raise ValueError("planted")
            return value

        checked = tf.numpy_function(maybe, [x], x.dtype, stateful=False)
        return x + 0.0 * tf.ensure_shape(checked, x.shape)


def test_commits_of_all_batches_copy_no_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """In an elastic job. A step fails on one rank, and the next one goes on with what is there."""
    monkeypatch.setattr(topology, "_slot", topology.local_rank())
    fault = Fault()
    model = model_of_this_rank(keras.layers.BatchNormalization(), fault, keras.layers.Dropout(0.5))
    model.fit(*cases.my_data(1), batch_size=cases.PER_RANK, verbose=0)  # makes all variables
    state = hvd.elastic.KerasState(model, epoch=0, batch=0)
    at_commit: list[Any] = []
    faults = [6]

    def before(batch: int, logs: Any = None) -> None:
        if faults and state.epoch * 4 + state.batch == faults[0]:
            at_commit[:] = [v.numpy() for v in model.variables]
            fault.fails = hvd.rank() == hvd.size() - 1

    @hvd.elastic.run
    def train(state: Any) -> None:
        if at_commit:
            for before_fault, variable in zip(at_commit, model.variables, strict=True):
                np.testing.assert_array_equal(before_fault, variable.numpy())
        callbacks = [
            keras.callbacks.LambdaCallback(on_train_batch_begin=before),
            hvd.elastic.UpdateEpochStateCallback(state),
            hvd.elastic.UpdateBatchStateCallback(state),
            hvd.elastic.CommitStateCallback(state),
        ]
        try:
            cases.fit(model, *callbacks, steps=4, epochs=3, initial_epoch=state.epoch)
        except tf.errors.OpError as error:
            fault.fails = False
            faults.clear()
            raise hvd.elastic.HorovodInternalError("the step failed") from error

    train(state)
    assert at_commit and not faults
    assert int(model.optimizer.iterations) == 12 + 1
    copied = {id(variable) for variable, _ in state._saved_variables}
    trained = [*model.trainable_variables, *model.optimizer.variables]
    trained = [v for v in trained if v is not model.optimizer._learning_rate]
    assert copied and not copied & {id(variable) for variable in trained}


def test_a_state_that_came_in_part_is_not_gone_on_with(monkeypatch: pytest.MonkeyPatch) -> None:
    """In an elastic job. The rank that is ahead is lost while the others take its state."""
    monkeypatch.setattr(topology, "_slot", topology.local_rank())
    model = model_of_this_rank()
    model.fit(*cases.my_data(1), batch_size=cases.PER_RANK, verbose=0)  # makes all variables
    state = hvd.elastic.KerasState(model, epoch=0, batch=0)
    state.commits_each_batch(True)
    state.commit()
    assert not {id(v) for v, _ in state._saved_variables} & {id(v) for v in model.weights}
    committed = [v.numpy() for v in state._variables()]

    def lost(variables: Any, root: int, name: str) -> None:
        for variable in variables[: len(variables) // 2]:
            variable.assign(variable + tf.cast(1, variable.dtype))
        model.optimizer.iterations.assign_add(1)
        raise tf.errors.UnavailableError(None, None, "planted")

    monkeypatch.setattr(tensorflow_state, "broadcast_", lost)
    with pytest.raises(tf.errors.UnavailableError):
        state._send(0)
    state.restore()
    for before, variable in zip(committed, state._variables(), strict=True):
        np.testing.assert_array_equal(before, variable.numpy())


@pytest.mark.parametrize("batches", [1, 3])
def test_horovods_callbacks(batches: int) -> None:
    """A failure within the second epoch: training goes on with what was committed."""
    x, y = cases.my_data(4)
    model = model_of_this_rank()
    state = hvd.elastic.KerasState(model, epoch=0, batch=0)
    began: list[Any] = []
    at_commit: list[Any] = []

    class Fail(keras.callbacks.Callback):  # type: ignore[misc]
        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            if state.epoch == 1 and state.batch == 2 and len(began) == 1:
                began.append(None)
                at_commit.extend(model.get_weights())
                raise hvd.elastic.HorovodInternalError("planted")

    @hvd.elastic.run
    def train(state: Any) -> str:
        began.append((state.epoch, state.batch, model.get_weights()))
        model.fit(
            x,
            y,
            batch_size=cases.PER_RANK,
            shuffle=False,
            verbose=0,
            epochs=3 - state.epoch,
            callbacks=[
                Fail(),
                hvd.elastic.UpdateEpochStateCallback(state),
                hvd.elastic.UpdateBatchStateCallback(state),
                hvd.elastic.CommitStateCallback(state, batches_per_commit=batches),
            ],
        )
        return "done"

    assert train(state) == "done"
    assert (state.epoch, state.batch) == (3, 0)
    first, _, second = began
    assert first[:2] == (0, 0)
    assert second[:2] == ((1, 2) if batches == 1 else (1, 0))
    same = all(np.array_equal(a, b) for a, b in zip(second[2], at_commit, strict=True))
    assert same == (batches == 1)
    assert int(model.optimizer.iterations) == 12
    cases.assert_same_on_all_ranks(model)


def test_epochs_of_endless_data_have_all_their_steps_after_one_that_went_on() -> None:
    model = model_of_this_rank()
    state = hvd.elastic.KerasState(model, epoch=0, batch=3)
    x, y = cases.my_data(1)
    data = tf.data.Dataset.from_tensor_slices((x, y)).batch(cases.PER_RANK).repeat()
    callbacks = [
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),
        hvd.elastic.UpdateBatchStateCallback(state),
        hvd.elastic.UpdateEpochStateCallback(state),
    ]
    model.fit(data, steps_per_epoch=5, epochs=3, verbose=0, callbacks=callbacks)
    assert int(model.optimizer.iterations) == 2 + 5 + 5
