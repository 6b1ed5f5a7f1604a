"""Folds frames of libraries in the stacks of ranks."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from tfring.runtime.texts.frames import library, short_path, summary

_FRAME = re.compile(r'^(\s*)File "(.*)", (line \d+ in (.*))$')


def folded(lines: Iterable[str]) -> Iterator[str]:
    """Folds neighbouring frames of TensorFlow, Keras and tfring in lines of stacks."""
    indent, names = "", list[str]()
    for line in lines:
        frame = _FRAME.match(line)
        package = "" if frame is None else library(frame[2], frame[4])
        if package:
            assert frame is not None
            indent = frame[1]
            names.append(package)
            continue
        if names:
            yield _summary(indent, names)
            names = []
        yield line if frame is None else f'{frame[1]}File "{short_path(frame[2])}", {frame[3]}'
    if names:
        yield _summary(indent, names)


def _summary(indent: str, names: list[str]) -> str:
    return f"{indent}{summary(names)} (--all shows them)"
