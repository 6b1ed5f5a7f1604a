"""Stacks of many ranks as text; equal stacks appear once."""

from __future__ import annotations

import re
import shutil
import subprocess
import textwrap
from collections.abc import Mapping

from tfring.observe.recorder.processes import process_state
from tfring.observe.recorder.reader import Record
from tfring.observe.recorder.stacks import MAIN, OWN
from tfring.observe.recorder.take_stacks import NO_STACKS
from tfring.runtime.texts.frames import fold_frames
from tfring.runtime.texts.ranks import ranks_text
from tfring.runtime.texts.words import upper_first

_HEAD = re.compile(r"^Thread \[(.*)\] \(most recent call first\):$")
# The outermost frames of every thread but the main one.
_STARTS_THREAD = re.compile(r'threading\.py", line \d+ in _bootstrap(_inner)?$')
_PACKAGES = re.compile(r'(?<=File ")[^"]*/(?:site|dist)-packages/')
# How py-spy begins the stack of a thread.
_NATIVE_HEAD = re.compile(r'^Thread \S+ \(\w+\)(: "(.*)")?$')
_NATIVE_SECONDS = 30.0


def describe_stacks(stacks: Mapping[int, str], *, whole: bool = False) -> str:
    """Returns the stacks of all ranks; ranks whose threads are at the same lines appear once.

    Args:
        stacks: By rank, from take_stacks or native_stacks.
        whole: Also frames of TensorFlow, Keras and tfring, and tfring's threads.
    """
    alike: dict[str, list[int]] = {}
    for rank, text in sorted(stacks.items()):
        shown = _readable(text)
        if not whole:
            folded = fold_frames(_without_own_threads(shown), " (--all shows them)")
            shown = [_PACKAGES.sub("", line) for line in folded]
        alike.setdefault(textwrap.indent("\n".join(shown), "  "), []).append(rank)
    parts = (f"{upper_first(ranks_text(ranks))}:\n{text}" for text, ranks in alike.items())
    return "\n\n".join(parts)


def native_stacks(records: Mapping[int, Record]) -> dict[int, str]:
    """Returns the stacks of Python and C++ of this host's ranks, by rank, from py-spy.

    Raises:
        ValueError: py-spy is not installed.
    """
    program = shutil.which("py-spy")
    if program is None:
        raise ValueError("--native needs the program py-spy: pip install py-spy")
    found = {}
    for rank, record in records.items():
        if process_state(record.header) not in ("running", "stopped"):
            found[rank] = f"{NO_STACKS}its process {record.pid} is not on this host any more"
            continue
        try:
            done = subprocess.run(
                [program, "dump", "--native", "--pid", str(record.pid)],
                capture_output=True,
                text=True,
                timeout=_NATIVE_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            found[rank] = f"{NO_STACKS}py-spy took longer than {_NATIVE_SECONDS:g} s"
            continue
        failed = f"{NO_STACKS}py-spy: {done.stderr.strip()}"
        found[rank] = done.stdout if done.returncode == 0 else failed
    return found


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


def _without_own_threads(lines: list[str]) -> list[str]:
    """Removes tfring's threads, which only wait, from what py-spy says.

    Stacks from a rank have none.
    """
    kept, hidden, hides = [], 0, False
    for line in lines:
        if head := _NATIVE_HEAD.match(line):
            hides = (head[2] or "").startswith(OWN)
            hidden += hides
        if not hides:
            kept.append(line)
    if hidden:
        kept.append(f"... {hidden} thread{'s' * (hidden > 1)} of tfring (--all shows them)")
    return kept
