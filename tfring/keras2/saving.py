"""load_model for Keras 2: what tf_keras.models.load_model does, and the optimizer reduces again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import tf_keras

from tfring.collectives.compression import Compression
from tfring.keras2.optimizer import wrap
from tfring.keras2.sync_batch_norm import SyncBatchNormalization
from tfring.training.local_variables import LocalVariables
from tfring.training.options import OptimizerOptions, ReduceOptions


def load_model(
    filepath: Any,
    custom_optimizers: Iterable[type] | None = None,
    custom_objects: Mapping[str, Any] | None = None,
    compression: Any = Compression.none,
    legacy_opts: bool = False,
    *,
    safe_mode: bool = True,
    compile: bool = True,
) -> Any:
    """Loads a model of Keras 2 and wraps its optimizer, which keeps its state.

    A saved model contains the plain optimizer, even if it was wrapped when the model was saved.
    Options of DistributedOptimizer are not saved: if you need others than `compression`, load the
    model with tf_keras and wrap `model.optimizer` with resumed=True.

    Args:
        filepath: a .keras or .h5 file, or the folder of a SavedModel.
        custom_optimizers: classes of optimizers that Keras does not know, if the model has one.
        custom_objects: as in tf_keras.models.load_model: objects by name.
        compression: for DistributedOptimizer: what is done to gradients on the wire.
        legacy_opts: accepted for Horovod's sake; the file says which kind of optimizer it holds.
        safe_mode: as in tf_keras.models.load_model: refuse a file that holds code.
        compile: load the optimizer, the loss and the metrics, too, if the file has them.

    Returns:
        The model; compiled, with a distributed optimizer, if it was compiled when it was saved.
    """
    del legacy_opts
    objects: dict[str, Any] = {SyncBatchNormalization.__name__: SyncBatchNormalization}
    objects.update({optimizer.__name__: optimizer for optimizer in custom_optimizers or ()})
    objects.update(custom_objects or {})
    model = tf_keras.models.load_model(
        filepath, custom_objects=objects, compile=compile, safe_mode=safe_mode
    )
    if compile and getattr(model, "optimizer", None) is not None:
        options = OptimizerOptions(ReduceOptions(compression=compression), LocalVariables())
        wrap(model.optimizer, options, resumed=True)
    return model
