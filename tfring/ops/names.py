"""Names of collectives: what makes the n-th call on one rank the n-th call on another.

The runtime matches the ranks' requests by name, so a name must come out the same on every rank and
in every trace, whatever else a rank did before. It is, in this order:

- the user's, below the current name scope unless `ignore_name_scope` says otherwise. A scope of
  Keras layers contains process-wide counters: a rank that built one model more has other scopes;
- in a tf.function: the function's name, the kind, and a counter that belongs to this trace of this
  function. A retrace starts at zero again, on one rank only as well as on all. The bodies of loops
  and the branches of conditions count with the function that they are in, because their own names
  are made unique by process-wide counters;
- in a TF1 graph: the kind and a counter of the graph;
- in eager mode: the kind and a counter of the process. The call blocks until it is done, so the
  ranks are at the same count, and one that is not is reported as a stall, or as an error because
  its line in the program differs. The calls of a process set come from one thread: the order of two
  threads is not the same on every rank. The counter starts again after EAGER_NAMES calls, because
  TensorFlow keeps a kernel for each name that it has seen. A rank that has joined makes fewer calls
  than the others: all counters start again when all have joined. They do so at init, too: a rank
  may have been in another job before; and when a step has failed, before which the ranks may have
  made different numbers of calls.

The gradient of a call has the call's name with "grad." before it, and a number behind it where one
graph has it several times.

Each process set has counters of its own, because only its members count.

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

# What TensorFlow calls a function that it derives for a gradient; the number is of the process.
_DERIVED = re.compile(r"__(backward|forward)_(.*)_\d+")
_COUNTERS = "_tfring_counters"
_DEFAULT = re.compile(r"eager\.(set\d+\.)?[a-z_]+\.\d+(\.|$)")

# Guards _eager_counters and the counters of every graph.
_lock = threading.Lock()


class _EagerCounters:
    """The counters of one process set in eager mode.

    Valid until its ranks join, a step of theirs fails, or init runs: while `epoch` stays the same.
    """

    def __init__(self, epoch: tuple[int, ...]) -> None:
        self.epoch = epoch
        self.counts: dict[str, int] = {}
        self.thread: weakref.ref[threading.Thread] | None = None  # the last to make such a call


_eager_counters: dict[int, _EagerCounters] = {}  # by process set id


def collective_name(
    kind: str,
    name: str | None,
    ignore_name_scope: bool = False,
    process_set_id: int = 0,
    suffix: str = "",
) -> str:
    """Returns the name of a collective, which is the same on all its ranks.

    Args:
        kind: what the call is, as "allreduce"; part of default names.
        name: the user's name, or None or "" for a default name, which uses up a count.
        ignore_name_scope: leave out the current name scope.
        process_set_id: the ranks that take part.
        suffix: the end of the name; default names with different ends are counted apart.

    Raises:
        tf.errors.FailedPreconditionError: a default name in eager mode, and another thread, which
            is still alive, has used default names of the process set.
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

    The gradient of one call may be taken several times in one graph, and nothing has to order these
    collectives: from the second on they have a number.

    Args:
        call: the name of the call.
    """
    name = f"grad.{call}"
    if tf.executing_eagerly():
        return name
    count = _next(_counters(_owner(tf.compat.v1.get_default_graph())), name)
    return f"{name}#{count}" if count else name


def _label(graph: Any) -> str:
    """What names begin with in a graph, the same on all ranks."""
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
    """Tells whether this is a default name of eager mode, or made from one."""
    return _DEFAULT.match(name) is not None


def count_in_one_thread(kind: str, set_id: int) -> dict[str, int]:
    """Returns a process set's eager counters; calls without a name must come from one thread.

    Only within a thread the order of calls is that of the program. A thread takes over from one
    that has ended. Threads that Python has not started are not looked at: TensorFlow runs
    tf.py_function on one of its own while another thread waits for it.

    Args:
        kind: what the call is, as "allreduce".
        set_id: the process set.

    Raises:
        tf.errors.FailedPreconditionError: names both threads.
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
            "calls, too. They are matched with those of the other ranks by their order, which "
            "threads do not have: give each a name (name='...') that is the same on every rank, "
            "or make them all in one thread (or those of each thread in a process set of its own)",
        )
    return counters.counts


def _counters_of(set_id: int) -> _EagerCounters:
    """The process set's eager counters; new ones when the ranks begin anew together."""
    epoch = (generation(), library.joins(0), library.joins(set_id), _native.core.attempt(set_id))
    with _lock:
        counters = _eager_counters.get(set_id)
        if counters is None or counters.epoch != epoch:
            if any(old.epoch[0] != epoch[0] for old in _eager_counters.values()):
                _eager_counters.clear()  # of ids that no process set gets again
            counters = _eager_counters[set_id] = _EagerCounters(epoch)
        return counters


def _next(counters: dict[str, int], kind: str) -> int:
    with _lock:
        count = counters.get(kind, 0)
        counters[kind] = count + 1
    return count


def _owner(graph: Any) -> Any:
    """Climbs from the body of a loop or condition to the function that it is in."""
    while isinstance(graph, CONTROL_FLOW_GRAPHS) and graph.outer_graph is not None:
        graph = graph.outer_graph
    return graph
