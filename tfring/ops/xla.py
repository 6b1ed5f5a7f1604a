"""jit_compile=True: which collectives XLA can compile, and their order.

`_tfring_xla.so` tells XLA how to compile the collectives that training uses. It is a separate
library because it needs more of TensorFlow than the ops do. If it cannot be loaded, everything but
jit_compile=True works. tfring.ops.library loads it.

A compiled program runs its collectives one after another, so all ranks must run them in one order:
see tfring.ops.channels. On a GPU a collective can start without waiting for its end: see
`builders.start_allreduce`.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import pathlib
import threading
from collections.abc import Callable
from typing import Any

import tensorflow as tf
from tensorflow.python.ops import control_flow_util
from tensorflow.python.ops import control_flow_v2_func_graphs as control_flow

LIBRARY = "_tfring_xla.so"
# The collectives that the library can compile.
COMPILED = ("allreduce", "allreduce_start", "allreduce_done", "allgather", "broadcast")

# The graphs of branches and loops, which belong to the surrounding function.
CONTROL_FLOW_GRAPHS = (
    control_flow.CondBranchFuncGraph,
    control_flow.WhileBodyFuncGraph,
    control_flow.WhileCondFuncGraph,
)

_building = threading.local()  # .gradient: of a compiled collective


class _State:
    """Why the library is not in use; "" if it is. `load` writes it, under the caller's lock."""

    trouble = "it has not been loaded"


_UNCOMPILED = (
    'jit_compile=False, in tf.function or in compile() (where "auto", the default, means True if '
    "there is a GPU)"
)


def load(folder: pathlib.Path) -> None:
    """Loads the library from `folder` if possible; otherwise `trouble` returns the reason."""
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
    return f", which needs TensorFlow 2.18 or newer; TensorFlow {version} is installed"


def trouble() -> str:
    """Returns why collectives cannot be compiled in this process, or ""; needs library.load."""
    if _State.trouble:
        return _State.trouble
    if tf.config.list_physical_devices("GPU") and not tf.test.is_built_with_cuda():
        return "this version compiles collectives for CPUs and NVIDIA GPUs only"
    return ""


def compiling() -> bool:
    """Returns whether a function with jit_compile=True, or its gradient, is being traced."""
    if tf.executing_eagerly():
        return False
    graph = tf.compat.v1.get_default_graph()
    return getattr(_building, "gradient", False) or in_compiled(graph)


def in_compiled(graph: Any) -> bool:
    """Returns whether a graph is part of a function with jit_compile=True that is being traced."""
    return bool(control_flow_util.GraphOrParentsInXlaContext(graph))


def refuse(name: str, kind: str) -> None:
    """Raises NotImplementedError for a collective that is traced for XLA but cannot be compiled.

    TensorFlow would refuse it only when the function runs, and would not say what to do.

    Args:
        name: of the tensor.
        kind: of the collective; only those in COMPILED can be compiled.
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
            f"the {kind} of {name} is inside a function with jit_compile=True and {reason}; "
            f"{dense}use {_UNCOMPILED}"
        )


def refuse_traced_before(name: str) -> None:
    """Raises NotImplementedError for a call that a function with jit_compile=True makes.

    The library refuses it as well, but TensorFlow looks first for other ops that XLA does not know,
    such as those that compare the ranks in their first steps.

    Args:
        name: of a tensor in the called function, which was traced for TensorFlow.
    """
    raise NotImplementedError(
        f"A function with jit_compile=True calls one that was traced without it, which reduces "
        f"tensor '{name}'.\nGive each caller a tf.function of its own, or use {_UNCOMPILED}"
    )


def outside_clusters() -> Any:
    """A context for building a collective without jit_compile=True: XLA must not compile it.

    With --tf_xla_auto_jit TensorFlow compiles clusters of ops of any graph. It would include these
    collectives, which are not in the chain.
    """
    if tf.executing_eagerly():
        return contextlib.nullcontext()
    return tf.xla.experimental.jit_scope(compile_ops=False)


def compiled_gradient(
    gradient: Callable[..., Any], is_compiled: Callable[[Any], bool]
) -> Callable[..., Any]:
    """Wraps a gradient so that its collectives are compiled if the differentiated one is.

    A tape may differentiate a function with jit_compile=True from outside. TensorFlow then builds
    the gradient in a graph that does not show that it will be compiled.

    Args:
        gradient: builds the gradient of an op.
        is_compiled: returns whether an op is compiled.
    """

    @functools.wraps(gradient)
    def wrapped(op: Any, *grads: Any) -> Any:
        before = getattr(_building, "gradient", False)
        _building.gradient = before or is_compiled(op)
        try:
            return gradient(op, *grads)
        finally:
            _building.gradient = before

    return wrapped


def _no_eager() -> str:
    with tf.init_scope():
        return "" if tf.executing_eagerly() else "it is in a TF1 graph"
