"""jit_compile=True: what can be compiled, and in which order it runs.

`_tfring_xla.so` tells XLA how to compile the collectives that training uses. It is a library of its
own because it needs more of TensorFlow than the ops do; where it cannot be loaded, everything works
but jit_compile=True. tfring.ops.library loads it.

A compiled program runs its collectives one after another, so all ranks must run them in one order:
see tfring.ops.channels.

On a GPU a collective need not be waited for where it begins: see `builders.start_allreduce`.
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
# What the library can compile.
COMPILED = ("allreduce", "allreduce_start", "allreduce_done", "allgather", "broadcast")

# The graphs of branches and loops, which belong to the function around them.
CONTROL_FLOW_GRAPHS = (
    control_flow.CondBranchFuncGraph,
    control_flow.WhileBodyFuncGraph,
    control_flow.WhileCondFuncGraph,
)

_building = threading.local()  # .gradient: of a compiled collective


class _State:
    """Why the library is not in use; "" once it is. Written by `load`, under the caller's lock."""

    trouble = "it has not been loaded"


_UNCOMPILED = (
    "jit_compile=False, in tf.function or in compile() "
    '(where "auto", the default, means True as soon as there is a GPU)'
)


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
    graph = tf.compat.v1.get_default_graph()
    return getattr(_building, "gradient", False) or in_compiled(graph)


def in_compiled(graph: Any) -> bool:
    """Tells whether a graph is part of a function with jit_compile=True that is being traced."""
    return bool(control_flow_util.GraphOrParentsInXlaContext(graph))


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
            f"{reason}; {dense}use {_UNCOMPILED}"
        )


def refuse_traced_before(name: str) -> None:
    """Raises NotImplementedError for a call that a function with jit_compile=True makes.

    The library refuses it as well, but only after TensorFlow has looked for other ops that XLA does
    not know, such as those that compare the ranks in their first steps.

    Args:
        name: of a tensor in the function that is called, which was traced for TensorFlow.
    """
    raise NotImplementedError(
        f"A function with jit_compile=True calls one that was traced without it, which reduces "
        f"tensor '{name}'.\nGive each caller a tf.function of its own, or use {_UNCOMPILED}"
    )


def outside_clusters() -> Any:
    """A context for building a collective without jit_compile=True: XLA must not compile it.

    With --tf_xla_auto_jit TensorFlow compiles clusters of ops of any graph. It would take these
    collectives, which are not in the chain.
    """
    if tf.executing_eagerly():
        return contextlib.nullcontext()
    return tf.xla.experimental.jit_scope(compile_ops=False)


def compiled_gradient(
    gradient: Callable[..., Any], is_compiled: Callable[[Any], bool]
) -> Callable[..., Any]:
    """Wraps a gradient so that its collectives are compiled if the differentiated one is.

    When a tape outside of a function with jit_compile=True differentiates it, TensorFlow builds the
    gradient in a graph that does not tell that it will be compiled.

    Args:
        gradient: Builds the gradient of an op.
        is_compiled: Whether an op is compiled.
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
