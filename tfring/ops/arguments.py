"""Checks and prepares the arguments of collectives before an op is built.

A dtype or an option that no op supports is refused before the call gets a default name. So a
refused call uses up no count, and later calls have the same names as on the other ranks. Other
values that may be wrong on one rank alone (scalars, splits, roots) go into the request, so every
rank gets the error.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfring.ops import library, reduce_ops
from tfring.ops.reduce_ops import Adasum, Average, Sum
from tfring.runtime import _native, topology
from tfring.runtime.process_sets import checked_id, global_process_set

UNNAMED = "(without a name)"

# Adasum divides by squared lengths, so it needs these dtypes.
_FLOATS = ("float16", "bfloat16", "float32", "float64")


def handle_average_backwards_compatibility(op: int | None, average: bool | None) -> int:
    """Combines the deprecated `average` with `op`.

    Raises:
        ValueError: both are given.
    """
    if op is not None:
        if average is not None:
            raise ValueError("give op or average, not both; average is deprecated")
        return op
    if average is None:
        return Average
    warnings.warn(
        "average= is deprecated. Use op=tfring.Average or op=tfring.Sum",
        DeprecationWarning,
        stacklevel=4,
    )
    return Average if average else Sum


def checked_op(op: int | None, average: bool | None = None) -> int:
    """Returns the reduce operation's number; raises ValueError for an unknown one."""
    if op is None or average is not None:
        op = handle_average_backwards_compatibility(op, average)
    chosen = int(op)
    if chosen not in reduce_ops.NAMES:
        reduce_ops.name_of(chosen)  # raises
    return chosen


def checked_elementwise_op(op: int, kind: str) -> int:
    """As checked_op, for collectives without Adasum; raises NotImplementedError for Adasum."""
    chosen = checked_op(op)
    if chosen == Adasum:
        raise NotImplementedError(
            f"op=Adasum works on whole tensors, so only allreduce supports it, not {kind}"
        )
    return chosen


def checked_gradient(gradient: str) -> str:
    """Returns the name of a gradient's convention; raises ValueError for an unknown one."""
    if gradient not in ("sum", "mean", "horovod"):
        raise ValueError(
            f'gradient={gradient!r} is unknown. Use "sum" (for tapes and optimizers that '
            'average), "mean" or "horovod"'
        )
    return gradient


def begin(kind: str, process_set: Any) -> int:
    """Returns the id of the process set for a call.

    Raises:
        ValueError: the process set is not registered.
        tf.errors.FailedPreconditionError: tfring is not initialized; the message names `kind`.
    """
    set_id = 0 if process_set is global_process_set else checked_id(process_set)
    if not _native.core.is_initialized():
        require_init(kind)
    return set_id


def require_init(what: str) -> None:
    """Raises tf.errors.FailedPreconditionError with the reason if the runtime is not running."""
    if _native.core.is_initialized():
        return
    try:
        _native.core.process_sets()  # its error gives the reason: no init yet, or a forked child
    except _native.core.CoreError as error:
        why = topology.started_by() or error.message
        raise tf.errors.FailedPreconditionError(None, None, f"{what}: {why}") from None


def checked_tensor(tensor: Any, name: str | None, supported: Sequence[str], kind: str) -> Any:
    """Returns the value as a tensor; raises TypeError if `kind` does not support its dtype."""
    value = tf.convert_to_tensor(tensor)
    if value.dtype.name not in supported:
        library.check_dtype(value, name or UNNAMED, supported, kind)
    return value


def checked_reducible(tensor: Any, name: str | None, kind: str, op: int) -> Any:
    """As checked_tensor, for a reduction with `op`."""
    if op == Adasum:
        return checked_tensor(tensor, name, _FLOATS, f"{kind} with op=Adasum")
    return checked_tensor(tensor, name, library.REDUCIBLE, kind)


def refuse_sparse(tensors: Sequence[Any], name: str | None, kind: str) -> None:
    """Raises NotImplementedError for tf.IndexedSlices, which only allreduce supports."""
    if any(isinstance(tensor, tf.IndexedSlices) for tensor in tensors):
        raise NotImplementedError(
            f"tensor {name or UNNAMED}: {kind} does not support tf.IndexedSlices. Make it dense "
            "with tf.convert_to_tensor"
        )


def compress(
    tensors: Sequence[Any], name: str | None, compression: Any, kind: str, op: int
) -> list[tuple[Any, Any]]:
    """Returns the compressed tensors, and the compression's contexts."""
    pairs = [compression.compress(tf.convert_to_tensor(tensor)) for tensor in tensors]
    return [(checked_reducible(wire, name, kind, op), context) for wire, context in pairs]


def build_by_dtype(
    tensors: Sequence[Any], name: str, build: Callable[[list[Any], str], list[Any]]
) -> list[Any]:
    """Calls build(tensors, name) for each dtype; returns all results in the order of `tensors`."""
    results: list[Any] = [None] * len(tensors)
    for part_name, positions in by_dtype(tensors, name):
        built = build([tensors[i] for i in positions], part_name)
        for i, result in zip(positions, built, strict=True):
            results[i] = result
    return results


def by_dtype(items: Sequence[Any], name: str) -> list[tuple[str, list[int]]]:
    """Returns, for each dtype, the name of its op and the positions in `items`.

    The op of the first dtype has the plain name. So ranks whose dtypes differ call one name, and
    get an error.
    """
    found: dict[Any, list[int]] = {}
    for i, item in enumerate(items):
        found.setdefault(item.dtype, []).append(i)
    return [
        (f"{name}.{tf.as_dtype(dtype).name}" if number else name, positions)
        for number, (dtype, positions) in enumerate(found.items())
    ]


def on_device(name: str) -> contextlib.AbstractContextManager[Any]:
    """Places the ops that are built in this context; with "" TensorFlow chooses."""
    device: contextlib.AbstractContextManager[Any]
    device = tf.device(name) if name else contextlib.nullcontext()
    return device


def checked_splits(splits: Any, name: str | None) -> Any:
    """Returns splits as an int32 or int64 tensor, or None. Their values are checked later.

    Raises:
        TypeError: their dtype is not int32 or int64.
    """
    if splits is None:
        return None
    sizes = tf.convert_to_tensor(splits)
    if sizes.dtype == tf.float32 and sizes.shape.num_elements() == 0:
        sizes = tf.cast(sizes, tf.int32)  # an empty list has no integer dtype
    label = f"splits of {name or UNNAMED}"
    library.check_dtype(sizes, label, ("int32", "int64"), "a number of rows")
    return sizes
