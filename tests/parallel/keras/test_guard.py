"""The divergence guard: weights that go apart during `fit` are named after the epoch."""

from __future__ import annotations

import warnings
from typing import Any

import keras
import numpy as np
import pytest
from keras_cases import broadcast, compiled, fit

import tfring.keras as hvd


class Changes(keras.callbacks.Callback):  # type: ignore[misc]
    """Adds to a weight on the last rank after the first epoch."""

    def __init__(self, change: float, trainable: bool = True) -> None:
        super().__init__()
        self.change = change
        self.trainable = trainable

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if epoch == 0 and hvd.rank() == hvd.size() - 1:
            weights = self.model.weights
            weight = next(w for w in weights if bool(w.trainable) == self.trainable)
            value = weight.numpy()
            value[..., 1] *= 1 + self.change
            weight.assign(value)


def train(*callbacks: Any, middle: Any = (), **kwargs: Any) -> Any:
    model = compiled(keras.optimizers.SGD(0.01), middle=middle)
    return fit(model, broadcast(), *callbacks, epochs=2, **kwargs)


def test_a_weight_that_one_rank_changed_is_named(several: int) -> None:
    odd = hvd.size() - 1
    text = (
        rf"rank {hvd.rank()}: after epoch 1 the ranks' weights differ: \S*kernel \(number 0, "
        rf"float32\[8, 16\]\) of rank {odd} is not that of rank 0: element \[0, 1\] is .*"
        "TFRING_DIVERGENCE_GUARD=0"
    )
    with pytest.raises(RuntimeError, match=text):
        train(Changes(0.1))


def test_a_change_in_the_last_epoch_is_found(several: int) -> None:
    model = compiled(keras.optimizers.SGD(0.01))
    with pytest.raises(RuntimeError, match="after epoch 1 the ranks' weights differ"):
        fit(model, broadcast(), Changes(0.1), epochs=1)


def test_rounding_is_a_warning_and_once(several: int) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        train(Changes(1e-6))
    found = [w for w in caught if "may come from rounding" in str(w.message)]
    assert len(found) == (hvd.rank() == 0)


def test_what_is_no_business_of_the_guard(monkeypatch: pytest.MonkeyPatch) -> None:
    train(Changes(0.1, trainable=False), middle=(keras.layers.BatchNormalization(),))
    averages = hvd.callbacks.BroadcastGlobalVariablesCallback(0, reduced_by_user=True)
    model = compiled(keras.optimizers.SGD(0.01))
    fit(model, averages, Changes(0.1), epochs=2)
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
