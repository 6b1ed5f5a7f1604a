"""The guard of a step: tells the other ranks when an execution of a graph fails on this one.

A failing op ends the step on its own rank only. The other ranks would wait for collectives that
this rank no longer calls, or match them with those of its next step. A waiting collective notices
the failure itself. The guard is an op that runs when the graph starts. It notices a failure at any
time: before the first collective, between two, and after the last (ops/kernels/step_runs.h).

Eager mode has no steps. In a TF1 graph only the waiting collectives notice a failure.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from tensorflow.python.framework import func_graph
from tensorflow.python.ops import control_flow_util
from tensorflow.python.ops import control_flow_v2_func_graphs as control_flow

_BODIES = (
    control_flow.CondBranchFuncGraph,
    control_flow.WhileBodyFuncGraph,
    control_flow.WhileCondFuncGraph,
)
_GUARDS = "_tfring_guards"


def ensure(ops_library: Any, process_set_id: int) -> None:
    """Puts a guard into the current graph and those around it, if they have none yet.

    Surrounding functions have to fail as a whole, too. Bodies of loops and conditions get none:
    there it would run each time or not at all. Neither does a function that XLA compiles.

    Args:
        ops_library: the module of generated op wrappers.
        process_set_id: the process set of the collective that is about to be built.
    """
    if tf.executing_eagerly():
        return
    graph = tf.compat.v1.get_default_graph()
    if control_flow_util.InXlaContext(graph):  # traced by get_concrete_function
        graph = getattr(graph, "outer_graph", None)
    _guard_all(ops_library, graph, process_set_id)


def ensure_around(ops_library: Any, call: Any, process_set_id: int) -> None:
    """Puts a guard into the graph of a call and those around it.

    The called function may have been traced earlier, outside of the call's graph. Call this while
    TensorFlow puts the ops of that graph in order. TensorFlow ignores ops that are added then, so
    the guard becomes a control input of the call. It always is one: the called function may fail at
    once, and by then the surrounding step must have begun.

    Args:
        ops_library: the module of generated op wrappers.
        call: the op that calls a function with collectives, or runs it in a loop or condition.
        process_set_id: the process set of a collective inside.
    """
    _guard_all(ops_library, call.graph, process_set_id, call)


def _guard_all(ops_library: Any, graph: Any, process_set_id: int, call: Any = None) -> None:
    while isinstance(graph, func_graph.FuncGraph):
        if not (isinstance(graph, _BODIES) or _is_compiled(graph) or graph.finalized):
            _guard(ops_library, graph, process_set_id, call)
        graph, call = graph.outer_graph, None


def _guard(ops_library: Any, graph: Any, process_set_id: int, call: Any) -> None:
    guards: dict[int, Any] | None = getattr(graph, _GUARDS, None)
    if guards is None:
        guards = {}
        setattr(graph, _GUARDS, guards)
    if process_set_id not in guards:
        guards[process_set_id] = _make(ops_library, graph, process_set_id)
    if call is not None:
        call._add_control_input(guards[process_set_id])


def _make(ops_library: Any, graph: Any, process_set_id: int) -> Any:
    with graph.as_default(), tf.control_dependencies(None), tf.device("CPU:0"):
        guard = ops_library.tfring_step_guard(process_set_id=process_set_id)
    order = getattr(graph, "experimental_acd_manager", None)
    if order is not None:
        # Otherwise it would wait for every stateful op traced before it, such as a tf.py_function.
        order.run_independently(guard)
    return guard


def _is_compiled(graph: Any) -> bool:
    """Returns whether XLA compiles it. During its trace, the outer graph is in an XLA context."""
    return bool(control_flow_util.GraphOrParentsInXlaContext(graph.outer_graph))
