"""Lets `import horovod` mean tfring, so that a script runs unchanged.

    python -m tfring.horovod train.py
    tfring run --horovod -np 2 python train.py

Both put the folder `import_path`, which holds only horovod/__init__.py, first on the import path,
before an installed Horovod. That package installs a finder for the modules below it. These have no
files: each has the names of a module of tfring, or raises an ImportError with the reason.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from tfring.horovod import tf_keras_idioms
from tfring.horovod.orders import as_in_horovod
from tfring.integration import (
    SHIM_FOLDER,
    no_name,
    reexport,
    register_where_loaded,
    warn_program,
)

# The release of Horovod whose names the shim has; scripts compare it.
HOROVOD_VERSION = "0.28.1"

# By the module below `horovod`: tfring's module with its names; None: only a package.
_MODULES: dict[str, str | None] = {
    "common": None,
    "common.elastic": "tfring.elastic",
    "common.exceptions": "tfring.horovod.exceptions",
    "common.process_sets": "tfring.runtime.process_sets",
    "common.util": "tfring.horovod.util",
    "data": "tfring.data",
    "data.data_loader_base": "tfring.horovod.data_loader",
    "keras": "tfring.keras.horovod_keras",
    "keras.callbacks": "tfring.keras.callbacks",
    "keras.elastic": "tfring.keras.elastic",
    "ray": "tfring.ray",
    "ray.elastic": "tfring.ray",
    "ray.elastic_v2": "tfring.ray",
    "ray.ray_logger": "tfring.ray.ray_logger",
    "ray.runner": "tfring.ray",
    "runner": "tfring.launch.function",
    "spark": "tfring.spark",
    "spark.common": None,
    "spark.common.backend": "tfring.spark.backend",
    "spark.common.store": "tfring.spark.store",
    "spark.keras": "tfring.spark.keras",
    "spark.keras.estimator": "tfring.spark.keras",
    "spark.runner": "tfring.spark",
    "spark.task": "tfring.spark.task",
    "tensorflow": "tfring",
    "tensorflow.compression": "tfring.collectives.compression",
    "tensorflow.elastic": "tfring.elastic",
    "tensorflow.functions": "tfring",
    "tensorflow.gradient_aggregation": "tfring",
    "tensorflow.keras": "tfring.keras",
    "tensorflow.keras.callbacks": "tfring.keras.callbacks",
    "tensorflow.keras.elastic": "tfring.keras.elastic",
    "tensorflow.mpi_ops": "tfring",
    "tensorflow.sync_batch_norm": "tfring",
}

# Names that those modules lack or that differ in Horovod, and the modules that have them.
_LIKELY = dict.fromkeys(("rank", "size"), "tfring.horovod.likely")
_GROUPED = dict.fromkeys(
    ("grouped_allgather", "grouped_reducescatter"), "tfring.collectives.horovod_gradients"
)
_GATHERS = ("allgather", "broadcast", "reducescatter")
_BUILT = dict.fromkeys(
    ("ccl_built", "ddl_built", "gloo_built", "gloo_enabled", "mpi_threads_supported", "rocm_built"),
    "tfring.horovod.build_flags",
)
_HELPERS = dict.fromkeys(
    ("check_num_rank_power_of_2", "gpu_available", "split_list"), "tfring.horovod.helpers"
)
_TENSORFLOW = dict.fromkeys(
    (
        "BroadcastGlobalVariablesHook",
        "LocalGradientAggregationHelper",
        "broadcast_global_variables",
        "handle_average_backwards_compatibility",
    ),
    "tfring.horovod.tf1",
)
_KERAS = {
    **_LIKELY,
    **_GROUPED,
    **_BUILT,
    "broadcast_global_variables": "tfring.horovod.tf1",
    **dict.fromkeys(_GATHERS, "tfring.keras.horovod_gradients"),
}
_OTHERWISE: dict[str | None, dict[str, str]] = {
    "tfring": {
        **_LIKELY,
        **_GROUPED,
        **_BUILT,
        **_HELPERS,
        **_TENSORFLOW,
        "check_extension": "tfring.horovod.util",
        **dict.fromkeys(_GATHERS, "tfring.collectives.horovod_gradients"),
    },
    "tfring.data": dict.fromkeys(
        ("AsyncDataLoaderMixin", "BaseDataLoader"), "tfring.horovod.data_loader"
    ),
    "tfring.keras": _KERAS,
    "tfring.keras.horovod_keras": _KERAS,
    "tfring.keras.callbacks": {"MetricAverageCallback": "tfring.keras.callbacks.horovod_metrics"},
}

# Modules that cannot be imported, and the advice.
_SERVICE = "tfring does not have the data service: shard a tf.data.Dataset by rank()"
_OTHER = "tfring trains models of TensorFlow and Keras: use horovod.spark.keras"
_OWN = "it is internal to Horovod: import public names from horovod.tensorflow"
_INSTEAD = {
    "_keras": _OWN,
    "common.basics": _OWN,
    "ray.adapter": _OWN,
    "ray.strategy": _OWN,
    "ray.utils": _OWN,
    "ray.worker": _OWN,
    "runner.elastic": _OWN,
    "spark.common.estimator": _OWN,
    "spark.common.params": _OWN,
    "spark.common.util": _OWN,
    "spark.lightning": _OTHER,
    "spark.torch": _OTHER,
    "runner.launch": "start jobs with `tfring run`, or call horovod.run",
    "tensorflow.data": _SERVICE,
    "tensorflow.data.compute_service": _SERVICE,
    "tensorflow.gradient_aggregation_eager": "use LocalGradientAggregationHelper of "
    "horovod.tensorflow, which works in eager mode, too",
    "tensorflow.util": _OWN,
}
_FOREIGN = {"mxnet", "torch"}
_KNOWN = {*_MODULES, *_INSTEAD, *_FOREIGN}
_PACKAGES = {n for n in _KNOWN if any(other.startswith(f"{n}.") for other in _KNOWN)}


def install() -> list[str]:
    """Makes the modules below `horovod` importable; returns the `__path__` of that package.

    Also registers the ops with TensorFlow, and lets Keras accept the idioms of Keras 2, each when
    it is loaded. Acts on this process only.
    """
    path = str(SHIM_FOLDER / "horovod")
    if _Finder not in sys.path_hooks:
        sys.path_hooks.insert(0, _Finder)
        sys.path_importer_cache.pop(path, None)  # a finder of files, if one was there
        _when_loaded("tensorflow", register_where_loaded)
        _when_loaded("keras", _change_keras)
        _when_loaded("tf_keras", _change_tf_keras)
    return [path]


def _change_keras() -> None:
    try:
        importlib.import_module("tfring.horovod.keras2_idioms").install()
    except Exception as error:
        warn_program(
            f"tfring's shim does not support Keras {sys.modules['keras'].__version__} ({error}), "
            "so it does not accept Keras 2 idioms. Install a Keras version that `tfring help "
            "installation` names, or write for Keras 3."
        )


def _change_tf_keras() -> None:
    try:
        tf_keras_idioms.install()
    except Exception as error:
        warn_program(
            f"tfring's shim does not support tf_keras {sys.modules['tf_keras'].__version__} "
            f"({error}): its optimizers may ignore `lr=`. Write learning_rate=."
        )


def _when_loaded(module: str, run: Callable[[], None]) -> None:
    """Calls a function now if a module is loaded, otherwise right after its loading."""
    if module in sys.modules:
        run()
    else:
        sys.meta_path.insert(0, _Watcher(module, run))


class _Watcher(importlib.abc.MetaPathFinder):
    """Finds nothing itself; runs a function when a module has been loaded."""

    def __init__(self, module: str, run: Callable[[], None]) -> None:
        self._module, self._run = module, run

    def find_spec(
        self, fullname: str, path: Any = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self._module:
            return None
        others = [finder for finder in sys.meta_path if finder is not self]
        specs = (finder.find_spec(fullname, path, target) for finder in others)
        spec = next((found for found in specs if found is not None), None)
        loader: Any = None if spec is None else spec.loader
        if loader is not None:
            load = loader.exec_module

            def exec_module(module: ModuleType) -> None:
                load(module)
                self._run()

            loader.exec_module = exec_module
        return spec


def with_modules_below(package: str, get: Callable[[str], Any]) -> Callable[[str], Any]:
    """Returns a package's `__getattr__` that also imports the modules below it, as in Horovod.

    Args:
        package: the name of the package.
        get: returns its other attributes.
    """

    def get_either(name: str) -> Any:
        below = f"{package}.{name}"
        if below.partition(".")[2] not in _KNOWN:
            return get(name)
        try:
            return importlib.import_module(below)
        except ImportError as error:
            raise AttributeError(str(error), name=name) from error

    return get_either


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
        """Yields pkgutil's entries: each module with the prefix, and whether it is a package."""
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
        if name in _INSTEAD:
            raise ImportError(f"tfring has no {module.__name__}: {_INSTEAD[name]}")
        if name in _FOREIGN:
            raise ImportError(
                f"tfring has no {module.__name__}: it replaces Horovod's TensorFlow, Keras, Ray "
                "and Spark parts only"
            )
        target = _MODULES[name]
        module.__doc__ = f"{module.__name__}: {target or 'a package'} under Horovod's name."
        names = vars(module)
        get: Callable[[str], Any] = no_name
        if target is not None:
            get, names["__dir__"], public = reexport(
                target, instead=_OTHERWISE.get(target), change=as_in_horovod
            )
            # A refused module below would make `from ... import *` fail.
            names["__all__"] = [n for n in public if f"{name}.{n}" not in _INSTEAD]
        names["__getattr__"] = with_modules_below(module.__name__, get)
