"""The public names of a package, loaded when they are first used.

A package lists them once, as imports in its `__init__.pyi`, such as `from tfring.world import init
as init`. Type checkers and editors read that file, and so does `lazy_names`, so that importing the
package loads neither TensorFlow nor the compiled runtime.
"""

from __future__ import annotations

import ast
import importlib
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn

# Public names of Horovod's that this version does not have, and what to use instead. They are
# attributes that do not exist, so that a script can ask with hasattr.
_INSTEAD = {
    "CommitStateCallback": "it is in horovod.keras.elastic, tfring.keras.elastic",
    "UpdateBatchStateCallback": "it is in horovod.keras.elastic, tfring.keras.elastic",
    "UpdateEpochStateCallback": "it is in horovod.keras.elastic, tfring.keras.elastic",
    "HorovodBasics": "use the functions init, rank, size and so on",
    **dict.fromkeys(
        (
            "BroadcastGlobalVariablesHook",
            "LocalGradientAggregationHelper",
            "broadcast_global_variables",
            "ccl_built",
            "check_extension",
            "check_num_rank_power_of_2",
            "ddl_built",
            "gloo_built",
            "gloo_enabled",
            "gpu_available",
            "handle_average_backwards_compatibility",
            "mpi_threads_supported",
            "rocm_built",
            "split_list",
        ),
        "only scripts that import horovod have it (`tfring help migration`)",
    ),
}

# What Keras 2 needs of its own, by the module that has it: a layer, and what loads a model.
KERAS2_INSTEAD = {
    "SyncBatchNormalization": "tfring.keras.keras2.sync_batch_norm",
    "load_model": "tfring.keras.keras2.saving",
}


def tf_keras_is_keras2() -> bool:
    """Whether tf.keras is Keras 2 in this process: TF_USE_LEGACY_KERAS as TensorFlow reads it."""
    return os.environ.get("TF_USE_LEGACY_KERAS") in ("1", "true", "True")


def lazy_names(
    package: str, init_file: str
) -> tuple[list[str], Callable[[str], Any], Callable[[], list[str]]]:
    """Returns `__all__`, `__getattr__` and `__dir__` of a package.

    Args:
        package: its name.
        init_file: its __init__.py, beside which its __init__.pyi is.

    Raises:
        ImportError: the __init__.pyi is missing.
    """
    stub = Path(init_file).with_suffix(".pyi")
    try:
        module_of = _imports(stub)
    except FileNotFoundError:
        raise ImportError(
            f"{stub} is missing, and {package} reads its public names from it: install tfring "
            "again, and keep its .pyi files",
            name=package,
            path=str(stub),
        ) from None
    names = sorted(module_of)

    def load(name: str) -> Any:
        if name not in module_of:
            raise missing(package, name)
        module = module_of[name]
        if name in KERAS2_INSTEAD and tf_keras_is_keras2():
            module = KERAS2_INSTEAD[name]
        if module is None:
            return importlib.import_module(f"{package}.{name}")
        try:
            value = getattr(importlib.import_module(module), name)
        except ModuleNotFoundError as error:
            if error.name != "tensorflow":
                raise
            raise ModuleNotFoundError(
                f"{package}.{name} needs TensorFlow, which is not installed: pip install "
                'tensorflow-cpu, or tensorflow for GPUs. "tfring doctor" says which versions this '
                "tfring serves",
                name=error.name,
            ) from error
        vars(sys.modules[package])[name] = value
        return value

    return names, load, lambda: sorted({*vars(sys.modules[package]), *names})


def reexport(
    target: str,
    only: list[str] | None = None,
    instead: Mapping[str, str] | None = None,
    change: Callable[[str, str, Any], Any] | None = None,
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Returns `__getattr__`, `__dir__` and `__all__` of a module with the names of another.

    Args:
        target: the module of tfring that has the names, and lists the public ones in `__all__`.
        only: those names; None is all.
        instead: names that come from another module, and which.
        change: called as change(target, name, value); returns what the new module has.
    """
    module = importlib.import_module(target)
    public = sorted({*(n for n in module.__all__ if not n.startswith("_")), *(instead or ())})
    names = public if only is None else only

    def get(name: str) -> Any:
        if name.startswith("__") or (only is not None and name not in only):
            no_name(name)
        if instead is not None and name in instead:
            return getattr(importlib.import_module(instead[name]), name)
        value = getattr(module, name)
        return value if change is None else change(target, name, value)

    return get, lambda: sorted({*names, *(dir(module) if only is None else ())}), names


def no_name(name: str) -> NoReturn:
    """Raises the AttributeError of a name that a module of the shim does not have."""
    raise AttributeError(f"tfring's shim for Horovod has no {name!r} here", name=name)


def _imports(stub: Path) -> dict[str, str | None]:
    """The names that a stub imports, and from which module; None is the package itself."""
    body = ast.parse(stub.read_text(encoding="utf-8")).body
    imports = [node for node in body if isinstance(node, ast.ImportFrom)]
    return {alias.name: node.module for node in imports for alias in node.names}


def missing(module: str, name: str) -> AttributeError:
    """Returns the error for a name that a module does not have; it says what to use instead."""
    text = f"module {module!r} has no attribute {name!r}"
    if name in _INSTEAD:
        return AttributeError(f"{text}: {_INSTEAD[name]}", name=name)
    for other in ("tfring", "tfring.keras"):
        stub = Path(__file__).parents[1].joinpath(*other.split(".")[1:], "__init__.pyi")
        if other != module and stub.exists() and name in _imports(stub):
            theirs = "horovod.tensorflow" if other == "tfring" else "horovod.tensorflow.keras"
            text += f": it is in {other}, in a script for Horovod {theirs}"
            break
    return AttributeError(text, name=name)
