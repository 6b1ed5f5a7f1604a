"""`import horovod.keras as hvd`: tfring.keras with the defaults of Horovod's oldest Keras module.

allreduce averages unless `average` is False, and DistributedOptimizer takes fewer parameters by
position than tfring.keras.DistributedOptimizer does.
"""

from __future__ import annotations

from typing import Any

import tfring.keras
from tfring.collectives.compression import Compression
from tfring.ops import reduce_ops
from tfring.runtime.public_names import reexport

__getattr__, __dir__, __all__ = reexport("tfring.keras")


def DistributedOptimizer(
    optimizer: Any,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: int = reduce_ops.Average,
    num_groups: int = 0,
    groups: Any = None,
    *,
    weight_by: Any = None,
    **more: Any,
) -> Any:
    """As tfring.keras.DistributedOptimizer, with horovod.keras' order of parameters."""
    given = dict(locals())
    del given["more"]
    return tfring.keras.DistributedOptimizer(**given, **more)


def allreduce(
    value: Any,
    name: str | None = None,
    average: bool | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    op: int | None = None,
    compression: Any = Compression.none,
) -> Any:
    """As tfring.keras.allreduce: the average of a value over the ranks unless `average` is False.

    Horovod's default for `average` here is True, that is op=Average. An `op` takes precedence.
    """
    if op is None:
        op = reduce_ops.Sum if average is False else reduce_ops.Average
    return tfring.keras.allreduce(
        value,
        name=name,
        prescale_factor=prescale_factor,
        postscale_factor=postscale_factor,
        op=op,
        compression=compression,
    )
