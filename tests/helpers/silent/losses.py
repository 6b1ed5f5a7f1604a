"""Programs whose loss is not a mean over equally many rows on all ranks."""

from __future__ import annotations

import keras
import numpy as np

import tfring.keras as hvd

from .common import (
    LAYERS,
    Y,
    fit,
    net,
    part,
    sgd,
    wrapped,
)
from .table import wrong

_NUMBERS = np.random.default_rng(9)
TOKENS = _NUMBERS.integers(1, 9, size=(48, 5))
for _row, _length in enumerate(_NUMBERS.integers(1, 6, size=48)):
    TOKENS[_row, _length:] = 0


@wrong("sum", r"op=hvd\.Sum", quick=True)
def loss_that_is_a_sum():
    model = net(1)
    model.compile(wrapped(0.01), keras.losses.MeanSquaredError(reduction="sum"))
    fit(model)
    return model.get_weights()


@wrong("regulari", r"hvd\.size\(\)|size")
def op_sum_beside_a_regulariser():
    keras.utils.set_random_seed(1)
    dense = LAYERS.Dense(1, kernel_regularizer=keras.regularizers.L2(0.1))
    model = keras.Sequential([keras.Input((4,)), dense])
    loss = keras.losses.MeanSquaredError(reduction="sum")
    model.compile(hvd.DistributedOptimizer(sgd(0.01), op=hvd.Sum), loss)
    fit(model)
    return model.get_weights()


@wrong("weight_by")
def two_losses_that_divide_by_different_numbers():
    keras.utils.set_random_seed(2)
    tokens = keras.Input((5,), dtype="int32")
    hidden = LAYERS.Embedding(9, 4, mask_zero=True)(tokens)
    hidden = LAYERS.SimpleRNN(5, return_sequences=True)(hidden)
    length = LAYERS.Dense(1, name="length")(hidden[:, -1])
    model = keras.Model(tokens, [LAYERS.Dense(9, name="tag")(hidden), length])
    tag = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(wrapped(0.01), [tag, "mse"])
    lengths = (TOKENS != 0).sum(axis=1, keepdims=True).astype("float32")
    fit(model, part(TOKENS), [part(TOKENS), part(lengths)])
    return model.get_weights()


@wrong("nan|NaN", "loss|gradient", quick=True)
def nan_on_one_rank_in_fit():
    model = net(1)
    model.compile(wrapped(), "mse")
    targets = part(Y).copy()
    if hvd.rank() == hvd.size() - 1:
        targets[7] = np.nan
    fit(model, y=targets)
