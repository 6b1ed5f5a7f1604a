"""Random data for the models of the zoo: inputs and targets for any number of rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

CLASSES, WORDS, LENGTH, FEATURES = 3, 20, 6, 5
Data = Callable[[int], tuple[Any, Any]]


def _targets(x: Any) -> Any:
    flat = x.reshape(len(x), -1)
    matrix = np.random.default_rng(8).normal(size=(flat.shape[1], CLASSES))
    return np.tanh(flat @ matrix / flat.shape[1] ** 0.5).astype("float32")


def of_shape(*shape: int) -> Data:
    """Returns a function that makes inputs of this shape, with CLASSES numbers as targets."""

    def data(rows: int) -> tuple[Any, Any]:
        x = np.random.default_rng(5).normal(size=(rows, *shape)).astype("float32")
        return x, _targets(x)

    return data


numbers = of_shape(FEATURES)
series = of_shape(LENGTH, 4)


def _lengths(rows: int) -> Any:
    return np.random.default_rng(6).integers(1, LENGTH + 1, rows)[:, None]


def padded_series(rows: int) -> tuple[Any, Any]:
    """Series of random length, padded with zeros."""
    x, y = series(rows)
    return np.where((np.arange(LENGTH) < _lengths(rows))[..., None], x, np.float32(0)), y


def words(rows: int) -> tuple[Any, Any]:
    """Words of a vocabulary, with numbers as targets."""
    ids = np.random.default_rng(7).integers(1, WORDS, (rows, LENGTH)).astype("int32")
    return ids, _targets(ids / WORDS)


def sentences(rows: int) -> tuple[Any, Any]:
    """Words, padded with a random number of zeros, and a class for each word."""
    ids, _ = words(rows)
    return np.where(np.arange(LENGTH) < _lengths(rows), ids, 0).astype("int32"), ids % CLASSES


def next_words(rows: int) -> tuple[Any, Any]:
    ids, _ = words(rows)
    return ids, np.roll(ids, -1, axis=1)


def texts(rows: int) -> tuple[Any, Any]:
    """A column of strings of some words each."""
    ids, y = words(rows)
    return np.array([[" ".join(f"w{i}" for i in row)] for row in ids]), y


def pairs(rows: int) -> tuple[Any, Any]:
    """Two inputs and two outputs by name."""
    a, y = numbers(rows)
    b, z = of_shape(4)(rows)
    return {"a": a, "b": b}, {"one": y, "two": z[:, :1]}
