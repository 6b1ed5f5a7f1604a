"""The compiled binding, as ``_native.core``; it is loaded at the first use of that name.

And what a call tells the other ranks of where it was made: `call_site`.

So a module can import `_native` at its top, and importing tfring does not load the runtime.

The libraries lie together in one folder, tfring/_lib, or in the folder that TFRING_LIB_DIR names
(for developers who build outside the checkout).
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import pathlib
import sys
import threading
from types import FrameType, ModuleType
from typing import Any

_MODULE_NAME = "tfring._lib._core"

core: Any  # set by __getattr__

# Whose frames are no part of the user's program.
_LIBRARIES = ("tfring", "horovod", "tensorflow", "keras", "tf_keras")
_MAX_CALL_SITE = 200  # characters

_in_library: dict[str, bool] = {}  # by file name; a dict is safe to use from several threads
_lock = threading.Lock()  # held while the binding is loaded


def library_dir() -> pathlib.Path:
    """Returns the folder of the compiled libraries."""
    chosen = os.environ.get("TFRING_LIB_DIR")
    return pathlib.Path(chosen) if chosen else pathlib.Path(__file__).parent / "_lib"


def _load() -> ModuleType:
    loaded = sys.modules.get(_MODULE_NAME)
    if loaded is not None:
        return loaded
    folder = library_dir()
    candidates = [folder / f"_core{s}" for s in importlib.machinery.EXTENSION_SUFFIXES]
    path = next((candidate for candidate in candidates if candidate.exists()), None)
    if path is None:
        raise ImportError(
            f"tfring's compiled binding is not in {folder}: install tfring with pip, or build it "
            f"(see CONTRIBUTING.md); this Python is {sys.version.split()[0]} and looks for "
            f"{candidates[0].name}"
        )
    spec = importlib.util.spec_from_file_location(_MODULE_NAME, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is not a Python extension")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.set_call_site_source(call_site)
    sys.modules[_MODULE_NAME] = module
    return module


def call_site() -> str:
    """Returns where the user's program makes the present call, as "train.py:40".

    That is the innermost frame outside of tfring, TensorFlow and Keras; "" if there is none.
    """
    frame = user_frame()
    return site_text(frame.f_code.co_filename, frame.f_lineno) if frame else ""


def user_frame() -> FrameType | None:
    """Returns the innermost frame of this thread that belongs to the user's program."""
    frame = sys._getframe(1)
    while frame is not None and in_library(frame):
        frame = frame.f_back  # type: ignore[assignment]
    return frame


def in_library(frame: FrameType) -> bool:
    """Tells whether a frame belongs to tfring, TensorFlow or Keras."""
    file = frame.f_code.co_filename
    known = _in_library.get(file)
    if known is None:
        module = str(frame.f_globals.get("__name__", ""))
        known = _in_library[file] = module.partition(".")[0] in _LIBRARIES
    return known


def site_text(file: str, line: int) -> str:
    """Returns a line of a file as ranks compare it: the folder may differ from host to host."""
    folder, name = os.path.split(file)
    if name == "__init__.py":
        name = f"{os.path.basename(folder)}/{name}"
    return f"{name[-_MAX_CALL_SITE:]}:{line}"


def __getattr__(name: str) -> Any:
    if name != "core":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with _lock:
        if "core" not in globals():
            globals()["core"] = _load()
    return globals()["core"]
