"""Lets `import horovod` mean tfring, so that a script runs without a change.

    python -m tfring.compat train.py
    tfring run --horovod -np 2 python train.py

Both put the folder `import_path`, which holds nothing but horovod/__init__.py, in front of the
import path, and so of an installed Horovod. That package installs a finder for the modules below
it, which have no files of their own: each has the names of a module of tfring, or raises an
ImportError that says why not.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Iterator, Mapping
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
_PACKAGES = {"common", "keras", "runner", "tensorflow", "tensorflow.keras"}


def search_path(environ: Mapping[str, str]) -> str:
    """Returns a PYTHONPATH with the shim's folder in front of what `environ` has."""
    rest = [part for part in environ.get("PYTHONPATH", "").split(os.pathsep) if part]
    return os.pathsep.join([str(SHIM_FOLDER), *(part for part in rest if part != str(SHIM_FOLDER))])


def install() -> list[str]:
    """Makes the modules below `horovod` importable; returns the `__path__` of that package."""
    path = str(SHIM_FOLDER / "horovod")
    if _Finder not in sys.path_hooks:
        sys.path_hooks.insert(0, _Finder)
        sys.path_importer_cache.pop(path, None)  # a finder of files, if one has looked there
    return [path]


class _Finder(importlib.abc.PathEntryFinder):
    """Finds the modules of the tables above in the `__path__` of `horovod` and its packages.

    Those paths are below the shim's folder; only the one of `horovod` itself exists.
    """

    def __init__(self, path: str) -> None:
        if SHIM_FOLDER not in Path(path).parents:
            raise ImportError(f"{path} is not a package of the shim", path=path)
        self._path = Path(path)

    def find_spec(
        self, fullname: str, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        del target
        name = fullname.partition(".")[2]
        if name not in _KNOWN:
            return None
        below = [str(SHIM_FOLDER.joinpath(*fullname.split(".")))] if name in _PACKAGES else None
        return importlib.util.spec_from_file_location(
            fullname, __file__, loader=_Loader(), submodule_search_locations=below
        )

    def iter_modules(self, prefix: str = "") -> Iterator[tuple[str, bool]]:
        """Yields what pkgutil lists: each module here with the prefix, and if it is a package."""
        package = ".".join(self._path.relative_to(SHIM_FOLDER).parts[1:])
        for name in sorted(_KNOWN):
            parent, _, last = name.rpartition(".")
            if parent == package:
                yield prefix + last, name in _PACKAGES


class _Loader(importlib.abc.InspectLoader):
    """Fills the modules of the tables above."""

    def get_source(self, fullname: str) -> str | None:
        """Returns None: there is no code, so `python -m` refuses to run the module."""
        del fullname
        return None

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
        module.__doc__ = f"{module.__name__}: {target or 'a package'} under Horovod's name."
        if target is not None:
            names = vars(module)
            names["__getattr__"], names["__dir__"], names["__all__"] = reexport(target)
