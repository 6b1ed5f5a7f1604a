"""Stacks of many ranks, as text: what several ranks do alike is said once."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping

from tfring.live.overview import ranks_text
from tfring.recorder.reader import Record, process_state

# What faulthandler writes above the frames of a thread; Python 3.14 adds the thread's name.
_HEAD = re.compile(r"^(?:Thread|Current thread) 0x[0-9a-fA-F]+(?: \[(.*)\])? \(most recent.*\):$")
# The outermost frames of every thread but the main one.
_STARTS_THREAD = re.compile(r"threading\.py\", line \d+ in _bootstrap(_inner)?$")
_MAIN = "main thread"
_NATIVE_SECONDS = 30.0


def describe_stacks(stacks: Mapping[int, str]) -> str:
    """Returns the stacks of all ranks; ranks whose threads are at the same lines appear once.

    Args:
        stacks: By rank, from take_stacks or native_stacks.
    """
    alike: dict[str, list[int]] = {}
    for rank, text in sorted(stacks.items()):
        alike.setdefault(_readable(text), []).append(rank)
    parts = []
    for text, ranks in alike.items():
        whom = ranks_text(ranks)
        parts.append(f"{whom[0].upper()}{whom[1:]}:\n{_indented(text)}")
    return "\n\n".join(parts)


def native_stacks(records: Mapping[int, Record]) -> dict[int, str]:
    """Returns the stacks of Python and C++ of this host's ranks, from py-spy.

    Args:
        records: The records of the ranks, by rank.

    Raises:
        ValueError: py-spy is not installed.
    """
    program = shutil.which("py-spy")
    if program is None:
        raise ValueError("--native needs the program py-spy: pip install py-spy")
    found = {}
    for rank, record in records.items():
        if process_state(record.header) not in ("running", "stopped"):
            found[rank] = f"no stacks: its process {record.pid} is not on this host any more"
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
            found[rank] = f"no stacks: py-spy took longer than {_NATIVE_SECONDS:g} s"
            continue
        failed = f"no stacks: py-spy: {done.stderr.strip()}"
        found[rank] = done.stdout if done.returncode == 0 else failed
    return found


def _readable(text: str) -> str:
    """Returns stacks without numbers of threads, which differ between ranks; the main one first.

    faulthandler begins with the thread that was started last, and ends with the main thread.
    """
    threads: list[tuple[str, list[str]]] = []
    for line in text.strip().splitlines():
        head = _HEAD.match(line)
        if head is not None:
            threads.append((head.group(1) or "", []))
        elif threads:
            if line.strip() and not _STARTS_THREAD.search(line):
                threads[-1][1].append(line.strip())
        else:
            return text.strip()  # not from faulthandler
    threads.reverse()
    blocks = []
    for i, (name, frames) in enumerate(threads):
        title = _MAIN if i == 0 else f"thread {name or i}"
        blocks.append("\n".join([f"{title}, innermost call first:", *(f"  {f}" for f in frames)]))
    return "\n".join(blocks)


def _indented(text: str) -> str:
    return "\n".join(f"  {line}" if line else line for line in text.splitlines())
