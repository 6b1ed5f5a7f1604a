"""Builds the ops of the collectives: one function per op.

Each takes what the op's attributes need, the whole name and the id of the process set. The caller
has checked the dtypes (tfring.ops.arguments); here a function with jit_compile=True is refused
where XLA cannot compile the op.
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

    With `early`, an op in a graph on a GPU is done as soon as the GPU has all of its work, and not
    when the results are there.
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
    """Builds what begins an allreduce under XLA; returns what builds the rest.

    On a GPU the compiled program goes on with other work between the two, for which it has to be
    built: other ops that wait must not be traced in between. `allreduce_op` builds both at once.
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
    """Builds one TfringAlltoall; returns rows and how many came from each rank.

    `tensor` has the rows for all ranks, in their order; `splits`, an int32 or int64 vector, says
    how many go to each rank, None in equal parts.
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
    """Builds one TfringReduce of tensors of one dtype; returns zeros on all ranks but the root."""
    attributes = _reduction(op, prescale, postscale)
    return _build_list("reduce", tensors, name, process_set_id, root_rank=root_rank, **attributes)


def gather_op(tensor: Any, *, name: str, root_rank: int, process_set_id: int = 0) -> Any:
    """Builds one TfringGather; returns no rows on all ranks but the root."""
    return _build("gather", name, process_set_id, tensor=tensor, root_rank=root_rank)


def scatter_op(
    tensor: Any, splits: Any, *, name: str, root_rank: int, process_set_id: int = 0
) -> Any:
    """Builds one TfringScatter of the root's rows, with `tensor` and `splits` as in alltoall_op.

    The other ranks' tensors only say dtype and row shape, and their splits nothing.
    """
    inputs = {"tensor": tensor, **_splits(splits)}
    return _build("scatter", name, process_set_id, root_rank=root_rank, **inputs)


def send_op(
    tensor: Any, *, name: str, source: int, destination: int, process_set_id: int = 0
) -> Any:
    """Builds one TfringSend; returns the operation, in eager mode None."""
    ends = {"source": source, "destination": destination}
    return _build("send", name, process_set_id, tensor=tensor, **ends)


def recv_op(
    dtype: Any, shape: Any, *, name: str, source: int, destination: int, process_set_id: int = 0
) -> Any:
    """Builds one TfringRecv; the shape may be unknown, wholly or in parts."""
    ends = {"source": source, "destination": destination}
    return _build("recv", name, process_set_id, T=dtype, shape=shape, **ends)


def barrier_op(*, name: str, process_set_id: int = 0) -> Any:
    """Builds one TfringBarrier; returns the operation, in eager mode None."""
    return _build("barrier", name, process_set_id)


def join_op(*, name: str, process_set_id: int = 0) -> Any:
    """Builds one TfringJoin; returns the rank that joined last, an int32 scalar."""
    return _build("join", name, process_set_id)


def _splits(splits: Any) -> dict[str, Any]:
    equal = splits is None
    return {"splits": tf.zeros([0], tf.int32) if equal else splits, "equal_splits": equal}


def _reduction(op: int, prescale: float, postscale: float) -> dict[str, Any]:
    """The attributes of a reduction; repr is the shortest text that gives the same double again."""
    factors = {"prescale_factor": repr(float(prescale)), "postscale_factor": repr(float(postscale))}
    return {"reduce_op": op, **factors}


def _build_list(
    kind: str, tensors: Sequence[Any], name: str, process_set_id: int, **attributes: Any
) -> list[Any]:
    """Builds one op that takes a list of tensors of one dtype and returns as many."""
    return _hand_on(_build(kind, name, process_set_id, tensors=list(tensors), **attributes))


def _hand_on(results: Sequence[Any]) -> list[Any]:
    """In a graph puts one synchronous op behind the results of a collective; returns its results.

    When an asynchronous op is done, TensorFlow hands each op that waits for one of its outputs to
    another thread; behind a synchronous one, ops that are cheap run where it ran. Not where there
    is a GPU, to which it would copy tensors of int32.
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
    """Builds one op; under XLA behind all others of the function, see tfring.ops.channels."""
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
    """Returns a node name for people who look at graphs; it means nothing to the ranks."""
    return f"Tfring{kind.title()}_{re.sub('[^A-Za-z0-9_.-]', '_', name)}"
