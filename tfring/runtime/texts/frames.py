"""Tells frames of libraries from those of the program, by their files."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from tfring.runtime.texts.ranks import listed
from tfring.runtime.texts.words import counted

# Packages whose frames are folded.
LIBRARIES = ("tfring", "horovod", "tensorflow", "keras", "tf_keras")
_INSTALLED = re.compile(r"^.*/(?:site|dist)-packages/")
_OURS = f"{Path(__file__).resolve().parents[2]}/"
# Code that the user did not write. Other installed packages may be the user's own.
_STANDARD = re.compile(r"^<|/lib/python3[^/]*/(?!(site|dist)-packages/)")
_OTHERS = re.compile(r"-packages/(numpy|six|typing_extensions)[/.]")
# How Python imports a module.
_IMPORT = re.compile(r"^<frozen importlib|/lib/python3[^/]*/importlib/")
# A frame of a traceback or of faulthandler: indent, file, line and function. Autograph marks lines
# that it has changed with a star.
FRAME = re.compile(r'^(\s*)File "(.*)", line (\d+)(?:,? in (.*?))?(?:  \*)?$')
# Python's marks under a line of source, which autograph moves to the left.
MARKS = re.compile(r"\s*[~^]+$")
# Autograph compiles functions from generated files.
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
    package = _INSTALLED.sub("", path).partition("/")[0]
    return package if package != path and package in LIBRARIES else ""


def is_users(path: str) -> bool:
    """Tells whether a file belongs to the program and to no library."""
    return not (library(path, "") or _STANDARD.search(path) or _OTHERS.search(path))


def place(line: str, function: str | None) -> str:
    """Returns "train.py:38 (fit)"; `function` may be "<module>" or None."""
    return line if function in (None, "<module>") else f"{line} ({function})"


def fold_frames(lines: Iterable[str], note: str = "") -> Iterator[str]:
    """Yields lines of a stack with one line for neighbouring frames of libraries.

    Args:
        lines: Of a traceback or of `take_stacks`; empty ones are left out.
        note: Added to "... 3 frames of keras and tensorflow".
    """
    indent, names = "", list[str]()
    for line in lines:
        frame = FRAME.match(line)
        if frame is not None and (package := library(frame[2], frame[4] or "")):
            indent = frame[1]
            names.append(package)
        elif frame is None and names and (line.startswith("  ") or MARKS.match(line)):
            continue  # the source of a library's line
        elif line.strip():
            yield from _summary(indent, names, note)
            names = []
            yield line
    yield from _summary(indent, names, note)


def _summary(indent: str, names: list[str], note: str) -> list[str]:
    if not names:
        return []
    packages = listed(list(dict.fromkeys(names)))
    return [f"{indent}... {counted(len(names), 'frame')} of {packages}{note}"]
