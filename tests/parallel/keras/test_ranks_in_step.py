"""Ranks that begin other epochs, stop alone, or change rates alone get an error, and no wait."""

from __future__ import annotations

import warnings
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras_cases import (
    FEATURES,
    assert_same_on_all_ranks,
    broadcast,
    build_model,
    compiled,
    fit,
    loss,
)

import tfring
import tfring.keras as hvd
from tfring.keras.model_optimizers import optimizers_of

pytestmark = pytest.mark.usefixtures("eager_functions")


def small() -> Any:
    return compiled(keras.optimizers.SGD(0.01))


def average() -> Any:
    return hvd.callbacks.MetricAverageCallback()


class Score(keras.callbacks.Callback):
    """A metric that gets better on rank 0 and worse on all others."""

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        logs["score"] = float(epoch if hvd.rank() else -epoch)


def plateau() -> Any:
    return keras.callbacks.ReduceLROnPlateau("score", patience=1, mode="min", cooldown=0)


def stopping() -> Any:
    return keras.callbacks.EarlyStopping("score", patience=1, mode="min")


@pytest.mark.parametrize("decide", [plateau, stopping])
def test_deciding_by_a_ranks_own_metric_is_an_error(several: int, decide: Any) -> None:
    what = "learning rate of optimizer" if decide is plateau else "when training ends.*has ended"
    model = small()
    with pytest.raises(RuntimeError, match=f"{what}.*must come after MetricAverageCallback"):
        fit(model, Score(), decide(), broadcast(), average(), epochs=6, steps=1)
    fit(model, Score(), average(), decide(), broadcast(), epochs=6, steps=1)  # as it should be
    assert_same_on_all_ranks(model)


def test_learning_rates_may_differ_by_rounding(several: int) -> None:
    """Processors of different kinds compute a schedule's cosine differently."""
    for difference in (1e-6, 1e-3):
        rate = 0.01 * (1 + difference * hvd.rank())
        model = compiled(keras.optimizers.SGD(keras.optimizers.schedules.CosineDecay(rate, 100)))
        if difference < 1e-5:
            fit(model, average(), steps=1)
            continue
        with pytest.raises(RuntimeError, match="differ in the learning rate of optimizer"):
            fit(model, average(), steps=1)


@pytest.mark.parametrize(
    ("mine", "match"),
    [
        ({"initial_epoch": 2}, r"rank 0: begins epoch 3, rank 1: begins epoch 1.*initial_epoch"),
        ({"epochs": 2}, r"rank 0: has ended, rank 1: begins epoch 3.*epochs="),
    ],
)
def test_other_epochs_are_an_error(several: int, mine: Any, match: str) -> None:
    model = small()
    how = {"epochs": 4, **(mine if hvd.rank() == 0 else {})}
    with pytest.raises(RuntimeError, match=match):
        fit(model, average(), steps=1, **how)


class Stop(keras.callbacks.Callback):
    """Stops training in the middle of the second epoch, on some ranks."""

    def __init__(self, ranks: Any) -> None:
        super().__init__()
        self._stops, self._epoch = hvd.rank() in ranks, 0

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._epoch = epoch

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if self._stops and self._epoch == 1 and batch == 1:
            self.model.stop_training = True


def test_all_ranks_may_stop_within_an_epoch() -> None:
    model = small()
    history = fit(model, broadcast(), Stop(range(hvd.size())), average(), epochs=3, steps=3).history
    assert len(history["loss"]) == 2
    assert_same_on_all_ranks(model)


def test_a_rank_that_stops_alone_within_an_epoch_is_an_error(several: int) -> None:
    model = small()
    stops = hvd.rank() == 0
    error = RuntimeError if stops else tf.errors.FailedPreconditionError
    match = "after batch 2 of 3, and other ranks train on" if stops else r"tfring\.optimizer"
    with pytest.raises(error, match=match):
        fit(model, broadcast(), Stop([0]), average(), epochs=3, steps=3)
    fit(model, broadcast(), average(), epochs=2)  # and the next training works
    assert_same_on_all_ranks(model)


class OwnStep(keras.Model):
    """Reduces as the user likes: nobody knows the names of its collectives."""

    def train_step(self, data: Any) -> Any:
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(x, y, self(x, training=True))
        gradients = tape.gradient(loss, self.trainable_variables)
        reduced = hvd.grouped_allreduce(gradients, name="mine")
        self.optimizer.apply(hvd.mark_reduced(reduced), self.trainable_variables)
        return {"loss": loss}


def own_step() -> Any:
    plain = build_model(1)
    model = OwnStep(plain.inputs, plain.outputs)
    model.compile(keras.optimizers.SGD(0.01), loss=loss())
    return model


def test_stopping_where_the_next_collective_is_not_known(several: int) -> None:
    model = own_step()
    everyone = Stop(range(hvd.size()))
    history = fit(model, broadcast(), everyone, average(), epochs=3, steps=4).history
    assert len(history["loss"]) == 2
    assert_same_on_all_ranks(model)
    model = own_step()
    if hvd.rank() == 0:  # as if the others had ended with that error
        with pytest.raises(tf.errors.AbortedError, match="gave up"):
            fit(model, broadcast(), Stop([0]), average(), epochs=3, steps=3)
        return
    text = "rank 0 .*it ended training after batch 2 of 3: set stop_training on all"
    with pytest.raises(tf.errors.AbortedError, match=text):
        fit(model, broadcast(), Stop([0]), average(), epochs=3, steps=3)
    with pytest.raises(ValueError, match="gave up"), tfring.step():
        raise ValueError("gave up")


