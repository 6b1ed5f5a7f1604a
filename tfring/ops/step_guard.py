"""The guard of a step: tells the other ranks when an execution of a graph fails on this one.

An op that fails ends its step on its own rank only. The other ranks would wait for the collectives
that this rank does not call any more, or take those of its next step for them. A collective that
waits notices the failure itself; the guard, an op that runs when the graph starts, notices it at
any time: before the first collective, between two, and after the last (ops/kernels/step_runs.h).

Eager mode has no steps. In a TF1 graph the collectives that wait notice a failure, nobody else.
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
    """Puts a guard into the graph that is being built and those around it, if they have none yet.

    Functions around it have to fail as a whole, too. Left out are bodies of loops and conditions,
    where it would run each time or not at all, and what XLA compiles.

    Args:
        ops_library: The module of generated op wrappers.
        process_set_id: The process set of the collective that is about to be built.
    """
    if tf.executing_eagerly():
        return
    graph = tf.compat.v1.get_default_graph()
    if control_flow_util.InXlaContext(graph):  # traced by get_concrete_function
        graph = getattr(graph, "outer_graph", None)
    _guard_all(ops_library, graph, process_set_id)


def ensure_around(ops_library: Any, call: Any, process_set_id: int) -> None:
    """The same for the graph of a call, and those around it.

    What is called may be a function that was traced before, where the graph of the call was not
    around it. To be called while TensorFlow puts the ops of that graph in order: it takes no notice
    of ops that are added then, so the guard becomes a control input of the call. It is one in any
    case: what is called may fail at once, and the step around it has to have begun by then.

    Args:
        ops_library: The module of generated op wrappers.
        call: The op that calls a function with collectives, or runs it in a loop or condition.
        process_set_id: The process set of such a collective.
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
        # Else it would wait for every stateful op that was traced before it, as a tf.py_function.
        order.run_independently(guard)
    return guard


def _is_compiled(graph: Any) -> bool:
    """Whether XLA compiles it. While it is traced, the graph around it is in the context of XLA."""
    return bool(control_flow_util.GraphOrParentsInXlaContext(graph.outer_graph))
