"""Judges a program: its result is right, tfring said what is wrong, or tfring was silent."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np

from .ranks import Outcome, Ranks
from .table import Program

TOLERANCE = 1e-4  # of a tensor's largest element
# Messages of Keras and TensorFlow, which one process prints as well.
_OTHERS = (
    "`shuffle=True` was passed",
    "WARNING: All log messages before absl::InitializeLog",
)
# Messages that are not warnings: the ranks, the checkpoint that is resumed, the summary.
_NEWS = re.compile(r"\[tfring\] \S+ rank \d+ \(.*?\) info: |tfring \d|tfring: done ")


def words(text: str) -> str:
    """The warnings in a text, without frames, source lines and locations."""
    lines = (line for line in text.splitlines() if re.match(r"\S|\s+\w*Error: ", line))
    lines = (line for line in lines if not _NEWS.match(line))
    lines = (re.sub(r"^\S+:\d+: ", "", line) for line in lines)
    return "\n".join(line for line in lines if not any(other in line for other in _OTHERS))


def difference(outcomes: list[Outcome], one_process: Outcome | None) -> str:
    """How the ranks' results differ from the expected ones; empty if they do not."""
    for rank, outcome in enumerate(outcomes):
        if outcome.status != "0":
            return f"rank {rank} ended with {outcome.status}"
        if isinstance(outcome.result, tuple):
            got, expected = outcome.result
        else:
            got, expected = outcome.result, one_process.result if one_process else None
        if text := _differs(got, expected):
            return f"rank {rank}: {text}"
    return ""


def _differs(got: Any, expected: Any) -> str:
    if got is None or expected is None:
        return "there is nothing to compare"
    if len(got) != len(expected):
        return f"{len(got)} arrays where {len(expected)} are right"
    for index, (one, other) in enumerate(zip(got, expected, strict=True)):
        one, other = np.asarray(one, np.float64), np.asarray(other, np.float64)
        if one.shape != other.shape:
            return f"array {index} has shape {one.shape} where {other.shape} is right"
        scale = max(float(np.max(np.abs(other))), 1e-3)
        apart = float(np.max(np.abs(one - other))) / scale
        if not apart <= TOLERANCE:
            return f"array {index} differs by {apart:.3g} of its largest element"
    return ""


def verdict(program: Program, ranks: int, forks: Ranks, folder: Path) -> tuple[str, str]:
    """Returns "right", "said" or "silent", and the reason."""
    outcomes = forks.run(program.name, ranks, folder / "ranks")
    told = words("\n".join(outcome.said for outcome in outcomes))
    late = words("\n".join(outcome.said_at_end for outcome in outcomes))
    everything = "\n".join(filter(None, [told, late]))
    one_process = None
    if any(outcome.result is not None for outcome in outcomes):
        one_process = forks.run(program.name, 1, folder / "one")[0]
    if program.is_right:
        alone = words(one_process.said + one_process.said_at_end) if one_process else ""
        if everything or alone:
            return "said", everything or f"in one process: {alone}"
        apart = "" if outcomes[0].result is None else difference(outcomes, one_process)
        codes = [outcome.status for outcome in outcomes]
        return (
            ("right", "") if not apart and set(codes) == {"0"} else ("silent", apart or str(codes))
        )
    where = everything if program.at_end else told
    if program.words and all(re.search(word, where) for word in program.words):
        return "said", where
    if not (apart := difference(outcomes, one_process)):
        return "right", everything
    return "silent", f"{apart}; said: {everything or 'nothing'}"
