"""Registers the ops where TensorFlow is loaded already; this file itself never loads it.

A graph or model that was saved with tfring's ops can be loaded as soon as TensorFlow knows them.
"""

from __future__ import annotations

import functools
import importlib
import logging
import sys

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


@functools.cache
def _warn(error: str) -> None:
    _log.warning(
        "tfring's ops are not registered with TensorFlow: %s. The first collective will raise this "
        "error. `tfring doctor` says which TensorFlow this tfring serves",
        error.rstrip("."),
    )
