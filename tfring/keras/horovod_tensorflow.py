"""DistributedOptimizer with the parameters of horovod.tensorflow, for `import tfring as hvd`."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfring.collectives.compression import Compression
from tfring.keras import optimizer as keras_optimizer
from tfring.ops import reduce_ops
from tfring.runtime import process_sets
from tfring.training import tf1_optimizer
from tfring.training.local_variables import LocalVariables
from tfring.training.options import (
    LOSS,
    GradientTransform,
    OptimizerOptions,
    ReduceOptions,
    resolve_groups,
)


def DistributedOptimizer(
    optimizer: Any,
    name: str | None = None,
    use_locking: bool = False,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: Any = False,
    backward_passes_per_step: int = 1,
    op: int = reduce_ops.Average,
    gradient_predivide_factor: float = 1.0,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: Any = None,
    process_set: Any = process_sets.global_process_set,
    scale_local_gradients: bool = True,
    *,
    before_reduce: GradientTransform | None = None,
    after_reduce: GradientTransform | None = None,
    weight_by: Any = LOSS,
    resumed: bool = False,
) -> Any:
    """Makes an optimizer reduce gradients: tfring.keras.DistributedOptimizer describes it.

    The parameters are the same, in the order of horovod.tensorflow, and `use_locking`, which is for
    optimizers of TensorFlow 1 (tf.compat.v1.train.Optimizer). These reduce in `compute_gradients`,
    which `minimize` calls, and with backward_passes_per_step they apply in the last pass only.

    Returns:
        `optimizer`, which is changed in place.

    Raises:
        NotImplementedError: use_locking is True, and the optimizer is one of Keras.
        ValueError: what tfring.keras.DistributedOptimizer raises.
        TypeError: likewise.
    """
    reduction = ReduceOptions(
        op=op,
        compression=compression,
        sparse_as_dense=sparse_as_dense,
        gradient_predivide_factor=gradient_predivide_factor,
        groups=resolve_groups(num_groups, groups),
        process_set=process_set,
        device_dense=device_dense,
        device_sparse=device_sparse,
        before_reduce=before_reduce,
        after_reduce=after_reduce,
        weight_by=weight_by,
    )
    local = LocalVariables(scale=scale_local_gradients, process_set=process_set)
    options = OptimizerOptions(
        reduction,
        local,
        name,
        passes=backward_passes_per_step,
        average=average_aggregated_gradients,
    )
    if isinstance(optimizer, tf.compat.v1.train.Optimizer):
        keras_optimizer.refuse_weight(options, "one of TensorFlow 1")
        return tf1_optimizer.wrap(optimizer, options, use_locking=use_locking)
    if use_locking:
        raise NotImplementedError("use_locking=True: Keras optimizers have no locks; omit it")
    return keras_optimizer.wrap(optimizer, options, resumed)
