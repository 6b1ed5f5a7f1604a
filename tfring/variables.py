"""Gives every rank the values of one rank's variables."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from typing import Any

import tensorflow as tf

from tfring import buckets, collectives, process_sets


def broadcast_variables(
    variables: Iterable[Any],
    root_rank: int,
    process_set: Any = None,
    inplace: bool = False,
    *,
    device: str = "",
) -> Any:
    """Assigns the root's values to the variables on every rank.

    Args:
        variables: tf.Variable or keras.Variable, in the same order on every rank; any dtype but
            string.
        root_rank: whose values all get.
        process_set: the ranks that take part; None is all.
        inplace: accepted for Horovod's sake; the values go from variable to variable anyhow.
        device: TensorFlow device for the operations, "" for TensorFlow's choice.

    Returns:
        An operation that groups the assignments when called while a graph is built, else None.

    Raises:
        tf.errors.FailedPreconditionError: tfring is not initialized, or ranks differ in root,
            dtype, shape or number of variables.
    """
    del inplace
    tf_variables = [_tf_variable(v) for v in variables]
    specs = tuple(
        buckets.TensorSpec(v.dtype.name, v.shape.num_elements() * v.dtype.size)
        for v in tf_variables
    )
    assigned = []
    with tf.device(device) if device else contextlib.nullcontext():
        for bucket in buckets.cut_buckets(specs, first_bytes=buckets.BUCKET_BYTES):
            assigned += _broadcast_bucket(
                [tf_variables[p] for p in bucket.positions],
                f"tfring.broadcast_variables.{bucket.index}",
                root_rank,
                process_set or process_sets.global_process_set,
            )
    return None if tf.executing_eagerly() else tf.group(assigned)


def describe_variables(variables: Sequence[Any]) -> list[tuple[str, tuple[int, ...]]]:
    """Returns dtype and shape of each: two ranks can exchange values if these are equal."""
    described = [_tf_variable(v) for v in variables]
    return [(v.dtype.name, tuple(v.shape.as_list())) for v in described]


def _broadcast_bucket(
    variables: list[Any], name: str, root_rank: int, process_set: Any
) -> list[Any]:
    values = collectives.bucket_broadcast(
        [tf.convert_to_tensor(v) for v in variables],
        name=name,
        root_rank=root_rank,
        process_set=process_set,
    )
    return [v.assign(value) for v, value in zip(variables, values, strict=True)]


def _tf_variable(variable: Any) -> Any:
    """Returns the tf.Variable, which a keras.Variable holds in `value`."""
    if isinstance(variable, tf.Variable):
        return variable
    value = getattr(variable, "value", None)
    if not isinstance(value, tf.Variable):
        raise TypeError(
            f"need a tf.Variable or a keras.Variable, not {type(variable).__module__}."
            f"{type(variable).__name__}"
        )
    return value
