"""The compiled binding, as ``_native.core``; it is loaded at the first use of that name.

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
from types import ModuleType
from typing import Any

_MODULE_NAME = "tfring._lib._core"

core: Any  # set by __getattr__

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
    sys.modules[_MODULE_NAME] = module
    return module


def __getattr__(name: str) -> Any:
    if name != "core":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with _lock:
        if "core" not in globals():
            globals()["core"] = _load()
    return globals()["core"]
