"""The TensorFlow op library: loads it and calls its ops.

`_tfring_ops.so` works only with the minor version of TensorFlow that it was built for. A wheel has
several; the installed TensorFlow selects one. Its version is checked before the library is loaded.
"""

from __future__ import annotations

import ctypes
import functools
import json
import pathlib
import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

import tensorflow as tf

from tfring.ops import xla
from tfring.runtime import _native

OPS_LIBRARY = "_tfring_ops.so"
BUILD_FILE = "build.json"
_BUILD = "build tfring for yours (tfring help installation)"

REDUCIBLE = ("float16", "bfloat16", "float32", "float64", "int8", "uint8", "int32", "int64")
MOVABLE = (
    *REDUCIBLE,
    "bool",
    "int16",
    "uint16",
    "uint32",
    "uint64",
    "complex64",
    "complex128",
)

_Function = TypeVar("_Function", bound=Callable[..., Any])

_lock = threading.RLock()  # guards both below
_registered: Any = None  # the module of generated op wrappers
_library: Any = None  # the same, when what depends on devices is loaded, too


def outside_autograph(function: _Function) -> _Function:
    """Keeps autograph from rewriting a function that builds ops; tracing is faster this way."""
    return cast(_Function, tf.autograph.experimental.do_not_convert(function))


def load() -> Any:
    """Returns the module of generated op wrappers; the first call loads the library.

    Raises:
        ImportError: the library is missing, or was built for another TensorFlow.
    """
    global _library
    if _library is None:
        with _lock:
            if _library is None:
                ops = register()
                functions = _functions()
                if on_gpus():
                    functions.TfringRegisterGpuKernels()
                xla.load(folder())
                _library = ops
    return _library


def register() -> Any:
    """Registers the ops, with kernels for CPUs; returns the module of generated op wrappers.

    Unlike `load`, it does not ask TensorFlow for devices. After that, CUDA_VISIBLE_DEVICES would
    have no effect, and programs set it after init.

    Raises:
        ImportError: the library is missing, or was built for another TensorFlow.
    """
    global _registered
    with _lock:
        if _registered is None:
            _registered = tf.load_op_library(str(folder() / OPS_LIBRARY))
    return _registered


def load_ops() -> None:
    """Registers the ops of the collectives with TensorFlow, with their kernels for GPUs.

    tf.saved_model.load needs this in a process that has used no collective yet and did not load
    TensorFlow before init. (Otherwise `init` registers the ops, with kernels for CPUs.) To run the
    loaded model, also call init.

    Raises:
        ImportError: the library is missing, or was built for another TensorFlow.
    """
    load()


def folder() -> pathlib.Path:
    """Returns the folder of the libraries for the installed TensorFlow.

    Raises:
        ImportError: there is none.
    """
    found, served = _native.ops_folder(tf.__version__), _native.minors_served()
    if served and found == _native.library_dir() and not (found / BUILD_FILE).exists():
        raise ImportError(
            f"TensorFlow {tf.__version__} is installed, but this tfring supports "
            f'{", ".join(served)}. Run: pip install "tensorflow=={served[-1]}.*", or {_BUILD}.'
        )
    check_tensorflow_version(built_for(found), tf.__version__)
    return found


@functools.cache
def on_gpus() -> bool:
    """Returns whether TensorFlow sees a GPU, so that it may place collectives there.

    Does not initialise the GPU: the program can still change its settings.
    """
    return bool(tf.config.list_physical_devices("GPU"))


def built_for(folder: pathlib.Path) -> str:
    """Returns the TensorFlow version that the op library in `folder` was built for.

    Raises:
        ImportError: `folder` holds no complete build.
    """
    try:
        version = json.loads((folder / BUILD_FILE).read_text())["tensorflow"]
    except (OSError, ValueError, KeyError) as error:
        raise ImportError(
            f"tfring's op library in {folder} is incomplete ({error}). Install tfring again, or "
            "build it (see CONTRIBUTING.md)"
        ) from error
    return str(version)


def check_tensorflow_version(built: str, installed: str) -> None:
    """Raises ImportError unless both have the same minor version."""
    wanted = ".".join(built.split(".")[:2])
    if installed.split(".")[:2] == wanted.split("."):
        return
    raise ImportError(
        f"TensorFlow {installed} is installed, but this tfring supports {wanted} (it was built "
        f'for {built}). Run: pip install "tensorflow=={wanted}.*", or {_BUILD}.'
    )


def output_counters() -> dict[str, int]:
    """Returns how many outputs reused an input's buffer ("forwarded") or did not ("allocated").

    Counts all ops of this process since the library was loaded.
    """
    load()
    return {
        "forwarded": int(_functions().TfringForwardedOutputs()),
        "allocated": int(_functions().TfringAllocatedOutputs()),
    }


def joins(process_set_id: int) -> int:
    """Returns how often all ranks of the process set have joined since the library was loaded."""
    if _library is None:
        return 0
    return int(_functions().TfringJoins(process_set_id))


def steps_in_flight() -> int:
    """Returns how many executions of graphs with collectives are now known; for tests."""
    load()
    return int(_functions().TfringStepsInFlight())


def input_microseconds() -> int | None:
    """Returns how long tf.data has kept this process waiting for elements.

    In microseconds, of all iterators together; None if TensorFlow does not count that. Takes about
    0.1 ms.
    """
    load()
    counted = int(_functions().TfringInputMicroseconds())
    return None if counted < 0 else counted


@functools.cache
def _functions() -> Any:
    """The library's plain C functions."""
    functions = ctypes.CDLL(str(folder() / OPS_LIBRARY))
    functions.TfringJoins.argtypes = [ctypes.c_int32]
    counters = ("TfringForwardedOutputs", "TfringAllocatedOutputs", "TfringJoins")
    for name in (*counters, "TfringStepsInFlight", "TfringInputMicroseconds"):
        getattr(functions, name).restype = ctypes.c_int64
    return functions


def check_dtype(tensor: Any, name: str, supported: Sequence[str], kind: str) -> None:
    """Raises TypeError with the tensor, its dtype and the supported dtypes."""
    if tensor.dtype.name not in supported:
        raise TypeError(
            f"tensor {name} has dtype {tensor.dtype.name}, which {kind} does not support; "
            f"supported are {', '.join(supported)}"
        )


def xla_trouble() -> str:
    """Returns why XLA cannot compile collectives in this process, or ""."""
    load()
    return xla.trouble()


def refuse_xla(name: str, kind: str) -> None:
    """Loads the library, and raises NotImplementedError as tfring.ops.xla.refuse does."""
    load()
    xla.refuse(name, kind)
