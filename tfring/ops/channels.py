"""Channels keep collectives of one name in order, and others independent.

TensorFlow's automatic control dependencies order the stateful ops of a function by the resources
that they use. So all collectives of one name in one graph have one resource as their last input,
the channel. They run in program order, and those of different names do not wait for each other.

A channel is an op of the graph that uses it. It is not captured from outside, for two reasons. A
loop or condition whose gradient captures something new cannot be built. A function that captures
something that no object holds cannot be saved.

A call of a function, a loop or a condition uses the channels of all collectives inside. TensorFlow
asks for them (`_channels_inside`) when it has traced the surrounding function.

A function that TensorFlow derives for a gradient has no automatic control dependencies. There
`ordered` does the same. It learns of each collective and each differentiated call, because the
gradient of a call may be a function that was derived earlier, for another place.

Under XLA the chain takes the place of channels. One chain for all collectives of a compiled
function keeps them in the order in which Python traced them (ops/xla/xla_kernels.cc). Each nested
function has its own chain, and TensorFlow makes one program of them all. Loops and conditions
capture the chain of the surrounding function. A function that is not compiled has a chain that
keeps its calls of compiled functions in order, because each occupies a thread while it waits.
"""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import tensorflow as tf
from tensorflow.python.eager import context as eager_context
from tensorflow.python.framework import auto_control_deps, func_graph, ops
from tensorflow.python.ops import control_flow_util
from tensorflow.python.ops.parallel_for import pfor

from tfring.ops import library, step_guard, xla

_CHANNELS = "_tfring_channels"  # of a graph: its channels by (name, process set id)
# All eager calls share one channel: they run one after another, and have many names.
_EAGER = ("tfring.eager", 0)

_Key = tuple[str, int]  # the name of a collective and the id of its process set
# The collectives that something runs, in order, with the ids of their process sets.
_Keys = dict[_Key, frozenset[int]]
# Of the chain.
_CHAIN: _Key = ("", -1)

_lock = threading.RLock()  # guards _eager_channels, _used and the channels of every graph
_eager_channels: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
# What _keys_in found in a function.
_used: weakref.WeakKeyDictionary[Any, _Keys] = weakref.WeakKeyDictionary()


def channel(name: str, process_set_id: int = 0) -> Any:
    """Returns the channel of a collective name in a process set, for the present graph.

    Args:
        name: of the collective.
        process_set_id: of the process set.

    Returns:
        A scalar resource handle, the same for all calls with these arguments in one graph.
    """
    if tf.executing_eagerly():
        return channel_of_eager_calls()
    return _in_graph(tf.compat.v1.get_default_graph(), (name, process_set_id))


def channel_of_eager_calls() -> Any:
    """Returns the one channel of all eager calls."""
    context = eager_context.context()
    with _lock:
        handle = _eager_channels.get(context)
        if handle is None:
            with tf.device("CPU:0"):  # whatever device the first call uses
                handle = _eager_channels[context] = _new(_EAGER)
    return handle


def chain() -> Any:
    """Returns the stand-in for a channel in a graph that XLA compiles."""
    return _chain_of(tf.compat.v1.get_default_graph())


def _chain_of(graph: Any) -> Any:
    outer = getattr(graph, "outer_graph", None)
    if isinstance(graph, xla.CONTROL_FLOW_GRAPHS) and isinstance(outer, func_graph.FuncGraph):
        return graph.capture(_chain_of(outer))
    return _in_graph(graph, _CHAIN)


def in_chain(collective: Any) -> bool:
    """Returns whether a collective, of a graph or run eagerly, is one that XLA compiles."""
    channel = collective.inputs[-1]
    return not isinstance(channel, ops.EagerTensor) and channel.op.type != CHANNEL


def _in_graph(graph: Any, key: _Key) -> Any:
    with _lock:
        known: dict[_Key, Any] | None = getattr(graph, _CHANNELS, None)
        if known is None:
            known = {}
            setattr(graph, _CHANNELS, known)
        if key not in known:
            # At the top level of the graph, whatever surrounds the collective.
            with graph.as_default(), tf.control_dependencies(None):
                known[key] = _new(key)
        return known[key]


