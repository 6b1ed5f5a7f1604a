"""Lets `import horovod` mean tfring, so that a script runs without a change.

    python -m tfring.compat train.py
    tfring run --horovod -np 2 python train.py

`stand_in/` holds a package named horovod whose modules hand everything on to tfring. It is found
only where its folder is put on the import path, in front of an installed Horovod.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

STAND_IN = Path(__file__).resolve().parent / "stand_in"

# The release of Horovod whose names the stand-in has; scripts compare it.
HOROVOD_VERSION = "0.28.1"


def search_path(environ: Mapping[str, str]) -> str:
    """Returns a PYTHONPATH with the stand-in in front of what `environ` has."""
    rest = [part for part in environ.get("PYTHONPATH", "").split(os.pathsep) if part]
    return os.pathsep.join([str(STAND_IN), *(part for part in rest if part != str(STAND_IN))])


def stand_for(target: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Returns `__getattr__`, `__dir__` and `__all__` of a module that stands for another.

    Args:
        target: the module of tfring that has the names.
    """
    module = importlib.import_module(target)

    def get(name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(module, name)

    names = list(getattr(module, "__all__", [n for n in dir(module) if not n.startswith("_")]))
    return get, lambda: sorted({*names, *dir(module)}), names


def not_yet(what: str) -> ImportError:
    """Returns the error of a module of Horovod's that has no counterpart yet."""
    return ImportError(f"{what} is not there yet in this version of tfring")
