"""What to write for `validation_split`, which Keras refuses beside datasets."""

from __future__ import annotations

import functools
from typing import Any

import tensorflow as tf

_slicing: Any
try:
    from keras.src.trainers.data_adapters import array_slicing as _slicing
except ImportError:  # of an early Keras 3
    _slicing = None

_original_split = getattr(_slicing, "train_validation_split", None)


def install() -> None:
    """Adds to Keras' refusal what to write; a second call changes nothing."""
    if _original_split is not None:  # Keras' message alone does, too
        _slicing.train_validation_split = _split


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