def _new(key: _Key) -> Any:
    if key == _CHAIN:
        return library.load().tfring_chain()
    name, process_set_id = key
    return library.load().tfring_channel(tensor_name=name, process_set_id=process_set_id)


def ordered() -> None:
    """Orders the collectives of functions without automatic control dependencies.

    Call it for each collective that is built, and for each differentiated call of a function with
    collectives. It acts on the current function and those around it.
    """
    _order(tf.compat.v1.get_default_graph())


def _order(graph: Any) -> None:
    while isinstance(graph, func_graph.FuncGraph):
        late = isinstance(graph.control_outputs, _LateControlOutputs)
        if graph.experimental_acd_manager is None and not late:
            graph.control_outputs = _LateControlOutputs(graph)
        graph = graph.outer_graph


class _LateControlOutputs(list[Any]):
    """The control outputs of a function: ops that end before a call of it has ended.

    TensorFlow reads them when the graph is complete and becomes a function. Only then do all ops
    that run collectives exist: loops and calls are added after what they run. This class also puts
    them in order.
    """

    def __init__(self, graph: Any) -> None:
        super().__init__(graph.control_outputs)
        self._graph = weakref.ref(graph)

    def __iter__(self) -> Iterator[Any]:
        graph = self._graph()
        last: dict[_Key, Any] = {}
        for op in [] if graph is None else graph.get_operations():
            keys = _keys_of(op)
            _order_gradient(op, keys)
            if _CHAIN in keys:
                _check_derived(graph)
            before = {last[key] for key in keys if key in last}
            op._add_control_inputs(list(before - set(op.control_inputs)))
            last.update(dict.fromkeys(keys, op))
        ends = {op.name: op for op in (*super().__iter__(), *last.values())}
        return iter(ends.values())


def _check_derived(graph: Any) -> None:
    """Raises NotImplementedError for a derived function that XLA cannot compile alone."""
    if not isinstance(graph.outer_graph, func_graph.FuncGraph) and _has_lists(graph.inputs):
        _refuse_lists()


def _check_call(op: Any) -> None:
    """Raises NotImplementedError for a call that returns lists from an XLA-compiled function."""
    compiled = dict(op.node_def.attr).get("_XlaMustCompile")
    if compiled is None or not compiled.b or not _has_lists(op.outputs):
        return
    if not control_flow_util.GraphOrParentsInXlaContext(op.graph):
        _refuse_lists()


def _has_lists(tensors: Any) -> bool:
    """Returns whether there are lists of tensors, which the gradients of loops use.

    XLA refuses them at the border of a compiled function, but only after it has run it. TensorFlow
    2.21 then frees assigned variables that are still in use.
    """
    return any(tensor.dtype == tf.variant for tensor in tensors)


def _refuse_lists() -> None:
    raise NotImplementedError(
        "XLA cannot compile this gradient: it was taken outside of the function with "
        "jit_compile=True and goes through a loop. Take the gradient inside that function, or "
        "use jit_compile=False"
    )


def _order_gradient(op: Any, keys: _Keys) -> None:
    """Makes the gradient of a call with collectives begin with `ordered`."""
    gradient = getattr(op, "_gradient_function", None)
    done = isinstance(gradient, functools.partial) and gradient.func is _ordered_gradient
    if keys and gradient is not None and not done:
        op._gradient_function = functools.partial(_ordered_gradient, gradient)


def _ordered_gradient(gradient: Any, op: Any, *grads: Any) -> Any:
    ordered()
    return gradient(op, *grads)


@pfor.RegisterPFor("TfringChannel")  # type: ignore[untyped-decorator]
def _vectorized_channel(pfor_input: Any) -> Any:
    """Tells tf.vectorized_map and jacobians that all iterations share the channel."""
    op = pfor_input.op
    handle = channel(tf.compat.as_str(op.get_attr("tensor_name")), op.get_attr("process_set_id"))
    return pfor.wrap(handle, False)


