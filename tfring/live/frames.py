"""Frames of libraries in the stacks of ranks, which hide those of the program."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from tfring.texts.ranks import listed

_LIBRARIES = ("tensorflow", "keras", "tf_keras", "tfring")
_FRAME = re.compile(r'^(\s*)File "(.*)", (line \d+ in .*)$')
_INSTALLED = re.compile(r"^.*/(?:site|dist)-packages/")
_OURS = f"{Path(__file__).resolve().parents[1]}/"


def folded(lines: Iterable[str]) -> Iterator[str]:
    """Returns lines of stacks with one in place of frames of TensorFlow, Keras and tfring.

    Args:
        lines: As `take_stacks` has them.
    """
    indent, names = "", list[str]()
    for line in lines:
        frame = _FRAME.match(line)
        library = "" if frame is None else _library(frame[2], frame[3])
        if library:
            assert frame is not None
            indent = frame[1]
            names.append(library)
            continue
        if names:
            yield _summary(indent, names)
            names = []
        yield line if frame is None else f'{frame[1]}File "{_short(frame[2])}", {frame[3]}'
    if names:
        yield _summary(indent, names)


def _library(path: str, where: str) -> str:
    # TensorFlow makes functions for our ops out of text.
    if path.startswith(_OURS) or (path == "<string>" and " in tfring_" in where):
        return "tfring"
    package = _short(path).partition("/")[0]
    return package if package != path and package in _LIBRARIES else ""


def _short(path: str) -> str:
    return _INSTALLED.sub("", path)


def _summary(indent: str, names: list[str]) -> str:
    frames = f"{len(names)} frame{'' if len(names) == 1 else 's'}"
    return f"{indent}... {frames} of {listed(list(dict.fromkeys(names)))} (--all shows them)"
