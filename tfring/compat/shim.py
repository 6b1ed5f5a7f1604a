"""Lets `import horovod` mean tfring, so that a script runs without a change.

    python -m tfring.compat train.py
    tfring run --horovod -np 2 python train.py

Both put the folder `import_path`, which holds nothing but horovod/__init__.py, in front of the
import path, and so of an installed Horovod. That package installs a finder for the modules below
it, which have the names of modules of tfring or raise an ImportError that says why not.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

SHIM_FOLDER = Path(__file__).resolve().parent / "import_path"

# The release of Horovod whose names the shim has; scripts compare it.
HOROVOD_VERSION = "0.28.1"

# By the module below `horovod`: the module of tfring whose names it has; None: just a package.
_MODULES: dict[str, str | None] = {
    "common": None,
    "common.process_sets": "tfring.process_sets",
    "keras": "tfring.keras.horovod_keras",
    "keras.callbacks": "tfring.keras.callbacks",
    "runner": "tfring.launcher.function",
    "tensorflow": "tfring",
    "tensorflow.compression": "tfring.collectives.compression",
    "tensorflow.functions": "tfring",
    "tensorflow.gradient_aggregation": "tfring",
    "tensorflow.keras": "tfring.keras",
    "tensorflow.keras.callbacks": "tfring.keras.callbacks",
    "tensorflow.mpi_ops": "tfring",
    "tensorflow.sync_batch_norm": "tfring",
}

_NOT_YET = "{what} ({module}) is not there yet in this version of tfring"
_OTHER = "{module} was imported, and tfring stands in for Horovod's TensorFlow and Keras parts only"

# Modules that cannot be imported, and why.
_ERRORS = {
    **{
        module: _NOT_YET.format(what=what, module=f"horovod.{module}")
        for module, what in {
            "keras.elastic": "elastic training",
            "tensorflow.data": "the data service",
            "tensorflow.elastic": "elastic training",
            "tensorflow.keras.elastic": "elastic training",
        }.items()
    },
    **{
        module: _OTHER.format(module=f"horovod.{module}")
        for module in ("mxnet", "ray", "spark", "torch")
    },
}


def search_path(environ: Mapping[str, str]) -> str:
    """Returns a PYTHONPATH with the shim's folder in front of what `environ` has."""
    rest = [part for part in environ.get("PYTHONPATH", "").split(os.pathsep) if part]
    return os.pathsep.join([str(SHIM_FOLDER), *(part for part in rest if part != str(SHIM_FOLDER))])


def install() -> None:
    """Makes the modules below `horovod` importable, before those of an installed Horovod."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


def reexport(
    target: str, only: list[str] | None = None
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Returns `__getattr__`, `__dir__` and `__all__` of a module with the names of another.

    Args:
        target: the module of tfring that has the names.
        only: those names; None is all.
    """
    module = importlib.import_module(target)
    public = getattr(module, "__all__", [n for n in dir(module) if not n.startswith("_")])
    names = list(public) if only is None else only

    def get(name: str) -> Any:
        if name.startswith("__") or (only is not None and name not in only):
            raise AttributeError(f"tfring's stand-in for Horovod has no {name!r} here", name=name)
        return getattr(module, name)

    return get, lambda: sorted({*names, *(dir(module) if only is None else ())}), names


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds and fills the modules of `_MODULES`; refuses those of `_ERRORS`."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        del path, target
        top, _, module = fullname.partition(".")
        known = _MODULES.keys() | _ERRORS.keys()
        if top != "horovod" or module not in known:
            return None
        is_package = any(other.startswith(f"{module}.") for other in known)
        return importlib.machinery.ModuleSpec(fullname, self, is_package=is_package)

    def exec_module(self, module: ModuleType) -> None:
        name = module.__name__.partition(".")[2]
        if name in _ERRORS:
            raise ImportError(_ERRORS[name])
        target = _MODULES[name]
        if target is not None:
            module.__doc__ = f"{module.__name__}: {target}."
            names = module.__dict__
            names["__getattr__"], names["__dir__"], names["__all__"] = reexport(target)
