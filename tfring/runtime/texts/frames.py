"""Tells frames of libraries from those of the program, by their files."""

from __future__ import annotations

import re
from pathlib import Path

from tfring.runtime.texts.ranks import listed
from tfring.runtime.texts.words import counted

# Packages whose frames are no part of the user's program.
LIBRARIES = ("tfring", "horovod", "tensorflow", "keras", "tf_keras")
_INSTALLED = re.compile(r"^.*/(?:site|dist)-packages/")
_OURS = f"{Path(__file__).resolve().parents[2]}/"
# Code that the user has not written. Other installed packages may be the user's own.
_STANDARD = re.compile(r"^<|/lib/python3[^/]*/(?!(site|dist)-packages/)")
_OTHERS = re.compile(r"-packages/(numpy|six|typing_extensions)[/.]")
# How Python imports a module.
_IMPORT = re.compile(r"^<frozen importlib|/lib/python3[^/]*/importlib/")
# Autograph compiles functions anew, from files that it makes up.
GENERATED = re.compile(r"__autograph_generated_file\w*\.py$")


def library(path: str, function: str) -> str:
    """Returns the package of a frame of TensorFlow, Keras, tfring or an import; "" of any other."""
    # TensorFlow makes functions for our ops out of text.
    if path.startswith(_OURS) or (path == "<string>" and function.startswith("tfring_")):
        return "tfring"
    if GENERATED.search(path):
        return "tensorflow"
    if _IMPORT.search(path):
        return "importlib"
    package = short_path(path).partition("/")[0]
    return package if package != path and package in LIBRARIES else ""


def is_users(path: str) -> bool:
    """Tells whether a file belongs to the program and to no library."""
    return not (library(path, "") or _STANDARD.search(path) or _OTHERS.search(path))


def short_path(path: str) -> str:
    """Returns the path of a file of an installed package without the folders above."""
    return _INSTALLED.sub("", path)


def place(line: str, function: str | None) -> str:
    """Returns "train.py:38 (fit)"; `function` may be "<module>" or None."""
    return line if function in (None, "<module>") else f"{line} ({function})"


def summary(names: list[str]) -> str:
    """Returns "... 3 frames of keras and tensorflow" from the package of each frame."""
    return f"... {counted(len(names), 'frame')} of {listed(list(dict.fromkeys(names)))}"
