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
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType

from tfring.compat.public_names import reexport

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

# Modules that cannot be imported: those to come, and parts of Horovod for other frameworks.
_NOT_YET = {
    "keras.elastic": "elastic training",
    "tensorflow.data": "the data service",
    "tensorflow.elastic": "elastic training",
    "tensorflow.keras.elastic": "elastic training",
}
_FOREIGN = {"mxnet", "ray", "spark", "torch"}
_KNOWN = {*_MODULES, *_NOT_YET, *_FOREIGN}


def search_path(environ: Mapping[str, str]) -> str:
    """Returns a PYTHONPATH with the shim's folder in front of what `environ` has."""
    rest = [part for part in environ.get("PYTHONPATH", "").split(os.pathsep) if part]
    return os.pathsep.join([str(SHIM_FOLDER), *(part for part in rest if part != str(SHIM_FOLDER))])


def install() -> None:
    """Makes the modules below `horovod` importable, before those of an installed Horovod."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds and fills the modules of the tables above."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        del path, target
        top, _, name = fullname.partition(".")
        if top != "horovod" or name not in _KNOWN:
            return None
        is_package = any(other.startswith(f"{name}.") for other in _KNOWN)
        return importlib.machinery.ModuleSpec(fullname, self, is_package=is_package)

    def exec_module(self, module: ModuleType) -> None:
        name = module.__name__.partition(".")[2]
        if name in _NOT_YET:
            raise ImportError(
                f"{_NOT_YET[name]} ({module.__name__}) is not there yet in this version of tfring"
            )
        if name in _FOREIGN:
            raise ImportError(
                f"{module.__name__} was imported, and tfring stands in for Horovod's TensorFlow "
                "and Keras parts only"
            )
        target = _MODULES[name]
        if target is not None:
            names = vars(module)
            names["__getattr__"], names["__dir__"], names["__all__"] = reexport(target)
