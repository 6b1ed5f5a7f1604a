"""Collectives on values, with the parameters of horovod.tensorflow.keras."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfring.collectives.allgather import allgather as _allgather
from tfring.collectives.allreduce import allreduce as _allreduce
from tfring.collectives.broadcast import broadcast as _broadcast
from tfring.collectives.compression import Compression
from tfring.collectives.reducescatter import reducescatter as _reducescatter
from tfring.ops.reduce_ops import Average


def allreduce(
    value: Any,
    name: str | None = None,
    average: bool | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    op: int | None = None,
    compression: Any = Compression.none,
) -> Any:
    """Returns the reduction of `value` over the ranks, as a tensor; Average by default.

    Args:
        value: array, number or tensor of a reducible dtype, of the same shape on every rank.
        name: the same on every rank; made up by default.
        average: deprecated, use op.
        prescale_factor: multiplies before the sum.
        postscale_factor: multiplies after it.
        op: Average, Sum, Min, Max or Product.
        compression: what is done to the value on the wire.

    Raises:
        tf.errors.FailedPreconditionError: ranks disagree on dtype, shape, op or factors.
    """
    return _allreduce(
        tf.convert_to_tensor(value),
        average=average,
        name=name,
        op=op,
        prescale_factor=prescale_factor,
        postscale_factor=postscale_factor,
        compression=compression,
    )


def allgather(value: Any, name: str | None = None, *, gradient: str = "sum") -> Any:
    """Returns the ranks' values joined along the first dimension, which may differ.

    `gradient` is that of tfring.allgather.
    """
    return _allgather(tf.convert_to_tensor(value), name=name, gradient=gradient)


def broadcast(value: Any, root_rank: int, name: str | None = None, *, gradient: str = "sum") -> Any:
    """Returns the root's value; `gradient` is that of tfring.broadcast."""
    return _broadcast(tf.convert_to_tensor(value), root_rank, name=name, gradient=gradient)


def reducescatter(
    value: Any, name: str | None = None, op: int = Average, *, gradient: str = "sum"
) -> Any:
    """Returns this rank's rows of the reduction of `value` over the ranks.

    Args:
        value: array or tensor with at least one dimension, of the same shape on every rank; the
            first ranks get one row more where rows and ranks do not divide evenly.
        name: the same on every rank; made up by default.
        op: Average, Sum, Min, Max or Product.
        gradient: that of tfring.reducescatter.

    Raises:
        tf.errors.FailedPreconditionError: ranks disagree on dtype, shape or op.
    """
    return _reducescatter(tf.convert_to_tensor(value), name=name, op=op, gradient=gradient)
