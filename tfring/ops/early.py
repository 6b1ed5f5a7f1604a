"""Registers the ops if TensorFlow is already loaded; this file never loads it.

A graph or model that was saved with tfring's ops can be loaded when TensorFlow knows the ops.
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

    If the library is missing or for another TensorFlow, this only warns: the process may use no
    collective. The first collective raises that error.
    """
    if "tensorflow" not in sys.modules:
        return
    try:
        importlib.import_module("tfring.ops.library").register()
    except Exception as error:  # also TensorFlow's error for a library that cannot be loaded
        _warn(str(error))


def watch_optimizers() -> None:
    """Watches Keras optimizers for gradients that were not reduced, if Keras is loaded."""
    for package, watch in _KERAS.items():
        if _loaded(package):
            getattr(importlib.import_module(_UNREDUCED), watch)(sys.modules[package])


def say_what_was_not_reduced() -> None:
    """Warns at the end of a job about optimizers that reduced nothing."""
    kinds = [sys.modules[name].optimizers.Optimizer for name in _KERAS if _loaded(name)]
    if kinds:
        importlib.import_module(_UNREDUCED).at_end(kinds)


def _loaded(package: str) -> bool:
    return "tensorflow" in sys.modules and hasattr(sys.modules.get(package), "optimizers")


@functools.cache
def _warn(error: str) -> None:
    _log.warning(
        "tfring's ops are not registered with TensorFlow: %s. The first collective will raise "
        "this error. Run `tfring doctor` to see which TensorFlow this tfring supports",
        error.rstrip("."),
    )
