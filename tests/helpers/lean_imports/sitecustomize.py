"""Hides packages from Keras and TensorFlow that they import only because they are installed.

Python imports this when it starts, where PYTHONPATH has this folder: tests/conftest.py puts it
there for the processes that tests start. Keras looks for scikit-learn, matplotlib, pandas and
IPython when it is imported, and does without those that are missing. They take half of the time to
import TensorFlow, and tests import it some thousand times. A script that imports them gets them.
"""

from __future__ import annotations

import sys

_HIDDEN = frozenset({"IPython", "matplotlib", "pandas", "scipy", "sklearn"})
_FROM = frozenset({"keras", "tensorflow", "tf_keras"})


class HiddenFromKeras:
    """A finder of modules before all others, that says of some that they are missing."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        """Returns None, so that the next finder is asked.

        Raises:
            ModuleNotFoundError: a module of Keras or TensorFlow wants one of the hidden packages.
        """
        if name in _HIDDEN and _importer() in _FROM:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def _importer() -> str:
    """Returns the package whose import statement is running."""
    frame = sys._getframe(2)
    while frame.f_back is not None and "importlib" in frame.f_code.co_filename:
        frame = frame.f_back
    return str(frame.f_globals.get("__name__", "")).partition(".")[0]


sys.meta_path.insert(0, HiddenFromKeras())
