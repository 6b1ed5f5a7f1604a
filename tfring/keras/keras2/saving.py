"""load_model for Keras 2: what tf_keras.models.load_model does, and the optimizer reduces again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import tf_keras

from tfring.keras.keras2.sync_batch_norm import SyncBatchNormalization
from tfring.keras.saving import objects_of, wrap_loaded
from tfring.training.saved_options import SAVED


def load_model(
    filepath: Any,
    custom_optimizers: Iterable[type] | None = None,
    custom_objects: Mapping[str, Any] | None = None,
    compression: Any = SAVED,
    legacy_opts: bool = False,
    *,
    safe_mode: bool = True,
    compile: bool = True,
    **options: Any,
) -> Any:
    """Loads a model of Keras 2 and wraps its optimizer, as load_model does for Keras 3.

    A .keras file has the options of DistributedOptimizer; an HDF5 file or SavedModel has none.

    Args:
        filepath: a .keras or .h5 file, or the folder of a SavedModel.
        custom_optimizers: classes of optimizers that Keras does not know, if the model has one.
        custom_objects: as in tf_keras.models.load_model: objects by name.
        compression: for DistributedOptimizer; by default what the file says.
        legacy_opts: accepted for Horovod's sake; the file says which kind of optimizer it holds.
        safe_mode: as in tf_keras.models.load_model: refuse a file that holds code.
        compile: load the optimizer, the loss and the metrics, too, if the file has them.
        **options: others of PartialDistributedOptimizer, in place of those of the file.

    Raises:
        ValueError: an option cannot be made again from the file: give that option.
    """
    del legacy_opts
    classes = (SyncBatchNormalization, *(custom_optimizers or ()))
    model = tf_keras.models.load_model(
        filepath,
        custom_objects=objects_of(classes, custom_objects),
        compile=compile,
        safe_mode=safe_mode,
    )
    if compile and getattr(model, "optimizer", None) is not None:
        wrap_loaded(model, filepath, {**options, "compression": compression})
    return model
