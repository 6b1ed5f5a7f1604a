"""Loads the compiled binding: ``from tfring._native import core``.

The three libraries lie together in one folder, tfring/_lib, or in the folder that TFRING_LIB_DIR
names (for developers who build outside the checkout).
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import pathlib
import sys
from types import ModuleType

_MODULE_NAME = "tfring._lib._core"


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


core: ModuleType = _load()
