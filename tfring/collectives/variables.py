"""Gives every rank the values of one rank's variables."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from typing import Any

import tensorflow as tf

from tfring import process_sets
from tfring.collectives import allreduce, broadcast, buckets
from tfring.ops import arguments, builders, library, names, reduce_ops


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
        root_rank: whose values all get: a rank of the whole job, also within a process set.
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
    members = process_set or process_sets.global_process_set
    cut = buckets.cut_buckets(specs, first_bytes=buckets.BUCKET_BYTES)
    assigned = []
    with tf.device(device) if device else contextlib.nullcontext():
        compared = _compare_dtypes("tfring.broadcast_variables", [b.dtype for b in cut], members)
        with tf.control_dependencies(compared):
            for bucket in cut:
                assigned += _broadcast_bucket(
                    [tf_variables[p] for p in bucket.positions],
                    f"tfring.broadcast_variables.{bucket.index}",
                    root_rank,
                    members,
                )
    return None if tf.executing_eagerly() else tf.group(assigned)


def broadcast_(
    variables: Iterable[Any],
    root_rank: int,
    name: str | None = None,
    process_set: Any = process_sets.global_process_set,
) -> list[Any]:
    """Assigns the root's values to the variables on every rank, those of one dtype at once.

    Args:
        variables: tf.Variable or keras.Variable, in the same order on every rank; any dtype but
            string.
        root_rank: whose values all get: a rank of the whole job, also within a process set.
        name: the same on every rank; made up by default.
        process_set: the ranks that take part.

    Returns:
        The variables. When called while a graph is built: variables that are read after the
        assignment; in a TF1 graph these are what has to run.

    Raises:
        ValueError: the process set is unknown.
        TypeError: what is no variable.
        tf.errors.InvalidArgumentError: there is no such rank in the process set.
        tf.errors.FailedPreconditionError: tfring is not initialized, or ranks differ in root,
            dtype, shape or number of variables.
    """
    given = list(variables)
    tf_variables = [_tf_variable(v) for v in given]
    arguments.require_init("broadcast_")
    values = [arguments.checked_tensor(v, name, library.MOVABLE, "broadcast") for v in tf_variables]
    assigned = list(given)
    full_name = names.collective_name("broadcast_", name, process_set=process_set)
    parts = arguments.by_dtype(values, full_name)
    dtypes = [values[positions[0]].dtype.name for _, positions in parts]
    compared = _compare_dtypes(full_name, dtypes, process_set)
    for op_name, positions in parts:
        with tf.control_dependencies(compared):
            received = builders.broadcast_op(
                [values[p] for p in positions],
                name=op_name,
                root_rank=int(root_rank),
                process_set_id=process_sets.checked_id(process_set),
            )
        for p, value in zip(positions, received, strict=True):
            result = tf_variables[p].assign(value)
            if not tf.executing_eagerly():
                assigned[p] = result
    return assigned


def _compare_dtypes(name: str, dtypes: Sequence[str], process_set: Any) -> list[Any]:
    """Fails on every rank if the ranks are about to make different lists of broadcasts.

    Without it a rank could wait in a broadcast that the others do not make.

    Returns:
        What the broadcasts have to wait for.
    """
    return allreduce.bucket_allreduce(
        [tf.zeros([1])],
        name=f"{name}.layout",
        op=reduce_ops.Max,
        layout_hash=buckets.text_hash(" ".join(dtypes)),
        process_set=process_set,
    )


def describe_variables(variables: Sequence[Any]) -> list[tuple[str, tuple[int, ...]]]:
    """Returns dtype and shape of each: two ranks can exchange values if these are equal."""
    described = [_tf_variable(v) for v in variables]
    return [(v.dtype.name, tuple(v.shape.as_list())) for v in described]


def _broadcast_bucket(
    variables: list[Any], name: str, root_rank: int, process_set: Any
) -> list[Any]:
    values = broadcast.bucket_broadcast(
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
