"""Registers the ops where TensorFlow is loaded already; this file itself never loads it.

A graph or model that was saved with tfring's ops can be loaded as soon as TensorFlow knows them.
"""

from __future__ import annotations

import functools
import importlib
import logging
import sys

_UNREDUCED = "tfring.training.unreduced"  # it loads TensorFlow
_KERAS = {"keras": "watch", "tf_keras": "watch_keras2"}

_log = logging.getLogger("tfring")


def register_where_loaded() -> None:
    """Registers the ops with TensorFlow, if this process has loaded it.

    A library that is missing or for another TensorFlow is a warning here, because this process may
    use no collective. The first collective raises that error.
    """
    if "tensorflow" not in sys.modules:
        return
    try:
        importlib.import_module("tfring.ops.library").register()
    except Exception as error:  # also TensorFlow's, of a library that cannot be loaded
        _warn(str(error))


def watch_optimizers() -> None:
    """Has optimizers of Keras looked at that reduce nothing, if this process has loaded Keras."""
    for package, watch in _KERAS.items():
        if _loaded(package):
            getattr(importlib.import_module(_UNREDUCED), watch)(sys.modules[package])


def say_what_was_not_reduced() -> None:
    """Says at the end of a job what these optimizers have done."""
    kinds = [sys.modules[name].optimizers.Optimizer for name in _KERAS if _loaded(name)]
    if kinds:
        importlib.import_module(_UNREDUCED).at_end(kinds)


def _loaded(package: str) -> bool:
    return "tensorflow" in sys.modules and hasattr(sys.modules.get(package), "optimizers")


@functools.cache
def _warn(error: str) -> None:
    _log.warning(
        "tfring's ops are not registered with TensorFlow: %s. The first collective will raise this "
        "error. `tfring doctor` says which TensorFlow this tfring serves",
        error.rstrip("."),
    )
