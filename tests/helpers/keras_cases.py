"""A small model, its data, and the steps that several test files share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import tfring.keras as hvd

FEATURES, CLASSES, PER_RANK = 8, 3, 6


def build_model(seed: int, *middle: Any) -> Any:
    """A model with `middle` as its middle layer; its initial weights depend only on the seed."""
    initializers = [keras.initializers.GlorotUniform(seed=seed + i) for i in range(2)]
    return keras.Sequential(
        [
            keras.layers.Input((FEATURES,)),
            keras.layers.Dense(16, activation="tanh", kernel_initializer=initializers[0]),
            *middle,
            keras.layers.Dense(CLASSES, kernel_initializer=initializers[1]),
        ]
    )


def loss() -> Any:
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def compiled(optimizer: Any, seed: int = 1, *, middle: Any = (), **compile_kwargs: Any) -> Any:
    """The model with a distributed optimizer."""
    model = build_model(seed, *middle)
    model.compile(optimizer=hvd.DistributedOptimizer(optimizer), loss=loss(), **compile_kwargs)
    return model


def broadcast() -> Any:
    return hvd.callbacks.BroadcastGlobalVariablesCallback(0)


def fit(model: Any, *callbacks: Any, data: Any = None, steps: int = 3, **kwargs: Any) -> Any:
    """Trains with `steps` batches of this rank, or with the given data."""
    x, y = my_data(steps) if data is None else data
    how = {"batch_size": PER_RANK, "shuffle": False, "verbose": 0, **kwargs}
    return model.fit(x, y, callbacks=list(callbacks), **how)


def mine() -> float:
    """This rank's value: its rank plus one."""
    return float(hvd.rank() + 1)


def mean_over_ranks() -> float:
    """The mean of mine()."""
    return (hvd.size() + 1) / 2


def whole_data(steps: int, per_rank: int = PER_RANK) -> tuple[Any, Any]:
    """`steps` batches for all ranks together: `per_rank` samples for each of them."""
    rng = np.random.default_rng(11)
    count = steps * hvd.size() * per_rank
    x = rng.normal(size=(count, FEATURES)).astype(np.float32)
    return x, rng.integers(0, CLASSES, count)


def my_part(data: Any, steps: int) -> tuple[Any, Any]:
    """This rank's part of each batch of whole_data."""

    def part(values: Any) -> Any:
        batches = values.reshape(steps, hvd.size(), -1, *values.shape[1:])
        return batches[:, hvd.rank()].reshape(-1, *values.shape[1:])

    return part(data[0]), part(data[1])


def my_data(steps: int) -> tuple[Any, Any]:
    """This rank's part of whole_data(steps)."""
    return my_part(whole_data(steps), steps)


def train_alone(
    optimizer: Any, steps: int, seed: int, *, middle: Any = (), data: Any = None, **fit: Any
) -> Any:
    """The weights after plain Keras on rank 0 has trained on the whole data.

    It runs eagerly, in a fifth of the time.
    """
    if hvd.rank() == 0:
        model = build_model(seed, *middle)
        model.compile(optimizer=optimizer, loss=loss(), run_eagerly=True)
        x, y = whole_data(steps) if data is None else data
        model.fit(x, y, batch_size=len(x) // steps, shuffle=False, verbose=0, **fit)
    return hvd.broadcast_object(model.get_weights() if hvd.rank() == 0 else None)


def train_together(
    optimizer: Any,
    steps: int,
    seed: int,
    callbacks: Any = None,
    *,
    middle: Any = (),
    data: Any = None,
    **compile_kwargs: Any,
) -> Any:
    """The model after the ranks trained on their parts; the broadcast makes their starts equal."""
    model = compiled(optimizer, seed + 100 * hvd.rank(), middle=middle, **compile_kwargs)
    own = my_part(whole_data(steps) if data is None else data, steps)
    fit(model, broadcast(), *(callbacks or []), data=own, batch_size=len(own[0]) // steps)
    return model


def assert_same_weights(model: Any, expected: Any, tolerance: float = 1e-5) -> None:
    for ours, theirs in zip(model.get_weights(), expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=tolerance)


def assert_same_on_all_ranks(model: Any, *, but: Any = None) -> None:
    """Compares the weights of a model or a layer over the ranks, except one."""
    own = [weight.numpy() for weight in model.weights if weight is not but]
    for weights in hvd.allgather_object(own):
        for ours, theirs in zip(own, weights, strict=True):
            np.testing.assert_array_equal(ours, theirs)


def written(folder: Path) -> dict[str, dict[int, float]]:
    """The values in the event files of a folder, by name and step."""
    found: dict[str, dict[int, float]] = {}
    for path in sorted(folder.glob("events.*")):
        for record in tf.data.TFRecordDataset(str(path)):
            event = tf.compat.v1.Event.FromString(record.numpy())
            for entry in event.summary.value:
                found.setdefault(entry.tag, {})[event.step] = float(tf.make_ndarray(entry.tensor))
    return found
