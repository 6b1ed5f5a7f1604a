"""What `fit` writes of itself into the record, whatever callbacks of tfring it has."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import keras
import pytest
import tensorflow as tf
from keras_cases import FEATURES, compiled, written

import tfring.keras as hvd
from tfring.keras.callbacks.observing import event_files, progress
from tfring.observe.recorder.own import own_path
from tfring.observe.recorder.reader import read_header

STEPS, EPOCHS, SAMPLES = 6, 2, 4
INPUT, CALLBACK = 0.02, 0.03  # seconds of each step, at least


class Sleeps(keras.callbacks.Callback):  # type: ignore[misc]
    """A callback that takes long after each batch."""

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        time.sleep(CALLBACK)


def slow_batches() -> Any:
    def late(number: Any) -> Any:
        time.sleep(INPUT)
        return tf.ones((SAMPLES, FEATURES)), tf.zeros((SAMPLES,), tf.int32)

    def batch(number: Any) -> Any:
        x, y = tf.py_function(late, [number], (tf.float32, tf.int32))
        return tf.ensure_shape(x, (SAMPLES, FEATURES)), tf.ensure_shape(y, (SAMPLES,))

    return tf.data.Dataset.range(STEPS).map(batch)


def header() -> dict[str, Any]:
    path = own_path()
    assert path is not None
    return read_header(path)


def test_fit_notes_epoch_step_loss_samples_input_and_callbacks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    together = 3
    monkeypatch.setattr(progress, "_EVERY_NANOSECONDS", 0)
    before = header()
    model = compiled(keras.optimizers.SGD(0.01), steps_per_execution=together)
    x, y = tf.ones((SAMPLES, FEATURES)), tf.zeros((SAMPLES,), tf.int32)
    model.fit(
        slow_batches(),
        epochs=EPOCHS,
        verbose=0,
        validation_data=(x, y),
        callbacks=hvd.fit_callbacks(Sleeps()),
    )
    after = header()
    assert (after["epoch"], after["epochs"]) == (EPOCHS, EPOCHS)
    # Of this process's first fit nothing came before.
    first = max(0, before["step"])
    assert after["step"] == after["last_step"] == first + EPOCHS * STEPS
    assert after["samples"] - before["samples"] == EPOCHS * STEPS * SAMPLES
    assert after["has_loss"] == 1
    assert after["loss"] > 0
    assert after["input_time"] - before["input_time"] >= 1e9 * INPUT * EPOCHS * STEPS
    # After the last batch of an epoch there is none before which it could end.
    executions = EPOCHS * (STEPS // together - 1)
    assert after["callback_time"] - before["callback_time"] >= 1e9 * CALLBACK * executions


@pytest.mark.parametrize("logs", [{"loss": tf.ones(3)}, {}, None])
def test_a_loss_that_is_no_number_is_not_noted(logs: Any) -> None:
    model = compiled(keras.optimizers.SGD(0.01))
    own = progress.Progress({"epochs": 1, "steps": 1})
    own.begin_epoch(0)
    own.end_batch(model, 1, logs)
    assert (header()["epoch"], header()["has_loss"]) == (1, 0)


class TensorBoard(keras.callbacks.Callback):  # type: ignore[misc]
    """Stands where Keras' is, for which TensorBoard may not be installed."""

    def __init__(self, log_dir: Path) -> None:
        super().__init__()
        self.log_dir = log_dir


@pytest.mark.usefixtures("eager_functions")
def test_tensorboard_gets_the_times_of_all_ranks_without_being_asked(tmp_path: Path) -> None:
    x, y = tf.ones((2 * SAMPLES, FEATURES)), tf.zeros((2 * SAMPLES,), tf.int32)
    model = compiled(keras.optimizers.SGD(0.01))
    callbacks = hvd.fit_callbacks(Sleeps(), TensorBoard(tmp_path))
    model.fit(x, y, batch_size=SAMPLES, epochs=EPOCHS, verbose=0, callbacks=callbacks)
    folders = sorted(path.name for path in tmp_path.iterdir())
    if hvd.rank() or hvd.size() == 1:  # where it is one folder for all ranks, rank 0 writes alone
        assert folders == []
        return
    assert folders == [f"rank-{rank}" for rank in range(hvd.size())]
    for folder in folders:
        found = written(tmp_path / folder)
        names = ("callbacks", "exchange", "input", "step", "waiting")
        assert sorted(found) == [f"tfring/{name}_seconds" for name in names]
        for epochs in found.values():
            assert sorted(epochs) == list(range(EPOCHS))
        for epoch in range(EPOCHS):
            seconds = {name: found[f"tfring/{name}_seconds"][epoch] for name in names}
            # One of two steps has a batch after it.
            assert seconds["step"] > seconds["callbacks"] >= 0.99 * CALLBACK / 2
            assert seconds["step"] > seconds["exchange"] >= seconds["waiting"] >= 0


def test_a_callback_that_is_only_called_tensorboard_is_left_alone() -> None:
    assert event_files.event_files_of([type("TensorBoard", (), {})()]) is None
    assert event_files.event_files_of([type("TensorBoard", (), {"log_dir": None})()]) is None


def test_a_timeline_shows_fit_input_and_callbacks_of_all_ranks(tmp_path: Path) -> None:
    file = Path(hvd.broadcast_object(str(tmp_path))) / "fit.json"
    model = compiled(keras.optimizers.SGD(0.01))
    hvd.start_timeline(file)
    model.fit(slow_batches(), epochs=2, verbose=0, callbacks=hvd.fit_callbacks(Sleeps()))
    hvd.stop_timeline()
    if hvd.rank():
        return
    events = json.loads(file.read_text())["traceEvents"]
    lanes = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    slices = [e for e in events if e["ph"] == "X"]
    for process in {e["pid"] for e in slices if lanes[e["tid"]] == "steps"} - {1}:
        own = [(lanes[e["tid"]], e["name"], e["dur"]) for e in slices if e["pid"] == process]
        epochs = [name for lane, name, _ in own if lane == "fit" and "epoch" in name]
        assert epochs == ["epoch 1", "after epoch 1: validation, callbacks", "epoch 2"]
        assert len([one for one in own if one[0] == "fit" and "step" in one[1]]) == 2 * STEPS
        inputs = [duration for lane, _, duration in own if lane == "input"]
        assert sum(inputs) >= 0.99e6 * INPUT * 2  # the first batch of an epoch at least
        waits = [duration for lane, _, duration in own if lane == "callbacks"]
        assert len(waits) == 2 * (STEPS - 1) and min(waits) >= 0.99e6 * CALLBACK
