"""Warnings that name a line of the user's program, however deep below it they are found."""

from __future__ import annotations

import sys
import warnings

# The top-level packages whose frames are not the program's.
_LIBRARIES = {"horovod", "importlib", "keras", "tensorflow", "tf_keras", "tfring"}


def warn_program(text: str) -> None:
    """Warns at the innermost line that is of none of these packages."""
    frame = sys._getframe(1)
    while frame.f_back is not None and _package(frame.f_globals) in _LIBRARIES:
        frame = frame.f_back
    names = frame.f_globals
    warnings.warn_explicit(
        text,
        UserWarning,
        frame.f_code.co_filename,
        frame.f_lineno,
        module=str(names.get("__name__", "<string>")),
        registry=names.setdefault("__warningregistry__", {}),
    )


def _package(names: dict[str, object]) -> str:
    return str(names.get("__name__", "")).partition(".")[0]
