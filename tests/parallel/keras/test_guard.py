"""The divergence guard: weights that go apart during `fit` are named after the epoch."""

from __future__ import annotations

import warnings
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras_cases import broadcast, compiled, fit, my_data

import tfring.keras as hvd

pytestmark = pytest.mark.usefixtures("eager_functions")


class Changes(keras.callbacks.Callback):  # type: ignore[misc]
    """Adds to a weight on the last rank after an epoch, the first, or after several."""

    def __init__(self, *changes: float, trainable: bool = True, number: int = 0) -> None:
        super().__init__()
        self.changes = changes
        self.trainable = trainable
        self.number = number

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if epoch < len(self.changes) and hvd.rank() == hvd.size() - 1:
            weights = [w for w in self.model.weights if bool(w.trainable) == self.trainable]
            value = weights[self.number].numpy()
            at = np.unravel_index(np.argmax(np.abs(value)), value.shape)
            value[at] *= 1 + self.changes[epoch]
            weights[self.number].assign(value)


def train(*callbacks: Any, middle: Any = (), epochs: int = 2, **kwargs: Any) -> Any:
    model = compiled(keras.optimizers.SGD(0.01), middle=middle)
    return fit(model, broadcast(), *callbacks, epochs=epochs, **kwargs)


def test_a_weight_that_one_rank_changed_is_named(several: int) -> None:
    odd = hvd.size() - 1
    text = (
        rf"rank {hvd.rank()}: after epoch 1 the ranks' weights differ: \S*kernel \(number 0, "
        rf"float32\[8, 16\]\) of rank {odd} is not that of rank 0: element \[\d+, \d+\] is .*"
        "TFRING_DIVERGENCE_GUARD=0"
    )
    with pytest.raises(RuntimeError, match=text):
        train(Changes(0.1), epochs=1)


def rounding(*callbacks: Any, epochs: int) -> list[str]:
    """Trains; returns the warnings that rank 0, and no other, has to print."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        train(*callbacks, epochs=epochs)
    texts = [str(w.message) for w in caught]
    return [text for text in texts if "may come from rounding" in text]


def test_rounding_is_a_warning_and_may_grow_for_as_long_as_training_goes_on(several: int) -> None:
    """Up to 3e-4 here; there is a second warning when it is ten times what the first one said."""
    found = rounding(Changes(2e-6, *[7e-5] * 4), epochs=6)
    assert len(found) == 2 * (hvd.rank() == 0)


def test_a_difference_that_is_no_rounding_is_found_beside_rounding(several: int) -> None:
    with pytest.raises(RuntimeError, match=r"after epoch 2 .*weights differ"):
        train(Changes(1e-6, 1e-3), epochs=3)
    small = Changes(1e-6)  # the first weight that differs is named; the worst one counts
    with pytest.raises(RuntimeError, match=r"after epoch 1 .*number 0.*\(1 more weights differ\)"):
        train(small, Changes(0.1, number=2), epochs=2)


class Codebook(keras.layers.Layer):  # type: ignore[misc]
    """Subtracts a moving average of this rank's inputs."""

    def build(self, shape: Any) -> None:
        self.centre = self.add_weight(
            shape=(shape[-1],), initializer="zeros", trainable=False, name="centre"
        )

    def call(self, x: Any, training: bool = False) -> Any:
        if training:
            self.centre.assign(0.9 * self.centre + 0.1 * tf.reduce_mean(x, axis=0))
        return x - self.centre


def test_state_that_is_learnt_from_one_ranks_batches_is_named_once(several: int) -> None:
    def texts(local: bool) -> list[str]:
        layer = Codebook()
        model = compiled(keras.optimizers.SGD(0.01), middle=(layer,))
        own = [layer.centre] if local else None
        first = hvd.callbacks.BroadcastGlobalVariablesCallback(0, local_variables=own)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            fit(model, first, epochs=2)
        return [str(w.message) for w in caught if "no gradient trains" in str(w.message)]

    found = texts(local=False)
    assert len(found) == (hvd.rank() == 0)
    for text in found:
        assert "after epoch 1" in text and "centre" in text and "hvd.allreduce" in text
    assert not texts(local=True)


