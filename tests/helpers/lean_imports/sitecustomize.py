"""Makes the import of TensorFlow and Keras cheaper in tests, which import them thousands of times.

Python imports this at its start if PYTHONPATH has this folder: tests/conftest.py puts it
there for the processes that tests start.

- Keras looks for scikit-learn, matplotlib, pandas and IPython when it is imported, and does without
  those that are missing. It finds none of them here. A script that imports them gets them.
- NumPy's import does not add the texts of its documentation, which takes a tenth of its time.
- The garbage collector waits while TensorFlow or Keras is imported, and looks at none of the
  objects that the import made later, not even when the process ends. There are some hundred
  thousand of them, and they live as long as the process.
- TensorFlow's modules of ops name the same few types in strings 18,000 times, and ask twice for the
  signatures of most functions. Each string is compiled once, and each signature made once.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

_HIDDEN = frozenset({"IPython", "matplotlib", "pandas", "scipy", "sklearn"})
_DOCUMENTATION = frozenset({"numpy._core._add_newdocs", "numpy._core._add_newdocs_scalars"})
_FROM = frozenset({"keras", "tensorflow", "tf_keras"})


class LeanFinder:
    """A finder of modules before all others."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """Returns None, so that the next finder is asked, but for the packages themselves.

        Raises:
            ModuleNotFoundError: a module of Keras or TensorFlow wants one of the hidden packages.
        """
        if name in _HIDDEN and _importer() in _FROM:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        if name in _DOCUMENTATION:
            return ModuleSpec(name, NoModule())
        # Keras is imported within TensorFlow's import, for which the collector waits already.
        if name not in _FROM or not gc.isenabled():
            return None
        spec = PathFinder.find_spec(name)
        if spec is not None and spec.loader is not None:
            spec.loader.exec_module = _cheaply(spec.loader.exec_module)  # type: ignore[method-assign]
        return spec


class NoModule:
    """Loads a module with nothing in it."""

    def create_module(self, spec: ModuleSpec) -> None:
        """Leaves the making of the module to Python."""

    def exec_module(self, module: ModuleType) -> None:
        """Runs nothing."""


def _cheaply(load: Callable[[ModuleType], None]) -> Callable[[ModuleType], None]:
    def exec_module(module: ModuleType) -> None:
        import functools  # here, because most processes never get here
        import inspect
        import typing

        inside = vars(inspect)
        make_signature = inside["_signature_from_function"]
        inside["_signature_from_function"] = functools.cache(make_signature)
        vars(typing)["compile"] = functools.cache(compile)  # before the builtin one
        gc.disable()
        try:
            load(module)
        finally:
            gc.freeze()
            gc.enable()
            del vars(typing)["compile"]
            inside["_signature_from_function"] = make_signature

    return exec_module


def _importer() -> str:
    """Returns the package whose import statement is running."""
    frame = sys._getframe(2)
    while frame.f_back is not None and "importlib" in frame.f_code.co_filename:
        frame = frame.f_back
    return str(frame.f_globals.get("__name__", "")).partition(".")[0]


sys.meta_path.insert(0, LeanFinder())
