"""Ranks that train on parts of a batch do what one process does with the whole batch."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras_cases import (
    PER_RANK,
    assert_same_on_all_ranks,
    assert_same_weights,
    broadcast,
    build_model,
    compiled,
    fit,
    loss,
    my_data,
    train_alone,
    train_together,
    whole_data,
)
from tiers import slow

import tfring.keras as hvd
from tfring.ops import xla

eager = pytest.mark.usefixtures("eager_functions")  # tracing takes most of the time


def accumulating() -> Any:
    return keras.optimizers.SGD(0.1, gradient_accumulation_steps=4)


def test_several_steps_at_once_equal_one_process_and_the_model_is_freed() -> None:
    together = train_together(accumulating(), steps=10, seed=2, steps_per_execution=5)
    assert_same_weights(together, train_alone(accumulating(), steps=10, seed=2))
    reference = weakref.ref(together)
    del together
    gc.collect()
    assert reference() is None


@eager
def test_jit_compile_is_turned_off_with_a_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(xla._State, "trouble", "no library")
    with pytest.warns(UserWarning, match="jit_compile.*no library"):
        model = train_together(keras.optimizers.SGD(0.1), steps=1, seed=3, jit_compile=True)
    assert not model.jit_compile


def test_jit_compile_without_a_callback_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(xla._State, "trouble", "no library")
    model = compiled(keras.optimizers.SGD(0.1), jit_compile=True)
    with pytest.raises(NotImplementedError, match="no library; use jit_compile=False"):
        fit(model)


def test_train_on_batch_equals_one_process() -> None:
    model = compiled(keras.optimizers.Adam(1e-2), seed=10)
    x, y = my_data(6)
    for step in range(6):
        batch = slice(step * PER_RANK, (step + 1) * PER_RANK)
        model.train_on_batch(x[batch], y[batch])
    assert_same_weights(model, train_alone(keras.optimizers.Adam(1e-2), steps=6, seed=10))


class Branching(keras.layers.Layer):
    """Doubles its input where a condition holds, and has a weight that is never used."""

    def build(self, input_shape: Any) -> None:
        self.kernel = self.add_weight(shape=(input_shape[-1], 4), initializer="ones")
        self.unused = self.add_weight(shape=(5,), initializer="ones")

    def call(self, inputs: Any) -> Any:
        mixed = inputs @ self.kernel
        return tf.cond(tf.reduce_sum(inputs) > 0, lambda: mixed * 2.0, lambda: mixed * 0.5)


@pytest.mark.any_ranks
def test_branches_that_differ_between_ranks_and_weights_without_a_gradient() -> None:
    """A rank with an even number takes one branch, one with an odd number the other."""
    model = keras.Sequential([keras.layers.Input((3,)), Branching()])
    model.compile(optimizer=hvd.DistributedOptimizer(keras.optimizers.SGD(1.0)), loss="mse")
    sign = 1.0 if hvd.rank() % 2 == 0 else -1.0
    x = np.full((2, 3), sign, dtype="float32")
    factors = np.array([2.0 if r % 2 == 0 else -0.5 for r in range(hvd.size())])
    with pytest.warns(UserWarning, match="Gradients do not exist"):
        model.fit(x, np.zeros((2, 4)), batch_size=2, verbose=0)
    # Each output is 3 * factor, so each of its weights has the gradient 2 * 3 * factor^2 / 4.
    expected = 1.0 - np.mean(2 * 3 * factors**2 / 4)
    np.testing.assert_allclose(model.layers[0].kernel, np.full((3, 4), expected), rtol=1e-5)
    np.testing.assert_array_equal(model.layers[0].unused, np.ones(5))
    assert_same_on_all_ranks(model)


@eager
@pytest.mark.any_ranks
@pytest.mark.parametrize("wrap", [hvd.DistributedOptimizer, lambda optimizer: optimizer])
def test_a_model_without_trainable_weights_trains_nothing(wrap: Any) -> None:
    """Its optimizer need not reduce anything; the weights are broadcast all the same."""
    model = keras.Sequential([keras.layers.Input((3,)), Branching()])
    model.layers[0].trainable = False
    model.layers[0].kernel.assign(np.full((3, 4), hvd.rank() + 1.0))
    model.compile(optimizer=wrap(keras.optimizers.SGD(1.0)), loss="mse")
    with pytest.warns(UserWarning, match="does not have any trainable weights"):
        fit(model, *hvd.fit_callbacks(), data=(np.ones((2, 3)), np.zeros((2, 4))), epochs=2)
    np.testing.assert_array_equal(model.layers[0].kernel, np.ones((3, 4)))


def test_a_partial_last_batch_on_one_rank_only() -> None:
    """That rank retraces; the names stay, and the others do not wait for ever."""
    model = compiled(keras.optimizers.SGD(0.1))
    x, y = my_data(3)
    if hvd.rank() == hvd.size() - 1:
        x, y = x[:-2], y[:-2]
    fit(model, data=(x, y), epochs=2)
    assert_same_on_all_ranks(model)


@pytest.mark.parametrize("resumed", [True, False])
def test_an_optimizer_wrapped_after_the_first_fit_is_repaired(resumed: bool) -> None:
    model = build_model(7)
    model.compile(optimizer=keras.optimizers.SGD(0.1), loss=loss())
    fit(model)  # traces without reducing: ranks drift apart
    if resumed:
        hvd.DistributedOptimizer(model.optimizer, resumed=True)
    else:
        model.optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1))
    fit(model, broadcast())  # the callback makes fit trace anew
    assert_same_on_all_ranks(model)


class OwnTrainStep(keras.Model):
    """Trains with a tape of its own, distributed or not."""

    def __init__(self, distributed: bool) -> None:
        super().__init__()
        self.dense, self.distributed = keras.layers.Dense(3), distributed

    def call(self, inputs: Any) -> Any:
        return self.dense(inputs)

    def train_step(self, data: Any) -> Any:
        import tfring

        x, y = data
        with tf.GradientTape() as tape:
            value = self.compute_loss(x=x, y=y, y_pred=self(x))
        if self.distributed:
            tape = tfring.DistributedGradientTape(tape)
        gradients = tape.gradient(value, self.trainable_variables)
        gradients, _ = tf.clip_by_global_norm(gradients, 1e6)
        self.optimizer.apply(gradients, self.trainable_variables)
        return {"loss": value}


@eager
def test_an_own_train_step_with_a_distributed_optimizer_equals_one_process() -> None:
    model = OwnTrainStep(distributed=False)
    model.compile(optimizer=hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), loss=loss())
    model(my_data(5)[0])
    model.set_weights([np.full(w.shape, 0.1) for w in model.get_weights()])
    fit(model, steps=5)
    alone = keras.Sequential([keras.layers.Input((8,)), keras.layers.Dense(3)])
    alone.set_weights([np.full(w.shape, 0.1) for w in alone.get_weights()])
    alone.compile(optimizer=keras.optimizers.SGD(0.1), loss=loss())
    alone.fit(*whole_data(5), batch_size=PER_RANK * hvd.size(), shuffle=False, verbose=0)
    assert_same_weights(model, alone.get_weights())


@eager
def test_an_own_train_step_must_reduce_one_way_or_the_other_and_not_both() -> None:
    model = OwnTrainStep(distributed=True)
    model.compile(optimizer=keras.optimizers.SGD(0.1), loss=loss())
    for _ in range(2):  # the second fit does not trace again
        fit(model, broadcast())
    assert_same_on_all_ranks(model)
    model = OwnTrainStep(distributed=True)
    model.compile(optimizer=hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), loss=loss())
    with pytest.raises(ValueError, match="not both"):
        fit(model)
    if hvd.size() > 1:
        model = OwnTrainStep(distributed=False)
        model.compile(optimizer=keras.optimizers.SGD(0.1), loss=loss())
        with pytest.raises(RuntimeError, match="no gradient was reduced"):
            fit(model, broadcast())


class Traced(keras.layers.Layer):  # type: ignore[misc]
    """Hands its input on, and counts how often Python runs it."""

    calls = 0

    def call(self, inputs: Any) -> Any:
        Traced.calls += 1
        return inputs


@pytest.mark.parametrize(("name", "times"), [("Adam", 1), slow("ScheduleFreeAdamW", 2)])
def test_the_first_step_is_traced_once(name: str, times: int) -> None:
    """But not with an optimizer that copies the weights when it is built."""
    make = getattr(keras.optimizers, name, None)
    if make is None:
        pytest.skip(f"this Keras has no {name}")
    model = compiled(make(0.1), middle=[Traced()])
    Traced.calls = 0
    fit(model, broadcast())
    assert Traced.calls == times