def test_statistics_of_batch_normalization_are_averaged(several: int) -> None:
    """And validation uses the averages."""
    x, y = my_data(3)
    data = (x + 3.0 * hvd.rank(), y)

    def statistics(callbacks: Any) -> Any:
        layer = keras.layers.BatchNormalization(momentum=0.5)
        model = compiled(keras.optimizers.SGD(0.01), middle=(layer,))
        history = fit(model, *callbacks, data=data, validation_data=data, epochs=2).history
        if len(callbacks) > 1:
            evaluated = hvd.evaluate(model, *data)["loss"]
            assert history["val_loss"][-1] == pytest.approx(evaluated, rel=1e-4)
        return np.stack([layer.moving_mean, layer.moving_variance])

    own = hvd.allgather(statistics([broadcast()])[None]).numpy()
    assert (own[0] != own[-1]).any()
    together = hvd.allgather(statistics(hvd.fit_callbacks())[None]).numpy()
    assert (together == together[0]).all()
    # The statistics of an epoch do not depend on those of the one before.
    assert np.abs(together[0] - own.mean(axis=0)).max() < 1e-6


def test_what_is_no_business_of_the_guard(monkeypatch: pytest.MonkeyPatch) -> None:
    model = compiled(keras.optimizers.SGD(0.01))
    kernel = model.trainable_variables[0]
    own = hvd.callbacks.BroadcastGlobalVariablesCallback(0, local_variables=[kernel])
    fit(model, own, Changes(0.1), epochs=2)
    monkeypatch.setenv("TFRING_DIVERGENCE_GUARD", "0")
    train(Changes(0.1))


def test_ranks_in_process_sets_of_their_own(several: int) -> None:
    mine = hvd.add_process_set([0]), hvd.add_process_set(list(range(1, hvd.size())))
    process_set = mine[min(hvd.rank(), 1)]
    model = compiled(keras.optimizers.SGD(0.01))
    model = keras.models.clone_model(model)
    more = 1 + min(hvd.rank(), 1)  # the sets differ in the learning rate and the number of steps
    optimizer = keras.optimizers.SGD(0.01 * more)
    model.compile(hvd.DistributedOptimizer(optimizer, process_set=process_set), "mse")
    x = np.full((32 * more, 8), hvd.rank() + 1, "f")
    model.fit(x, x[:, :3], epochs=2, verbose=0, callbacks=[hvd.callbacks.MetricAverageCallback()])
    for each in mine:
        hvd.remove_process_set(each)


class Scale(keras.layers.Layer):  # type: ignore[misc]
    """Holds tf.Variables, which Keras does not know."""

    def build(self, shape: Any) -> None:
        self.factor = tf.Variable(1.0 + hvd.rank())
        self.offsets = {"first": [tf.Variable(0.0)], "constant": tf.Variable(0.0, trainable=False)}

    def call(self, x: Any) -> Any:
        return x * self.factor + self.offsets["first"][0]


def test_a_variable_that_keras_does_not_know_is_named(several: int) -> None:
    def texts(local: Any) -> list[str]:
        model = compiled(keras.optimizers.SGD(0.01), middle=(scale := Scale(name="scale"),))
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            callback = hvd.callbacks.BroadcastGlobalVariablesCallback(
                0, local_variables=local(scale)
            )
            fit(model, callback)
        found = [str(w.message) for w in caught]
        return [text for text in found if "does not know as its weights" in text]

    found = texts(lambda scale: None)
    assert len(found) == (hvd.rank() == 0)
    for text in found:
        assert ".factor, " in text
        assert ".offsets['first'][0]. So they are neither broadcast" in text
    assert not texts(lambda scale: [scale.factor, *scale.offsets["first"]])