def test_other_numbers_of_steps_are_an_error_also_with_accumulation(several: int) -> None:
    model = compiled(keras.optimizers.SGD(0.01, gradient_accumulation_steps=4))
    steps = 2 if hvd.rank() == 0 else 3
    with pytest.raises(RuntimeError, match=r"steps per epoch \(rank 0: 2, rank 1: 3.*JoinCallback"):
        fit(model, average(), steps=steps)
    # Of a generator the number is known when the epoch is over.
    x, y = np.ones((6, FEATURES), "float32"), np.zeros(6, "int64")
    with pytest.raises(RuntimeError, match=r"batches.*after epoch 1 \(rank 0: 2, rank 1: 3"):
        model.fit(((x, y) for _ in range(steps)), callbacks=[average()], verbose=0)


def endless(steps: int) -> Any:
    """Batches whose number only the end tells."""
    x, y = np.ones((6, FEATURES), "float32"), np.zeros(6, "int64")
    kinds = tf.TensorSpec(x.shape, x.dtype), tf.TensorSpec(y.shape, y.dtype)
    return tf.data.Dataset.from_generator(lambda: iter([(x, y)] * steps), output_signature=kinds)


def test_ranks_whose_data_end_before_others(several: int) -> None:
    """A generator has no length; with Keras' own train_step no rank waits all the same."""
    model, last = small(), hvd.rank() == hvd.size() - 1
    for _ in range(2):
        error = tf.errors.FailedPreconditionError if last else RuntimeError
        match = r"tfring\.optimizer" if last else "after batch 2, and other ranks train on.*Join"
        with pytest.raises(error, match=match):
            model.fit(endless(3 if last else 2), epochs=2, callbacks=[average()], verbose=0)
    model.fit(endless(2), epochs=3, callbacks=[broadcast(), average()], verbose=0)
    if hvd.rank() == 0:  # the others know their number
        model.fit(endless(2), epochs=2, callbacks=[average()], verbose=0)
    else:
        fit(model, average(), epochs=2, steps=2)
    assert_same_on_all_ranks(model)
    used = [average(), hvd.callbacks.JoinCallback()]
    model.fit(endless(3 if last else 2), epochs=2, callbacks=used, verbose=0)
    assert_same_on_all_ranks(model)


class Holder(keras.Model):
    """Optimizers in many places."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = keras.layers.Dense(1)
        self.pair = (keras.optimizers.SGD(0.1), {"inner": [keras.optimizers.Adam(0.1)]})
        self.sub = build_model(1)
        self.sub.compile(keras.optimizers.RMSprop(0.1))
        self.sub.layers[0].helper = tf.Module()
        self.sub.layers[0].helper.opt = keras.optimizers.Lion(0.1)
        self.scaled = keras.optimizers.LossScaleOptimizer(keras.optimizers.Adagrad(0.1))
        self.known_twice = self.scaled.inner_optimizer


def test_all_optimizers_of_a_model_are_found() -> None:
    model = Holder()
    model.compile(keras.optimizers.SGD(0.1))
    found = {path: type(each).__name__ for path, each in optimizers_of(model).items()}
    assert found == {
        "pair[0]": "SGD",
        "pair[1]['inner'][0]": "Adam",
        "sub.optimizer": "RMSprop",
        "scaled": "LossScaleOptimizer",
        "optimizer": "SGD",
        next(path for path in found if path.endswith("helper.opt")): "Lion",
    }
    assert optimizers_of(None) == {}


def test_local_variables_may_be_given_in_every_form() -> None:
    """One variable, the tf.Variable inside, or registered; local layers without being given."""
    for form in ("one", "inside", "registered", "layer"):
        model = build_model(hvd.rank())
        local = model.layers[0].kernel
        if form == "layer":
            optimizer = hvd.PartialDistributedOptimizer(
                keras.optimizers.SGD(0.0), local_layers=model.layers[0]
            )
        else:
            optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.0))
        model.compile(optimizer, loss=loss())
        given = {"one": local, "inside": [local.value]}.get(form)
        callback = hvd.callbacks.BroadcastGlobalVariablesCallback(0, local_variables=given)
        if form == "registered":
            callback.register_local_var(local)
        before = local.numpy()
        fit(model, callback, steps=1)
        np.testing.assert_array_equal(local.numpy(), before)
        if form != "layer":
            assert_same_on_all_ranks(model, but=local)


def test_random_layers_stay_each_ranks_own() -> None:
    """Of model.variables the states of seed generators are left out, with one warning."""
    keep = keras.layers.Dropout(0.5, seed=hvd.rank())
    model = keras.Sequential([keras.Input((64,)), keep, keras.layers.Dense(1)])
    with pytest.warns(UserWarning, match=r"seed generators.*model\.weights") as caught:
        hvd.broadcast_variables(model.variables, root_rank=0)
    assert len(caught) == 1
    assert_same_on_all_ranks(model)
    masks = hvd.allgather_object(keep(np.ones((1, 64), "float32"), training=True).numpy().tolist())
    assert len({str(mask) for mask in masks}) == hvd.size()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        hvd.broadcast_variables(model.weights, root_rank=0)
    with pytest.warns(UserWarning, match="before it is built"):
        hvd.broadcast_variables(keras.Sequential([keras.layers.Dense(1)]).weights, root_rank=0)


def test_gradients_and_variables_may_be_generators() -> None:
    for outer in (lambda optimizer: optimizer, keras.optimizers.LossScaleOptimizer):
        variable = keras.Variable([1.0])
        optimizer = outer(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)))
        scale = getattr(optimizer, "initial_scale", 1.0)
        optimizer.apply((tf.constant([scale]) for _ in range(1)), (v for v in [variable]))
        np.testing.assert_allclose(variable.numpy(), [0.9], rtol=1e-6)
