"""`import horovod.keras as hvd`: tfring.keras with an allreduce that averages by default."""

from __future__ import annotations

from typing import Any

import tfring.keras
from tfring.collectives.compression import Compression
from tfring.ops import reduce_ops
from tfring.runtime.public_names import reexport

__getattr__, __dir__, __all__ = reexport("tfring.keras")


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
