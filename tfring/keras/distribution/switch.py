"""enable and disable: what in Keras is replaced, and put back."""

from __future__ import annotations

from typing import Any

import keras
from keras.src.backend.tensorflow import distribution_lib
from keras.src.trainers.data_adapters.tf_dataset_adapter import TFDatasetAdapter

from tfring.keras.distribution import backend, training
from tfring.runtime.keras_version import replaceable

_MISSING = object()
# The methods of Keras that are wrapped.
_WRAPPED = (
    (keras.distribution.ModelParallel, "__init__", backend.refused),
    (TFDatasetAdapter, "__init__", training.counted_parts),
    (keras.Model, "fit", training.distributed_fit),
    (keras.Model, "evaluate", training.distributed_evaluate),
    (keras.Model, "train_on_batch", training.distributed_train_on_batch),
)

# What was there before `enable`: the object, the attribute, its value. Empty: not enabled. The
# program's main thread calls enable and disable, before and after all training.
_before: list[tuple[Any, str, Any]] = []


def enable() -> None:
    """Makes keras.distribution use the ranks of a tfring job. A second call changes nothing.

    Call it before keras.distribution.initialize(), on every rank. Afterwards, while
    keras.distribution.DataParallel is set, `fit` trains one model on all ranks and `evaluate`
    evaluates over the data of all; see `tfring help keras_distribution` for what is not there.

    Raises:
        RuntimeError: Keras runs on another backend than TensorFlow.
        NotImplementedError: this Keras has no longer what would be replaced.
    """
    if keras.backend.backend() != "tensorflow":
        raise RuntimeError(
            "tfring.keras.distribution is for Keras' TensorFlow backend, and this is "
            f"{keras.backend.backend()!r}: set KERAS_BACKEND=tensorflow before keras is imported"
        )
    if _before:
        return
    wrapped = [
        (owner, name, wrap(replaceable(owner, name, "tfring.keras.distribution")))
        for owner, name, wrap in _WRAPPED
    ]
    for name in backend.ASKED:  # most of these Keras' own module for TensorFlow lacks
        _replace(distribution_lib, name, getattr(backend, name))
    for replacement in wrapped:
        _replace(*replacement)


def disable() -> None:
    """Puts back what `enable` replaced, and sets no distribution; without `enable` does nothing.

    Optimizers that `fit` has wrapped stay wrapped, and the job goes on until tfring.shutdown.
    """
    if not _before:
        return
    while _before:
        owner, name, value = _before.pop()
        if value is _MISSING:
            delattr(owner, name)
        else:
            setattr(owner, name, value)
    keras.distribution.set_distribution(None)


def is_enabled() -> bool:
    """Returns whether `enable` is in effect."""
    return bool(_before)


def _replace(owner: Any, name: str, value: Any) -> None:
    _before.append((owner, name, vars(owner).get(name, _MISSING)))
    setattr(owner, name, value)