@pfor.RegisterPFor("TfringChain")  # type: ignore[untyped-decorator]
def _vectorized_chain(pfor_input: Any) -> Any:
    """Does the same for the chain."""
    del pfor_input
    return pfor.wrap(chain(), False)


@auto_control_deps.register_acd_resource_resolver  # type: ignore[untyped-decorator]
def _channels_inside(op: Any, reads: Any, writes: Any) -> bool:
    """Adds the channels of the collectives inside a call, loop or condition to its writes."""
    del reads
    added = False
    if op.type not in _FUNCTIONS_OF:
        return False
    keys = _keys_of(op)
    _order_gradient(op, keys)
    for process_set_id in frozenset().union(*keys.values()):
        step_guard.ensure_around(library.load(), op, process_set_id)
    compiled = xla.in_compiled(op.graph)
    for key in keys:
        if key == _CHAIN:
            _check_call(op)
        elif compiled:
            xla.refuse_traced_before(key[0])
        chained = key == _CHAIN and compiled
        handle = _chain_of(op.graph) if chained else _in_graph(op.graph, key)
        if handle not in writes:
            writes.add(handle)
            added = True
    return added


CHANNEL = "TfringChannel"
COLLECTIVES = frozenset(
    f"Tfring{kind}"
    for kind in (
        "Allreduce",
        "AllreduceStart",
        "AllreduceDone",
        "Allgather",
        "Broadcast",
        "Reducescatter",
        "Reduce",
        "Alltoall",
        "Gather",
        "Scatter",
        "Send",
        "Recv",
        "Barrier",
        "Join",
    )
)

# The ops that run functions, and the attributes that name these functions.
_FUNCTIONS_OF = {
    "PartitionedCall": ("f",),
    "StatefulPartitionedCall": ("f",),
    "If": ("then_branch", "else_branch"),
    "Case": ("branches",),
    "While": ("cond", "body"),
}


def _keys_of(op: Any) -> _Keys:
    """Returns the keys of the collectives that an op of a graph runs, in order."""
    if op.type in COLLECTIVES:
        return _keys_of_node(op.node_def, not in_chain(op))
    found: _Keys = {}
    for attribute in _FUNCTIONS_OF.get(op.type, ()):
        named = op.get_attr(attribute)
        for function in named if isinstance(named, list) else [named]:
            _add(_keys_in(op.graph, function.name), found)
    return found


def _keys_in(graph: Any, name: str) -> _Keys:
    """Returns the keys of all collectives in a function and in the functions that it runs.

    Reads the definition: the graph that it was made from may be gone.
    """
    function = graph._get_function(name)
    if not hasattr(function, "cached_definition"):
        return {}
    with _lock:
        known = _used.get(function)
    if known is not None:
        return known
    found: _Keys = {}
    nodes = function.cached_definition.node_def
    of_channels = {f"{node.name}:channel:0" for node in nodes if node.op == CHANNEL}
    for node in nodes:
        if node.op in COLLECTIVES:
            channel = [name for name in node.input if not name.startswith("^")][-1]
            _add(_keys_of_node(node, channel in of_channels), found)
        for attribute in _FUNCTIONS_OF.get(node.op, ()):
            value = node.attr[attribute]
            for named in [value.func] if value.HasField("func") else value.list.func:
                _add(_keys_in(graph, named.name), found)
    with _lock:
        _used[function] = found
    return found


def _keys_of_node(node: Any, has_channel: bool) -> _Keys:
    process_set_id = int(node.attr["process_set_id"].i)
    key = (tf.compat.as_str(node.attr["tensor_name"].s), process_set_id) if has_channel else _CHAIN
    return {key: frozenset([process_set_id])}


def _add(more: _Keys, found: _Keys) -> None:
    for key, process_set_ids in more.items():
        found[key] = found.get(key, frozenset()) | process_set_ids
