"""StragglerCallback: names the rank that became slow, in both Keras, from what really happened."""

from __future__ import annotations

import logging
import time
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras_cases import FEATURES, compiled

import tfring.keras as hvd
from tfring.keras import callbacks

STEPS, SLOW_FROM, SLOW_BY = 120, 70, 0.06


class Slowness:
    """Makes one rank slow from a step on, by more than steps differ on a machine that is busy."""

    def __init__(self, rank: int) -> None:
        self._rank, self._began = rank, list[float]()

    def step(self, number: int) -> None:
        if hvd.rank() != self._rank:
            return
        self._began.append(time.monotonic())
        if number >= SLOW_FROM:
            usual = float(np.quantile(np.diff(self._began[:SLOW_FROM]), 0.9))
            time.sleep(max(SLOW_BY, 2 * usual))


def batches(slow: Slowness) -> Any:
    """Batches of which one rank gets the later ones late."""

    def make(number: Any) -> Any:
        slow.step(int(number))
        return np.float32(number)

    def batch(number: Any) -> Any:
        noise = 0.0 * tf.ensure_shape(tf.numpy_function(make, [number], tf.float32), [])
        return tf.ones((4, FEATURES)) + noise, tf.zeros((4,), tf.int32)

    return tf.data.Dataset.range(STEPS).map(batch)


class SlowComputation(keras.callbacks.Callback):
    """One rank takes long between two gradients, from a step on; and not for its input."""

    def __init__(self, slow: Slowness) -> None:
        super().__init__()
        self._slow = slow

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self._slow.step(batch)


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Any:
    """What rank 0 has logged of the slow rank."""
    caplog.set_level(logging.WARNING, logger="tfring")

    def texts(rank: int) -> list[str]:
        lines = [record.getMessage() for record in caplog.records]
        return [line for line in lines if line.startswith(f"rank {rank} has become slow since")]

    return texts


@pytest.mark.skipif(hvd.size() != 2, reason="holds for any number of ranks; two save time")
@pytest.mark.parametrize("part", ["input pipeline", "computation"])
def test_the_slow_rank_is_named_with_what_is_slow(part: str, said: Any) -> None:
    slow = hvd.size() - 1
    model = compiled(keras.optimizers.SGD(0.01))
    watched = callbacks.StragglerCallback(every=5)
    # Callbacks begin a batch in their order: the sleep comes after the input of the batch.
    others = [SlowComputation(Slowness(slow))] if part == "computation" else []
    data = batches(Slowness(slow if part == "input pipeline" else -1))
    model.fit(data, verbose=0, callbacks=[watched, *others])
    if hvd.rank() == 0:
        lines = said(slow)
        named = [line for line in lines if f"in its {part}" in line]
        steps = [int(line.partition("since step ")[2].partition(":")[0]) for line in named]
        # The machine may have other things to do, too, which slow this rank down at other times.
        assert any(abs(step - SLOW_FROM) <= 20 for step in steps), lines
    else:
        assert said(slow) == []


def test_it_works_in_several_epochs_with_validation_and_in_a_second_fit(said: Any) -> None:
    model = compiled(keras.optimizers.SGD(0.01))
    data = tf.data.Dataset.from_tensors((tf.ones((4, FEATURES)), tf.zeros((4,), tf.int32)))
    watched = callbacks.StragglerCallback(every=3)
    for _ in range(2):
        model.fit(data.repeat(7), epochs=3, verbose=0, validation_data=data, callbacks=[watched])
    # The seventh step of the last epoch comes after the last look.
    assert watched._last == (41 if hvd.rank() == 0 else 0)


def test_impossible_numbers_are_refused() -> None:
    with pytest.raises(ValueError, match="every >= 1"):
        callbacks.StragglerCallback(every=0)
