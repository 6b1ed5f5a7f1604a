"""The weight of this rank's loss in the backward pass that a thread runs or traces.

Ranks may be weighted by what their losses are divided by (docs/adr/0072). Then a tape or an
optimizer multiplies rank i's gradients by its number d_i. Behind a collective, gradients hold parts
of all ranks' losses. So the gradient of a collective counts the loss of rank j d_j / d_i times.

TensorFlow builds the gradient of a tf.function once, as a function of its own. At that time nobody
may know who will differentiate it, and later steps have another d. So that gradient looks d up when
it runs. The tape or optimizer sets d before (`announce`, `announced`), and afterwards it is 1 again
(`over`). Such a process may differentiate in one thread at a time only.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from tfring.ops import xla
from tfring.ops.kept_number import KeptNumber

_CALLS = {"StatefulPartitionedCall", "PartitionedCall", "If", "While", "Case"}
_BACKWARD = "__backward_"  # how TensorFlow's names of gradients of functions begin

_kept = KeptNumber("tfring.backward", 1.0)


class _Pass(threading.local):
    """The backward pass that this thread runs or traces."""

    count: Callable[[], Any] | None = None
    graph: Any = None  # the graph in which it differentiates; None in eager mode


class _State:
    """The state of this process. Any thread may set a flag; none clears it."""

    looked_up = False  # the gradient of some function looks d up
    compiled = False  # such a gradient is compiled by XLA


_pass = _Pass()
_sets: Any = weakref.WeakKeyDictionary()  # the last ops that set d, by graph


@contextlib.contextmanager
def counted(count: Callable[[], Any]) -> Iterator[None]:
    """In this context gradients of collectives weigh ranks.

    Args:
        count: returns d of this rank, or None if ranks weigh the same; called if a gradient asks.
    """
    before = _pass.count, _pass.graph
    _pass.count, _pass.graph = count, _graph()
    try:
        yield
    finally:
        _pass.count, _pass.graph = before


def weighted(
    gradients: Sequence[Any], exchange: Callable[[list[Any]], Sequence[Any]]
) -> Sequence[Any]:
    """Returns the result of an exchange with other ranks on gradients of weighted losses.

    Args:
        gradients: of this rank's loss, of one dtype.
        exchange: a linear function of them. Instead of 16-bit gradients it gets float32, because a
            product may leave their range.
    """
    given = _count(gradients)
    if given is None:
        return exchange(list(gradients))
    narrow = gradients[0].dtype in (tf.float16, tf.bfloat16)
    wide = tf.float32 if narrow else gradients[0].dtype
    count = tf.cast(tf.reshape(tf.convert_to_tensor(given), []), wide)
    found = exchange([tf.math.multiply_no_nan(tf.cast(g, wide), count) for g in gradients])
    return [tf.cast(tf.math.divide_no_nan(g, count), gradients[0].dtype) for g in found]


def announce(count: Any, targets: Sequence[Any]) -> Any:
    """A context for building gradients: they run after `count` is set, if any of them looks it up.

    Args:
        count: d of this rank, or None if ranks weigh the same.
        targets: what is differentiated. Gradients in their history had an earlier d.
    """
    if not _looks_up():
        return contextlib.nullcontext()
    return tf.control_dependencies(_set(1.0 if count is None else count, targets))


def announced(loss: Any, count: Callable[[], Any]) -> Any:
    """Returns a loss whose gradient first sets d, if any gradient looks it up.

    Args:
        loss: a tensor; the forward pass has been built.
        count: returns d of this rank, or None.
    """
    if not _looks_up():
        return loss

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def mark(loss: Any) -> Any:
        def gradient(upstream: Any) -> Any:
            with announce(count(), [loss]):
                return tf.identity(upstream)

        return tf.identity(loss), gradient

    return mark(loss)


def over(gradients: Sequence[Any]) -> None:
    """Sets d to 1 again after these gradients, which were built after `announce`."""
    if not _looks_up():
        return
    _set(1.0, [g for g in gradients if g is not None])


def _count(gradients: Sequence[Any]) -> Any:
    """Returns d for the gradient that is being built; None if ranks weigh the same."""
    graph = _graph()
    if _pass.count is not None and graph is _pass.graph:
        return _pass.count()
    if _pass.count is None and not getattr(graph, "name", "").startswith(_BACKWARD):
        return None
    _State.looked_up = True
    if xla.compiling():
        outer = graph.outer_graph
        while outer is not None:
            if isinstance(outer, xla.CONTROL_FLOW_GRAPHS):
                # The gradient of a branch cannot capture a variable of eager mode.
                return None if _pass.count is None else _pass.count()
            outer = getattr(outer, "outer_graph", None)
        _State.compiled = True
        with graph.as_default():
            return _kept.get()
    # In a function that TensorFlow inlines, an op waits for its own inputs only.
    with tf.control_dependencies(gradients):
        return _kept.get()


def _set(count: Any, after: Sequence[Any]) -> list[Any]:
    """Sets d after other tensors are ready; returns the ops."""
    if _graph() is None:
        graph, before = None, []
    else:
        graph = tf.compat.v1.get_default_graph()
        before = [getattr(t, "values", t) for t in after] + _sets.get(graph, [])
    with tf.control_dependencies(before):
        count = tf.cast(tf.reshape(tf.convert_to_tensor(count), []), tf.float32)
        ops = [_kept.set(count)]
        if not xla.compiling() and _compiled_calls():
            ops.append(_kept.variable().assign(count))
    ops = [op for op in ops if op is not None]
    if graph is not None:
        _sets[graph] = ops
    return ops


def _graph() -> Any:
    """Returns the graph that is being built, without branches and loops; None in eager mode."""
    if tf.executing_eagerly():
        return None
    graph = tf.compat.v1.get_default_graph()
    while isinstance(graph, xla.CONTROL_FLOW_GRAPHS):
        graph = graph.outer_graph
    return graph


def _looks_up() -> bool:
    """Returns whether a gradient may look d up: that of a function with a collective."""
    graph = _graph()
    if graph is None:
        return _State.looked_up
    if not tf.compat.v1.executing_eagerly_outside_functions():  # TF1
        return False
    return any(node.op.startswith("Tfring") for f in _functions(graph) for node in f.node_def)


def _compiled_calls() -> bool:
    graph = _graph()
    if graph is None:
        return _State.compiled
    return any(f.attr["_XlaMustCompile"].b for f in _functions(graph))


def _functions(graph: Any) -> Sequence[Any]:
    """Returns the definitions of all functions that a graph calls."""
    if not any(op.type in _CALLS for op in graph.get_operations()):
        return []
    return graph.as_graph_def().library.function  # type: ignore[no-any-return]
