"""The message for `validation_split`, which Keras refuses beside datasets."""

from __future__ import annotations

import functools
from typing import Any

import tensorflow as tf

try:
    from keras.src.trainers.data_adapters import array_slicing
except ImportError:  # of an early Keras 3
    array_slicing = None

_original_split = getattr(array_slicing, "train_validation_split", None)


def install() -> None:
    """Adds advice to Keras' refusal; a second call changes nothing."""
    if _original_split is not None:  # Keras' message alone does, too
        array_slicing.train_validation_split = _split


@functools.wraps(_original_split or (lambda: None))
def _split(arrays: Any, validation_split: float) -> Any:
    assert _original_split is not None
    try:
        return _original_split(arrays, validation_split)
    except ValueError as error:
        if not any(isinstance(data, tf.data.Dataset) for data in tf.nest.flatten(arrays)):
            raise
        raise ValueError(
            f"{error}\nWith hvd.shard take the last rows out before, as Keras does for one "
            f"process:\n"
            f"    n = int(len(x) * (1 - {validation_split}))\n"
            "    mine = slice(n + hvd.rank(), None, hvd.size())  # validation rows of this rank\n"
            "    model.fit(hvd.shard((x[:n], y[:n]), batch_size), "
            "validation_data=(x[mine], y[mine]), callbacks=hvd.fit_callbacks())"
        ) from None
