"""Gives every rank the values of one rank's variables."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from typing import Any

import tensorflow as tf

from tfring.collectives import allreduce, buckets
from tfring.collectives.assigned import finalize
from tfring.ops import arguments, builders, library, names, reduce_ops
from tfring.runtime import process_sets

# The attribute that marks a sharded state: each rank has another part of it.
PART = "_tfring_part"


def broadcast_variables(
    variables: Iterable[Any],
    root_rank: int,
    process_set: Any = None,
    inplace: bool = False,
    *,
    device: str = "",
) -> Any:
    """Assigns the root's values to the variables on every rank.

    Leaves out sharded states (shard_states=True). With a warning it leaves out the states of Keras'
    seed generators, which `model.variables` contains: with equal states dropout would drop the same
    units on all ranks. (`broadcast_` takes both.) An empty list, as of a model that is not built,
    gets a warning, too.

    Args:
        variables: tf.Variable or keras.Variable, in the same order on every rank; any dtype but
            string.
        root_rank: the sender; a world rank, also within a process set.
        process_set: the ranks that take part; None means all.
        inplace: accepted for Horovod scripts; values always go from variable to variable.
        device: TensorFlow device for the operations, "" for TensorFlow's choice.

    Returns:
        An operation that groups the assignments when called while a graph is built, else None.

    Raises:
        tf.errors.FailedPreconditionError: tfring is not initialized, or ranks differ in root,
            dtype, shape or number of variables.
    """
    del inplace
    chosen = [v for v in _without_seeds(variables) if not getattr(v, PART, False)]
    tf_variables = [_tf_variable(v) for v in chosen]
    specs = tuple(
        buckets.TensorSpec(v.dtype.name, v.shape.num_elements() * v.dtype.size)
        for v in tf_variables
    )
    members = process_set or process_sets.global_process_set
    cut = buckets.cut_buckets(specs, first_bytes=buckets.BUCKET_BYTES)
    name = "tfring.broadcast_variables"
    parts = [(f"{name}.{bucket.index}", bucket.positions) for bucket in cut]
    with arguments.on_device(device):
        assigned = _assign(tf_variables, parts, name, root_rank, members)
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
        root_rank: the sender; a world rank, also within a process set.
        name: the same on every rank; made up by default.
        process_set: the ranks that take part.

    Returns:
        The variables. When called while a graph is built: variables that are read after the
        assignment; in a TF1 graph these are what has to run.

    Raises:
        ValueError: the process set is unknown.
        TypeError: one is not a variable.
        tf.errors.InvalidArgumentError: there is no such rank in the process set.
        tf.errors.FailedPreconditionError: tfring is not initialized, or ranks differ in root,
            dtype, shape or number of variables.
    """
    given = list(variables)
    tf_variables = [_tf_variable(v) for v in given]
    process_set_id = arguments.begin("broadcast_", process_set)
    values = [arguments.checked_tensor(v, name, library.MOVABLE, "broadcast") for v in tf_variables]
    full_name = names.collective_name("broadcast_", name, process_set_id=process_set_id)
    parts = arguments.by_dtype(values, full_name)
    assigned = _assign(tf_variables, parts, full_name, root_rank, process_set)
    return given if tf.executing_eagerly() else assigned


def _assign(
    variables: Sequence[Any],
    parts: Sequence[tuple[str, Sequence[int]]],
    name: str,
    root_rank: int,
    process_set: Any,
) -> list[Any]:
    """Broadcasts each part as one op. A part has a name and positions of variables of one dtype.

    First the ranks compare the parts' dtypes in a collective. If they are about to make different
    lists of broadcasts, all get an error, and none waits for the others.

    Returns:
        The result of each variable's assignment.
    """
    dtypes = [variables[positions[0]].dtype.name for _, positions in parts]
    compared = allreduce.bucket_allreduce(
        [tf.zeros([1])],
        name=f"{name}.layout",
        op=reduce_ops.Max,
        layout_hash=buckets.text_hash(" ".join(dtypes)),
        process_set=process_set,
    )
    assigned: list[Any] = [None] * len(variables)
    set_id = process_sets.checked_id(process_set)
    with tf.control_dependencies(compared):
        for part_name, positions in parts:
            given = [
                arguments.checked_tensor(variables[p], part_name, library.MOVABLE, "broadcast")
                for p in positions
            ]
            values = builders.broadcast_op(
                given, name=part_name, root_rank=int(root_rank), process_set_id=set_id
            )
            for p, value in zip(positions, values, strict=True):
                assigned[p] = variables[p].assign(value)
    finalize(variables)
    return assigned


def _without_seeds(variables: Iterable[Any]) -> list[Any]:
    """Returns the variables that all ranks share; warns about others, and if there are none."""
    given = list(variables)
    kept = [v for v in given if not _is_seed(v)]
    if len(kept) < len(given):
        warnings.warn(
            "broadcast_variables leaves out the states of seed generators, so dropout and other "
            "random layers draw different numbers on each rank. Pass model.weights instead of "
            "model.variables. broadcast_ includes them",
            stacklevel=3,
        )
    elif not given:
        warnings.warn(
            "broadcast_variables got an empty list, so it broadcasts nothing. A model or an "
            "optimizer has no variables before it is built. Call it or its build() first",
            stacklevel=3,
        )
    return kept


def _is_seed(variable: Any) -> bool:
    name = str(getattr(variable, "name", ""))
    return name.split(":")[0].split("/")[-1] == "seed_generator_state"


def describe_variables(variables: Sequence[Any]) -> list[tuple[str, tuple[int, ...]]]:
    """Returns dtype and shape of each: two ranks can exchange values if these are equal."""
    described = [_tf_variable(v) for v in variables]
    return [(v.dtype.name, tuple(v.shape.as_list())) for v in described]


def _tf_variable(variable: Any) -> Any:
    """Returns the tf.Variable in a keras.Variable's `value`, or the variable itself."""
    if isinstance(variable, tf.Variable):
        return variable
    value = getattr(variable, "value", None)
    if not isinstance(value, tf.Variable):
        raise TypeError(
            "expected a tf.Variable or a keras.Variable, got "
            f"{type(variable).__module__}.{type(variable).__name__}"
        )
    return value
