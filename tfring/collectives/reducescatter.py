"""reducescatter: each rank gets its share of the rows of a reduction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tfring.collectives.compression import Compression
from tfring.ops import arguments, builders, library, names
from tfring.ops.reduce_ops import Average
from tfring.runtime.process_sets import ProcessSet, global_process_set


@library.outside_autograph
def reducescatter(
    tensor: Any,
    device_dense: str = "",
    compression: Any = Compression.none,
    op: int = Average,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    *,
    gradient: str = "sum",
) -> Any:
    """Reduces a tensor over all ranks and gives each rank its share of the rows.

    Differentiable. `gradient` says which loss the gradient belongs to: see allgather.

    Args:
        tensor: tensor, variable or array with at least one dimension, of the same shape on every
            rank: float16, bfloat16, float32, float64, int8, uint8, int32 or int64.
        device_dense: device for the reduction, "" for TensorFlow's choice.
        compression: how the tensor is encoded for sending.
        op: Average, Sum, Min, Max or Product.
        name: the same on every rank; made up by default.
        process_set: the ranks that take part.
        ignore_name_scope: use `name` as it is, without the current name scope.
        prescale_factor: multiplies every rank's tensor before the reduction.
        postscale_factor: multiplies the result.
        gradient: "sum", "mean" or "horovod", as in allgather.

    Returns:
        Consecutive rows of the result. Where they cannot be cut into equal parts, the first ranks
        have one row more than the last.

    Raises:
        ValueError: op, the process set or the gradient is unknown.
        TypeError: the dtype is not supported.
        NotImplementedError: tf.IndexedSlices, or op is Adasum.
        tf.errors.InvalidArgumentError: on every rank: some rank's tensor is a scalar.
        tf.errors.FailedPreconditionError: tfring is not initialized, ranks disagree on dtype,
            shape, op or factors, or a rank has joined.
        tf.errors.UnavailableError: a rank was lost.
    """
    return _reducescatter(
        [tensor],
        "reducescatter",
        device_dense,
        compression,
        op,
        name,
        process_set,
        ignore_name_scope,
        (prescale_factor, postscale_factor),
        gradient,
    )[0]


@library.outside_autograph
def grouped_reducescatter(
    tensors: Sequence[Any],
    device_dense: str = "",
    compression: Any = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    name: str | None = None,
    ignore_name_scope: bool = False,
    *,
    gradient: str = "sum",
) -> list[Any]:
    """Reduces a list of tensors as reducescatter does; tensors of one dtype share one collective.

    The parameters are those of reducescatter, for all tensors. Their shapes and dtypes may differ.
    `name` is the name of the group.

    Returns:
        This rank's rows of each tensor, in the order of `tensors`.

    Raises:
        Exception: what reducescatter raises.
    """
    return _reducescatter(
        list(tensors),
        "grouped_reducescatter",
        device_dense,
        compression,
        op,
        name,
        process_set,
        ignore_name_scope,
        (prescale_factor, postscale_factor),
        gradient,
    )


def _reducescatter(
    tensors: list[Any],
    kind: str,
    device: str,
    compression: Any,
    op: int,
    name: str | None,
    process_set: ProcessSet,
    ignore_name_scope: bool,
    factors: tuple[float, float],
    gradient: str,
) -> list[Any]:
    """Builds one op per dtype."""
    op = arguments.checked_elementwise_op(op, "reducescatter")
    gradient = arguments.checked_gradient(gradient)
    process_set_id = arguments.begin(kind, process_set)
    arguments.refuse_sparse(tensors, name, "reducescatter")
    if not tensors:
        return []
    with arguments.on_device(device):
        wires = arguments.compress(tensors, name, compression, "reducescatter", op)
        reduced = arguments.build_by_dtype(
            [wire for wire, _ in wires],
            names.collective_name(kind, name, ignore_name_scope, process_set_id),
            lambda part, part_name: builders.reducescatter_op(
                part,
                name=part_name,
                op=op,
                prescale=factors[0],
                postscale=factors[1],
                process_set_id=process_set_id,
                group=kind.startswith("grouped"),
                gradient=gradient,
            ),
        )
        return [
            compression.decompress(each, context)
            for each, (_, context) in zip(reduced, wires, strict=True)
        ]
