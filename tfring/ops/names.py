"""Names of collectives: they match the n-th call on one rank to the n-th call on another.

The runtime matches the ranks' requests by name. So a name must be equal on every rank and in every
trace, whatever else a rank did before. It is, in this order:

- the user's name, below the current name scope unless `ignore_name_scope` is set. A scope of Keras
  layers contains process-wide counters: a rank that built one more model has other scopes;
- in a tf.function: the function's name, the kind, and a counter of this trace of this function. A
  retrace starts at zero again, on one rank or on all. The bodies of loops and the branches of
  conditions count with their function, because process-wide counters make their own names unique;
- in a TF1 graph: the kind and a counter of the graph;
- in eager mode: the kind and a counter of the process. The call blocks until it is done, so the
  ranks are at the same count. A rank that is not is reported as a stall, or as an error because its
  line in the program differs. The calls of a process set come from one thread: the order of two
  threads differs between ranks. The counter starts again after EAGER_NAMES calls, because
  TensorFlow keeps a kernel for each name that it has seen. All counters start again when all ranks
  have joined, because a rank that has joined makes fewer calls. They also start again at init,
  because a rank may have been in another job, and after a failed step, because the ranks may have
  made different numbers of calls before it.

The gradient of a call has the call's name with "grad." before it, and a number after it if one
graph has it several times.

Each process set has its own counters, because only its members count.

Two collectives of one name in one tf.function run one after the other (see tfring.ops.channels).
"""

from __future__ import annotations

import re
import threading
import weakref
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import func_graph

from tfring.ops import library
from tfring.ops.xla import CONTROL_FLOW_GRAPHS
from tfring.runtime import _native
from tfring.runtime.process_sets import generation

EAGER_NAMES = 16

# TensorFlow's name for a function that it derives for a gradient; the number is process-wide.
_DERIVED = re.compile(r"__(backward|forward)_(.*)_\d+")
_COUNTERS = "_tfring_counters"
_DEFAULT = re.compile(r"eager\.(set\d+\.)?[a-z_]+\.\d+(\.|$)")

# Guards _eager_counters and the counters of every graph.
_lock = threading.Lock()


class _EagerCounters:
    """The counters of one process set in eager mode.

    Valid while `epoch` stays the same: until its ranks join, one of its steps fails, or init runs.
    """

    def __init__(self, epoch: tuple[int, ...]) -> None:
        self.epoch = epoch
        self.counts: dict[str, int] = {}
        self.thread: weakref.ref[threading.Thread] | None = None  # the last thread with such a call


_eager_counters: dict[int, _EagerCounters] = {}  # by process set id


def collective_name(
    kind: str,
    name: str | None,
    ignore_name_scope: bool = False,
    process_set_id: int = 0,
    suffix: str = "",
) -> str:
    """Returns the name of a collective, equal on all its ranks.

    Args:
        kind: the kind of call, such as "allreduce"; part of default names.
        name: the user's name, or None or "" for a default name, which uses up a count.
        ignore_name_scope: leave out the current name scope.
        process_set_id: the ranks that take part.
        suffix: the end of the name; default names with different suffixes have separate counts.

    Raises:
        tf.errors.FailedPreconditionError: a default name in eager mode, after another thread that
            is still alive used default names of the process set.
    """
    if name:
        scope = "" if ignore_name_scope else tf.get_current_name_scope()
        return f"{scope}/{name}{suffix}" if scope else f"{name}{suffix}"
    group = f"set{process_set_id}." if process_set_id else ""
    key = f"{group}{kind}{suffix}"
    if tf.executing_eagerly():
        count = _next(count_in_one_thread(kind, process_set_id), key) % EAGER_NAMES
        return f"eager.{group}{kind}.{count}{suffix}"
    graph = _owner(tf.compat.v1.get_default_graph())
    return f"{_label(graph)}.{group}{kind}.{_next(_counters(graph), key)}{suffix}"


def gradient_name(call: str) -> str:
    """Returns the name of the collective that is the gradient of a call.

    One graph may take the gradient of one call several times, and nothing need order these
    collectives. From the second on they have a number.

    Args:
        call: the name of the call.
    """
    name = f"grad.{call}"
    if tf.executing_eagerly():
        return name
    count = _next(_counters(_owner(tf.compat.v1.get_default_graph())), name)
    return f"{name}#{count}" if count else name


def _label(graph: Any) -> str:
    """Returns the start of names in a graph, equal on all ranks."""
    if not isinstance(graph, func_graph.FuncGraph):
        return "graph"
    derived = _DERIVED.fullmatch(graph.name)
    return f"{derived[1]}.{derived[2]}" if derived else str(graph.name)


def _counters(graph: Any) -> dict[str, int]:
    counters: dict[str, int] | None = getattr(graph, _COUNTERS, None)
    if counters is None:
        counters = {}
        setattr(graph, _COUNTERS, counters)
    return counters


def is_default(name: str) -> bool:
    """Returns whether this is a default name of eager mode, or made from one."""
    return _DEFAULT.match(name) is not None


def count_in_one_thread(kind: str, set_id: int) -> dict[str, int]:
    """Returns a process set's eager counters; calls without a name must come from one thread.

    Only within a thread is the order of calls that of the program. A thread may take over after
    another has ended. Threads that Python did not start are not checked: TensorFlow runs
    tf.py_function on its own thread while another thread waits for it.

    Args:
        kind: the kind of call, such as "allreduce".
        set_id: the process set.

    Raises:
        tf.errors.FailedPreconditionError: the calls come from two threads; names both.
    """
    counters = _counters_of(set_id)
    this = threading.current_thread()
    if isinstance(this, threading._DummyThread):
        return counters.counts
    with _lock:
        other = counters.thread() if counters.thread else None
        if other is None or not other.is_alive():
            counters.thread = weakref.ref(this)
            return counters.counts
    if other is not this:
        raise tf.errors.FailedPreconditionError(
            None,
            None,
            f"{kind} without a name in thread '{this.name}': thread '{other.name}' makes such "
            "calls, too. tfring matches them between ranks by their order, and the order of two "
            "threads may differ. Give each call a name (name='...') that is equal on every rank, "
            "or make all calls in one thread (or those of each thread in its own process set)",
        )
    return counters.counts


def _counters_of(set_id: int) -> _EagerCounters:
    """Returns the process set's eager counters; new ones when the ranks start anew together."""
    epoch = (generation(), library.joins(0), library.joins(set_id), _native.core.attempt(set_id))
    with _lock:
        counters = _eager_counters.get(set_id)
        if counters is None or counters.epoch != epoch:
            if any(old.epoch[0] != epoch[0] for old in _eager_counters.values()):
                _eager_counters.clear()  # their process sets are gone; ids are not used again
            counters = _eager_counters[set_id] = _EagerCounters(epoch)
        return counters


def _next(counters: dict[str, int], kind: str) -> int:
    with _lock:
        count = counters.get(kind, 0)
        counters[kind] = count + 1
    return count


def _owner(graph: Any) -> Any:
    """Returns the function that the body of a loop or condition belongs to."""
    while isinstance(graph, CONTROL_FLOW_GRAPHS) and graph.outer_graph is not None:
        graph = graph.outer_graph
    return graph
