"""What the collectives check and prepare before they build an op.

A dtype or an option that no op can be built with is found before the call's name is made up: a call
that raises here uses up no count, and the next one meets its like on the other ranks. All else that
can be wrong on one rank alone (scalars, splits, roots) travels, and every rank gets the error.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

from tfring._native import core
from tfring.ops import library, reduce_ops
from tfring.ops.reduce_ops import Adasum, Average, Sum

UNNAMED = "(without a name)"

# What Adasum is defined for: it divides by squared lengths.
_FLOATS = ("float16", "bfloat16", "float32", "float64")


def handle_average_backwards_compatibility(op: int | None, average: bool | None) -> int:
    """Joins the deprecated `average` with `op`.

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
        "the parameter average is deprecated: use op=tfring.Average or op=tfring.Sum",
        DeprecationWarning,
        stacklevel=4,
    )
    return Average if average else Sum


def checked_op(op: int | None, average: bool | None = None) -> int:
    """Returns the reduce operation's number; ValueError for one that does not exist."""
    chosen = int(handle_average_backwards_compatibility(op, average))
    reduce_ops.name_of(chosen)
    return chosen


def checked_elementwise_op(op: int, kind: str) -> int:
    """As checked_op, for collectives that have no Adasum; NotImplementedError for that."""
    chosen = checked_op(op)
    if chosen == Adasum:
        raise NotImplementedError(
            f"op=Adasum needs whole tensors: it is there for allreduce, not for {kind}"
        )
    return chosen


def require_init(what: str) -> None:
    """Raises FailedPreconditionError, which says what is in the way, unless init was called."""
    if core.is_initialized():
        return
    try:
        core.rank()  # says what is in the way: no init yet, or a forked child
    except core.CoreError as error:
        raise tf.errors.FailedPreconditionError(None, None, f"{what}: {error.message}") from None


def checked_tensor(
    tensor: Any, name: str | None, supported: Sequence[str], kind: str, variant: str = ""
) -> Any:
    """Returns the value as a tensor; TypeError for a dtype that `kind` (`variant`) cannot take."""
    value = tf.convert_to_tensor(tensor)
    library.check_dtype(value, name or UNNAMED, supported, kind + variant)
    library.refuse_xla(name or UNNAMED, kind.removeprefix("grouped_"))
    return value


def refuse_sparse(tensors: Sequence[Any], name: str | None, kind: str) -> None:
    """Raises NotImplementedError for tf.IndexedSlices, which only allreduce takes."""
    if any(isinstance(tensor, tf.IndexedSlices) for tensor in tensors):
        raise NotImplementedError(
            f"tensor {name or UNNAMED}: {kind} takes no tf.IndexedSlices; make it dense with "
            "tf.convert_to_tensor"
        )


def compress(
    tensors: Sequence[Any], name: str | None, compression: Any, kind: str, op: int
) -> list[tuple[Any, Any]]:
    """Returns what goes over the wire for each tensor, and the compression's context."""
    pairs = [compression.compress(tf.convert_to_tensor(tensor)) for tensor in tensors]
    supported = _FLOATS if op == Adasum else library.REDUCIBLE
    variant = " with op=Adasum" if op == Adasum else ""
    return [
        (checked_tensor(wire, name, supported, kind, variant), context) for wire, context in pairs
    ]


def by_dtype(tensors: Sequence[Any], name: str) -> list[tuple[str, list[int]]]:
    """Returns positions of tensors of one dtype, and the name of their op.

    The first keeps the plain name, so that ranks which disagree about dtypes meet there and find
    out.
    """
    found: dict[Any, list[int]] = {}
    for i, tensor in enumerate(tensors):
        found.setdefault(tensor.dtype, []).append(i)
    return [
        (f"{name}.{dtype.name}" if number else name, positions)
        for number, (dtype, positions) in enumerate(found.items())
    ]


@contextlib.contextmanager
def on_device(name: str) -> Iterator[None]:
    """Builds ops on the device, or wherever TensorFlow likes for ""."""
    if not name:
        yield
        return
    with tf.device(name):
        yield


def checked_splits(splits: Any, name: str | None) -> Any:
    """Returns splits as an int32 or int64 tensor, or None; what is in them is checked later.

    Raises:
        TypeError: they are no integers of 32 or 64 bits.
    """
    if splits is None:
        return None
    sizes = tf.convert_to_tensor(splits)
    if sizes.dtype == tf.float32 and sizes.shape.num_elements() == 0:
        sizes = tf.cast(sizes, tf.int32)  # an empty list says nothing about its dtype
    label = f"splits of {name or UNNAMED}"
    library.check_dtype(sizes, label, ("int32", "int64"), "a number of rows")
    return sizes
