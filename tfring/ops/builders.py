"""Builds the ops of the collectives: one function per op.

Each function takes the op's attributes, the whole name and the id of the process set. The caller
has checked the dtypes (tfring.ops.arguments). These functions refuse jit_compile=True for an op
that XLA cannot compile.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfring.ops import call_sites, channels, library, names, placement, step_guard, xla
from tfring.ops.reduce_ops import Average
from tfring.runtime import _native


def allreduce_op(
    tensors: Sequence[Any],
    *,
    name: str,
    op: int,
    prescale: float = 1.0,
    postscale: float = 1.0,
    process_set_id: int = 0,
    layout_hash: int = 0,
    group: bool = False,
    early: bool = False,
) -> list[Any]:
    """Builds one TfringAllreduce of tensors of one dtype; returns tensors of the same shapes.

    With `early`, an op in a graph on a GPU is done when the GPU has all of its work, before the
    results are ready.
    """
    attributes = _reduction(op, prescale, postscale)
    if early:
        attributes["early"] = True
    built = _build(
        "allreduce",
        name,
        process_set_id,
        tensors=list(tensors),
        group=group,
        layout_hash=layout_hash,
        **attributes,
    )
    return built if tf.executing_eagerly() else _hand_on(built)


def start_allreduce(
    tensors: Sequence[Any],
    *,
    name: str,
    op: int,
    prescale: float = 1.0,
    postscale: float = 1.0,
    process_set_id: int = 0,
    layout_hash: int = 0,
    group: bool = False,
) -> Callable[[], list[Any]]:
    """Builds the start of an allreduce under XLA; returns a function that builds the rest.

    On a GPU the compiled program does other work between the two. Do not trace other waiting ops in
    between. `allreduce_op` builds both at once.
    """
    attributes = _reduction(op, prescale, postscale) | {"layout_hash": layout_hash}
    started = _build_list(
        "allreduce_start", tensors, name, process_set_id, group=group, **attributes
    )
    return lambda: _build_list("allreduce_done", started, name, process_set_id)


def allgather_op(
    tensors: Sequence[Any],
    *,
    name: str,
    process_set_id: int = 0,
    group: bool = False,
    gradient: str = "sum",
) -> list[Any]:
    """Builds one TfringAllgather of tensors of one dtype; first dimensions become sums."""
    return _build_list("allgather", tensors, name, process_set_id, group=group, gradient=gradient)


def broadcast_op(
    tensors: Sequence[Any],
    *,
    name: str,
    root_rank: int,
    process_set_id: int = 0,
    gradient: str = "sum",
) -> list[Any]:
    """Builds one TfringBroadcast of tensors of one dtype; returns tensors of the same shapes."""
    attributes = {"root_rank": root_rank, "gradient": gradient}
    return _build_list("broadcast", tensors, name, process_set_id, **attributes)


def reducescatter_op(
    tensors: Sequence[Any],
    *,
    name: str,
    op: int = Average,
    prescale: float = 1.0,
    postscale: float = 1.0,
    process_set_id: int = 0,
    group: bool = False,
    gradient: str = "sum",
) -> list[Any]:
    """Builds one TfringReducescatter of tensors of one dtype; returns this rank's rows."""
    attributes = _reduction(op, prescale, postscale) | {"gradient": gradient}
    return _build_list("reducescatter", tensors, name, process_set_id, group=group, **attributes)


def alltoall_op(
    tensor: Any, splits: Any, *, name: str, process_set_id: int = 0, gradient: str = "sum"
) -> tuple[Any, Any]:
    """Builds one TfringAlltoall; returns the rows, and how many came from each rank.

    `tensor` holds the rows for all ranks, in rank order. `splits`, an int32 or int64 vector, says
    how many go to each rank; None means equal parts.
    """
    inputs = {"tensor": tensor, "gradient": gradient, **_splits(splits)}
    received, received_splits = _build("alltoall", name, process_set_id, **inputs)
    return received, received_splits


def reduce_op(
    tensors: Sequence[Any],
    *,
    name: str,
    root_rank: int,
    op: int = Average,
    prescale: float = 1.0,
    postscale: float = 1.0,
    process_set_id: int = 0,
) -> list[Any]:
    """Builds one TfringReduce of tensors of one dtype; all ranks but the root get zeros."""
    attributes = _reduction(op, prescale, postscale)
    return _build_list("reduce", tensors, name, process_set_id, root_rank=root_rank, **attributes)


def gather_op(tensor: Any, *, name: str, root_rank: int, process_set_id: int = 0) -> Any:
    """Builds one TfringGather; all ranks but the root get no rows."""
    return _build("gather", name, process_set_id, tensor=tensor, root_rank=root_rank)


