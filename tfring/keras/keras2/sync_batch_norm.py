"""SyncBatchNormalization for Keras 2: batch normalization over the samples of all ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf
import tf_keras

from tfring.runtime import process_sets
from tfring.training import moments


@tf_keras.utils.register_keras_serializable(package="tfring")
class SyncBatchNormalization(tf_keras.layers.BatchNormalization):  # type: ignore[misc]
    """tf_keras.layers.BatchNormalization over the batches of all ranks; else as for Keras 3.

    Horovod's layer of this name is the same, without masks.
    """

    def __init__(self, fused: bool | None = False, process_set: Any = None, **kwargs: Any) -> None:
        """Sets the layer.

        Args:
            fused: must be False; the fused kernel computes the moments of one rank.
            process_set: the registered ProcessSet whose ranks share their batches; None is all.
                After loading a model it is a list of ranks, to be replaced by a registered set
                (`layer.process_set = ...`) before training.
            **kwargs: what tf_keras.layers.BatchNormalization takes, without renorm and
                virtual_batch_size.

        Raises:
            ValueError: fused, renorm or virtual_batch_size is asked for.
        """
        given = {"fused": fused, **kwargs}
        for name in ("fused", "renorm", "virtual_batch_size"):
            if given.get(name):
                raise ValueError(
                    f"SyncBatchNormalization does not support {name}={given[name]!r}; leave it out"
                )
        kwargs.pop("synchronized", None)  # of tf.distribute
        super().__init__(fused=False, **kwargs)
        self.process_set = process_set

    def get_config(self) -> dict[str, Any]:
        """Saves the process set as its ranks, unless it is all."""
        config: dict[str, Any] = super().get_config()
        chosen = self.process_set
        if chosen is not None and chosen is not process_sets.global_process_set:
            config["process_set"] = moments.ranks_of(chosen)
        return config

    def _calculate_mean_and_var(
        self, inputs: Any, reduction_axes: Sequence[int], keep_dims: bool, mask: Any = None
    ) -> tuple[Any, Any]:
        values = tf.cast(inputs, tf.float32) if inputs.dtype.size < 4 else inputs
        local = moments.local_statistics(values, mask, reduction_axes)
        found = moments.statistics_of_all(local, moments.registered(self.process_set))
        if keep_dims:
            sizes = [1 if i in reduction_axes else size for i, size in enumerate(inputs.shape)]
            found = tuple(tf.reshape(part, sizes) for part in found)
        mean, variance = (tf.cast(part, inputs.dtype) for part in found)
        return mean, variance
