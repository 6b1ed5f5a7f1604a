"""jit_compile=True: what can be compiled, and in which order it runs.

`_tfring_xla.so` tells XLA how to compile the collectives that training uses. It is a library of its
own because it needs more of TensorFlow than the ops do; where it cannot be loaded, everything works
but jit_compile=True. tfring.ops.library loads it.

A compiled program runs its collectives one after another, so all ranks must run them in one order.
Collectives in a function with jit_compile=True therefore share one variable, the chain, which each
reads and writes. TensorFlow keeps the ops that use a variable in the order in which Python traced
them, across nested functions, loops and conditions, and XLA sees a data dependence between each and
the next.

On a GPU a collective need not be waited for where it begins: see `builders.start_allreduce`.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import pathlib
import threading
import weakref
from collections.abc import Callable
from typing import Any

import tensorflow as tf
from tensorflow.python.eager import context as eager_context
from tensorflow.python.framework import func_graph, ops
from tensorflow.python.ops import control_flow_util, handle_data_util
from tensorflow.python.ops import control_flow_v2_func_graphs as control_flow

LIBRARY = "_tfring_xla.so"
# What the library can compile.
COMPILED = ("allreduce", "allreduce_start", "allreduce_done", "allgather", "broadcast")

# The graphs of branches and loops, which belong to the function around them.
CONTROL_FLOW_GRAPHS = (
    control_flow.CondBranchFuncGraph,
    control_flow.WhileBodyFuncGraph,
    control_flow.WhileCondFuncGraph,
)

_lock = threading.Lock()  # guards _chains
# By context, the chains by device.
_chains: weakref.WeakKeyDictionary[Any, dict[str, Any]] = weakref.WeakKeyDictionary()
_building = threading.local()  # .chain: of the collective whose gradient is being built


class _State:
    """Why the library is not in use; "" once it is. Written by `load`, under the caller's lock."""

    trouble = "it has not been loaded"


def load(folder: pathlib.Path) -> None:
    """Loads the library from `folder` if that is possible; `trouble` says why it was not."""
    path = folder / LIBRARY
    if not path.exists():
        _State.trouble = f"this tfring was built without {LIBRARY}{_reason(tf.__version__)}"
        return
    try:
        tf.load_library(str(path))
        taken = bool(ctypes.CDLL(str(path)).TfringXlaRegistered())
    except (OSError, RuntimeError, tf.errors.OpError) as error:
        _State.trouble = f"{path} cannot be loaded: {error}"
        return
    _State.trouble = "" if taken else f"this TensorFlow's XLA refuses the calls of {LIBRARY}"


def _reason(version: str) -> str:
    """Returns why there is no library for a version of TensorFlow, if that is the reason."""
    if [int(part) for part in version.split(".")[:2]] >= [2, 18]:
        return ""
    return f", which needs TensorFlow 2.18 or newer, and TensorFlow {version} is installed"


def trouble() -> str:
    """Returns why collectives cannot be compiled in this process, or ""; needs library.load."""
    if _State.trouble:
        return _State.trouble
    if tf.config.list_physical_devices("GPU") and not tf.test.is_built_with_cuda():
        return "this version compiles collectives for CPUs and NVIDIA GPUs only"
    return ""


def compiling() -> bool:
    """Tells whether a function with jit_compile=True is being traced, or its gradient."""
    if tf.executing_eagerly():
        return False
    if getattr(_building, "chain", None) is not None:
        return True
    return bool(control_flow_util.GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph()))


def refuse(name: str, kind: str) -> None:
    """Raises NotImplementedError where a collective is traced for XLA but cannot be compiled.

    TensorFlow would refuse it as well, but only when the function runs, and would not say what to
    do.

    Args:
        name: of the tensor.
        kind: of the collective; one that is not in COMPILED cannot be compiled.
    """
    if not compiling():
        return
    if kind not in COMPILED:
        reason = "cannot be compiled by XLA (allreduce, broadcast and allgather of tensors can)"
        if "IndexedSlices" in kind:
            reason += "; sparse_as_dense=True makes such gradients, of embeddings, dense tensors"
    elif reason := trouble() or _no_eager():
        reason = f"cannot be compiled by XLA: {reason}"
    if reason:
        dense = "make gradients dense with sparse_as_dense=True, or " if "Slices" in kind else ""
        kind = kind.partition("_")[0]
        raise NotImplementedError(
            f"the {kind} of {name} is inside a function with jit_compile=True and "
            f"{reason}; {dense}use jit_compile=False, in tf.function or in compile() "
            '(where "auto", the default, means True as soon as there is a GPU)'
        )


def chain() -> Any:
    """Returns the resource handle that all collectives of a device share under XLA.

    The gradient of a collective uses the handle that this collective has: the gradient of a loop
    can capture what the loop has captured, and nothing from outside of all functions.
    """
    of_call = getattr(_building, "chain", None)
    if of_call is not None:
        return of_call
    with tf.init_scope(), _lock:
        context = eager_context.context()
        device = _compiled_for(context.device_name)
        chains = _chains.setdefault(context, {})
        if device not in chains:
            # Not int32, which TensorFlow keeps in host memory on a GPU.
            with tf.device(device):
                variable = tf.Variable(0, trainable=False, dtype=tf.int64, name="tfring_chain")
            chains[device] = variable
        variable = chains[device]
    return _captured(tf.compat.v1.get_default_graph(), variable.handle)


def _compiled_for(scope: str | None) -> str:
    """Returns the device that a compiled function runs on, and its variables have to be on.

    Args:
        scope: the tf.device around the call of the function; empty for none.
    """
    spec = tf.DeviceSpec.from_string(scope or "")
    default = "GPU" if tf.config.list_logical_devices("GPU") else "CPU"
    return f"{spec.device_type or default}:{spec.device_index or 0}"


def _captured(graph: Any, handle: Any) -> Any:
    """Captures an eager handle in each function from the outermost to the body of a loop or branch.

    The bodies of gradients of loops and conditions can capture from the graph around them only.
    """
    outer = getattr(graph, "outer_graph", None)
    if isinstance(graph, CONTROL_FLOW_GRAPHS) and isinstance(outer, func_graph.FuncGraph):
        handle = _captured(outer, handle)
    return graph.capture(handle)


def outside_clusters() -> Any:
    """A context for building a collective without jit_compile=True: XLA must not compile it.

    With --tf_xla_auto_jit TensorFlow compiles clusters of ops of any graph. It would take these
    collectives, which are not in the chain.
    """
    if tf.executing_eagerly():
        return contextlib.nullcontext()
    return tf.xla.experimental.jit_scope(compile_ops=False)


def chained_gradient(gradient: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps a gradient so that its collectives are chained if the differentiated one is.

    When a tape outside of a function with jit_compile=True differentiates it, TensorFlow builds the
    gradient in a graph that does not tell that it will be compiled.
    """

    @functools.wraps(gradient)
    def wrapped(op: Any, *grads: Any) -> Any:
        before = getattr(_building, "chain", None)
        channel = op.inputs[-1]
        if not tf.executing_eagerly() and _is_chain(channel):
            _building.chain = channel
        try:
            return gradient(op, *grads)
        finally:
            _building.chain = before

    return wrapped


def _is_chain(channel: Any) -> bool:
    """Whether it is the chain; the inputs of a collective that ran eagerly are eager tensors."""
    if isinstance(channel, ops.EagerTensor):
        return False
    data = handle_data_util.get_resource_handle_data(channel)
    return bool(data is not None and data.is_set)


def _no_eager() -> str:
    with tf.init_scope():
        return "" if tf.executing_eagerly() else "it is in a TF1 graph"
