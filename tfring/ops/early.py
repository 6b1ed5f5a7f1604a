"""Registers the ops where TensorFlow is loaded already; this file itself never loads it.

A graph or model that was saved with tfring's ops can be loaded as soon as TensorFlow knows them.
"""

from __future__ import annotations

import functools
import importlib
import logging
import sys

_UNREDUCED = "tfring.training.unreduced"  # it loads TensorFlow

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
    if "tensorflow" not in sys.modules:
        return
    for package, watch in (("keras", "watch"), ("tf_keras", "watch_keras2")):
        loaded = sys.modules.get(package)
        if hasattr(loaded, "optimizers"):
            getattr(importlib.import_module(_UNREDUCED), watch)(loaded)


def say_what_was_not_reduced() -> None:
    """Says at the end of a job what these optimizers have done."""
    if _UNREDUCED in sys.modules:
        sys.modules[_UNREDUCED].at_end()


@functools.cache
def _warn(error: str) -> None:
    _log.warning(
        "tfring's ops are not registered with TensorFlow: %s. The first collective will raise this "
        "error. `tfring doctor` says which TensorFlow this tfring serves",
        error.rstrip("."),
    )
