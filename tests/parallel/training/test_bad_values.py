"""NaN and Inf in one rank's gradients: the rank, the collective and the variable are named."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfring as hvd
from tfring.observe.recorder.layout import EventType
from tfring.observe.recorder.own import own_path
from tfring.observe.recorder.reader import Event, read_record


@pytest.fixture(scope="module", autouse=True)
def warns() -> Iterator[None]:
    yield from checked("warn")


@pytest.fixture
def fails() -> Iterator[None]:
    yield from checked("error")


def checked(action: str) -> Iterator[None]:
    """Restarts the runtime with the check of values, and afterwards without it."""
    before = os.environ.get("TFRING_CHECK_VALUES")
    os.environ["TFRING_CHECK_VALUES"] = action
    hvd.shutdown()
    hvd.init()
    yield
    if before is None:
        del os.environ["TFRING_CHECK_VALUES"]
    else:
        os.environ["TFRING_CHECK_VALUES"] = before
    hvd.shutdown()
    hvd.init()


def reports() -> list[Event]:
    """This rank's reports of NaN and Inf since init, the oldest first."""
    return events(EventType.BAD_VALUES)


def events(kind: EventType) -> list[Event]:
    """The events of a kind in this rank's record."""
    path = own_path()
    assert path is not None
    return [event for event in read_record(path).events if event.type is kind]


def variables() -> tuple[Any, Any]:
    return tf.Variable([1.0, 2.0], name="good"), tf.Variable(tf.ones([3, 4]), name="bad")


def poisoned(value: float, rank: int) -> Any:
    """The gradient of `bad`: on this rank two of its elements are `value`."""
    gradient = np.full([3, 4], 0.5, np.float32)
    if hvd.rank() == rank:
        gradient[0, 0] = gradient[2, 3] = value
    return tf.constant(gradient)


@pytest.mark.parametrize("in_function", [False, True])
def test_the_rank_and_the_variable_are_named_once(several: int, in_function: bool) -> None:
    good, bad = variables()
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1))
    odd = several - 1
    before = len(reports())

    def step(gradient: Any) -> None:
        optimizer.apply([tf.ones([2]), gradient], [good, bad])

    run = tf.function(step) if in_function else step
    run(poisoned(1.0, odd))
    assert len(reports()) == before
    for _ in range(2):
        run(poisoned(np.nan, odd))
    found = reports()[before:]
    assert len(found) == (1 if hvd.rank() == odd else 0)
    if found:
        assert found[0].value == 2
        assert f"rank {odd}: the gradient of 'bad:0' holds 2 NaN in 12 float32 values" in (
            found[0].text
        )
        assert "test_bad_values.py:" in found[0].text
        assert "call 2" in found[0].text
    assert np.isnan(bad.numpy()).any()  # a warning changes nothing


def test_the_path_of_a_keras_variable_is_used(several: int) -> None:
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2, name="head")])
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), loss="mse")
    x = np.ones([8, 4], np.float32)
    if hvd.rank() == 0:
        x[3, 1] = np.inf
    before = len(reports())
    model.fit(x, np.zeros([8, 2], np.float32), batch_size=8, verbose=0)
    found = [event.text for event in reports()[before:]]
    assert bool(found) == (hvd.rank() == 0)
    assert all("/head/kernel' holds" in text for text in found)


def test_a_loss_scale_that_is_too_large_is_no_warning(several: int) -> None:
    good, bad = variables()
    scaling = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1), initial_scale=8.0)
    optimizer = hvd.DistributedOptimizer(scaling)
    before = len(reports())
    optimizer.apply([tf.ones([2]), poisoned(np.inf, several - 1)], [good, bad])
    found = [event.text for event in reports()[before:]]
    assert len(found) == (1 if hvd.rank() == several - 1 else 0)
    assert all("With a loss scale this is no mistake" in text for text in found)
    np.testing.assert_array_equal(bad.numpy(), np.ones([3, 4]))  # the step was skipped
    assert float(scaling.dynamic_scale.numpy()) == 4.0


def test_an_error_ends_the_step_on_every_rank(several: int, fails: None) -> None:
    """The rank that has the values says so; the others' next collective names it."""
    odd = several - 1

    @tf.function
    def step(gradient: Any) -> Any:
        first = hvd.allreduce(gradient, name="first")
        with tf.control_dependencies([first]):
            return hvd.allreduce(tf.ones([2]), name="second")

    step(poisoned(1.0, odd))
    what = tf.errors.InvalidArgumentError if hvd.rank() == odd else tf.errors.AbortedError
    with pytest.raises(what, match=rf"rank {odd}: tensor 0 holds 2 NaN in 12 float32 values"):
        step(poisoned(np.nan, odd))
    step(poisoned(1.0, odd))  # all ranks go on


def test_bounds_are_not_values(several: int) -> None:
    """Inf is what a minimum starts from."""
    del several
    before = len(reports())
    hvd.allreduce(tf.constant([np.inf]), op=hvd.Min, name="bounds")
    assert len(reports()) == before


@pytest.mark.parametrize("jit_compile", [None, False, True])
def test_norms_are_those_of_this_rank(jit_compile: bool | None) -> None:
    """In eager mode, in a function, and compiled by XLA, which leaves no mark."""
    norms = hvd.GradientNorms(every=2)
    variable = tf.Variable([0.0, 0.0])

    def step(gradient: Any) -> Any:
        with tf.GradientTape() as tape:
            target = tf.reduce_sum(variable * gradient)
        return hvd.DistributedGradientTape(tape, before_reduce=norms).gradient(target, variable)

    run = step if jit_compile is None else tf.function(step, jit_compile=jit_compile)
    before = len(events(EventType.MARK))
    for size in (1.0, 10.0, 100.0):
        run(tf.constant([3.0, 4.0]) * size * (hvd.rank() + 1))
        expected = 5.0 * (hvd.rank() + 1) * (100.0 if size == 100.0 else 1.0)
        np.testing.assert_allclose(norms.norm.numpy(), expected)
    texts = [event.text for event in events(EventType.MARK)[before:]]
    assert len(texts) == (0 if jit_compile else 2)
    assert all(f"in step {i}" in text for i, text in zip((1, 3), texts, strict=False))


def test_norms_need_a_number_of_steps() -> None:
    with pytest.raises(ValueError, match="every >= 1"):
        hvd.GradientNorms(every=0)
