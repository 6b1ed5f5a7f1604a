"""SyncBatchNormalization: batch normalization over the samples of all ranks.

How the moments of all ranks are found is in tfring/training/moments.py.
"""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from tfring.runtime import process_sets
from tfring.runtime.keras_version import replaceable
from tfring.training import moments


@keras.saving.register_keras_serializable(package="tfring")
class SyncBatchNormalization(keras.layers.BatchNormalization):  # type: ignore[misc]
    """keras.layers.BatchNormalization whose batch is that of all ranks together.

    Every sample has the same weight, also where ranks have batches of different sizes or masks; a
    rank may have an empty batch. float16 and bfloat16 inputs are summed in float32. All ranks of
    the process set must train the layer in the same steps.

    A saved model that contains it loads where tfring.keras.SyncBatchNormalization has been
    imported, as by tfring.keras.load_model. Without tfring it loads with a class of the same name
    (Keras looks for the weights under it) that normalizes the batch of its own process::

        class SyncBatchNormalization(keras.layers.BatchNormalization): ...

        keras.saving.load_model(
        path, custom_objects={"tfring>SyncBatchNormalization": SyncBatchNormalization}
        )
    """

    def __init__(self, fused: bool | None = False, process_set: Any = None, **kwargs: Any) -> None:
        """Sets the layer.

        Args:
            fused: must be False; the fused kernel computes the moments of one rank.
            process_set: the registered ProcessSet whose ranks share their batches; None is all.
                After loading a model it is a list of ranks, to be replaced by a registered set
                (`layer.process_set = ...`) before training.
            **kwargs: what keras.layers.BatchNormalization takes.

        Raises:
            ValueError: fused is not False.
            NotImplementedError: Keras' layer finds its moments in another way than it did.
        """
        replaceable(keras.layers.BatchNormalization, "_moments", "SyncBatchNormalization")
        if fused is not False:
            raise ValueError(
                f"SyncBatchNormalization does not support fused={fused!r}; leave it out"
            )
        super().__init__(**kwargs)
        self.process_set = process_set

    def get_config(self) -> dict[str, Any]:
        """Saves the process set as its ranks, unless it is all."""
        config: dict[str, Any] = super().get_config()
        chosen = self.process_set
        if chosen is not None and chosen is not process_sets.global_process_set:
            config["process_set"] = moments.ranks_of(chosen)
        return config

    def _moments(self, inputs: Any, mask: Any) -> tuple[Any, Any]:
        values = tf.convert_to_tensor(inputs)
        local = moments.local_statistics(values, mask, self._reduction_axes)
        return moments.statistics_of_all(local, moments.registered(self.process_set))