def scatter_op(
    tensor: Any, splits: Any, *, name: str, root_rank: int, process_set_id: int = 0
) -> Any:
    """Builds one TfringScatter of the root's rows; `tensor` and `splits` are as in alltoall_op.

    The other ranks' tensors only give dtype and row shape; their splits are ignored.
    """
    inputs = {"tensor": tensor, **_splits(splits)}
    return _build("scatter", name, process_set_id, root_rank=root_rank, **inputs)


def send_op(
    tensor: Any, *, name: str, source: int, destination: int, process_set_id: int = 0
) -> Any:
    """Builds one TfringSend; returns the operation, or None in eager mode."""
    ends = {"source": source, "destination": destination}
    return _build("send", name, process_set_id, tensor=tensor, **ends)


def recv_op(
    dtype: Any, shape: Any, *, name: str, source: int, destination: int, process_set_id: int = 0
) -> Any:
    """Builds one TfringRecv; the shape may be wholly or partly unknown."""
    ends = {"source": source, "destination": destination}
    return _build("recv", name, process_set_id, T=dtype, shape=shape, **ends)


def barrier_op(*, name: str, process_set_id: int = 0) -> Any:
    """Builds one TfringBarrier; returns the operation, or None in eager mode."""
    return _build("barrier", name, process_set_id)


def join_op(*, name: str, process_set_id: int = 0) -> Any:
    """Builds one TfringJoin; returns the rank that joined last, an int32 scalar."""
    return _build("join", name, process_set_id)


def _splits(splits: Any) -> dict[str, Any]:
    equal = splits is None
    return {"splits": tf.zeros([0], tf.int32) if equal else splits, "equal_splits": equal}


def _reduction(op: int, prescale: float, postscale: float) -> dict[str, Any]:
    """The attributes of a reduction; repr gives the shortest text of the same double."""
    factors = {"prescale_factor": repr(float(prescale)), "postscale_factor": repr(float(postscale))}
    return {"reduce_op": op, **factors}


def _build_list(
    kind: str, tensors: Sequence[Any], name: str, process_set_id: int, **attributes: Any
) -> list[Any]:
    """Builds one op that takes and returns a list of tensors of one dtype."""
    return _hand_on(_build(kind, name, process_set_id, tensors=list(tensors), **attributes))


def _hand_on(results: Sequence[Any]) -> list[Any]:
    """In a graph, puts one synchronous op behind the results of a collective; returns its results.

    When an asynchronous op is done, TensorFlow hands each op that waits for one of its outputs to
    another thread. Behind a synchronous op, cheap ops run on the same thread. Not done with a GPU:
    the op would copy int32 tensors to it.
    """
    direct = len(results) < 2 or tf.executing_eagerly() or xla.compiling() or library.on_gpus()
    if direct:
        return list(results)
    with xla.outside_clusters():
        return list(tf.raw_ops.IdentityN(input=results))


def _build(kind: str, name: str, process_set_id: int, **inputs: Any) -> Any:
    """Builds one op of a graph, or runs it in eager mode."""
    make = getattr(library.load(), f"tfring_{kind}")
    on_gpus = library.on_gpus()
    if on_gpus:
        placement.check_gpus()
    inputs.update(tensor_name=name, process_set_id=process_set_id)
    if not tf.executing_eagerly():
        return _build_in_graph(kind, make, inputs)
    site = _native.call_site() or call_sites.find_rewritten()
    _native.core.set_call_site(site, names.is_default(name))
    inputs["channel"] = channels.channel_of_eager_calls()
    if not on_gpus:
        return make(**inputs)
    with placement.beside(inputs.get("tensors") or [inputs[k] for k in ("tensor",) if k in inputs]):
        return make(**inputs)


def _build_in_graph(kind: str, make: Callable[..., Any], inputs: dict[str, Any]) -> Any:
    """Builds one op; under XLA, behind all others of the function (see tfring.ops.channels)."""
    name = inputs["tensor_name"]
    xla.refuse(name, kind)
    step_guard.ensure(library.load(), inputs["process_set_id"])
    inputs.update(name=_node_name(kind, name), call_site=call_sites.find(), in_graph=True)
    if placement.always_early():
        inputs["early"] = True
    channels.ordered()
    if xla.compiling():
        return make(channel=channels.chain(), **inputs)
    with xla.outside_clusters():
        return make(channel=channels.channel(name, inputs["process_set_id"]), **inputs)


def _node_name(kind: str, name: str) -> str:
    """Returns a node name for people who look at graphs; ranks do not use it."""
    return f"Tfring{kind.title()}_{re.sub('[^A-Za-z0-9_.-]', '_', name)}"
