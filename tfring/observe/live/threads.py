"""Stacks of many ranks as text; equal stacks appear once."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping

from tfring.observe.recorder.stacks import MAIN
from tfring.runtime.texts.frames import fold_frames
from tfring.runtime.texts.ranks import ranks_text
from tfring.runtime.texts.words import upper_first

_HEAD = re.compile(r"^Thread \[(.*)\] \(most recent call first\):$")
# The outermost frames of every thread but the main one.
_STARTS_THREAD = re.compile(r'threading\.py", line \d+ in _bootstrap(_inner)?$')
_PACKAGES = re.compile(r'(?<=File ")[^"]*/(?:site|dist)-packages/')


def describe_stacks(stacks: Mapping[int, str], *, whole: bool = False) -> str:
    """Returns the stacks of all ranks; ranks whose threads are at the same lines appear once.

    Args:
        stacks: By rank, from take_stacks.
        whole: Also frames of TensorFlow, Keras and tfring.
    """
    alike: dict[str, list[int]] = {}
    for rank, text in sorted(stacks.items()):
        shown = _readable(text)
        if not whole:
            folded = fold_frames(shown, " (--all shows them)")
            shown = [_PACKAGES.sub("", line) for line in folded]
        alike.setdefault(textwrap.indent("\n".join(shown), "  "), []).append(rank)
    parts = (f"{upper_first(ranks_text(ranks))}:\n{text}" for text, ranks in alike.items())
    return "\n\n".join(parts)


def _readable(text: str) -> list[str]:
    """Returns the lines of stacks without the frames that each thread has."""
    lines = []
    for line in text.strip().splitlines():
        head = _HEAD.match(line)
        if head is not None:
            name = "main thread" if head.group(1) == MAIN else f"thread {head.group(1)}"
            lines.append(f"{name}, innermost call first:")
        elif line.strip() and not _STARTS_THREAD.search(line):
            lines.append("".join(c if c.isprintable() else "?" for c in line))
    return lines
