"""Finds which lines of the program take the time of each rank, and where ranks differ."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from tfring.observe.explain.places import Frame
from tfring.observe.profile.sampling import Profile
from tfring.observe.recorder.stacks import MAIN
from tfring.runtime.texts.frames import library
from tfring.runtime.texts.ranks import ranks_text
from tfring.runtime.texts.words import upper_first

# Ranks differ if their shares on a line differ by this much.
_MUCH = 0.2
_NOWHERE = "no line of the program"
_ON_A_THREAD = "on a thread of TensorFlow's"


class Line(NamedTuple):
    """A line of the program.

    Attributes:
        place: As "on_train_batch_end (train.py:13)".
        inside: The library that it called, as "in keras"; "" for its own code.
    """

    place: str
    inside: str

    def text(self) -> str:
        """Returns "train (train.py:20), in keras"."""
        return f"{self.place}, {self.inside}" if self.inside else self.place


Shares = Mapping[Line, float]


def find_shares(profile: Profile) -> dict[Line, float]:
    """Returns the share of the time that a rank spends on each line, the largest first.

    These are lines of the main thread, and lines that TensorFlow calls on its own threads, as
    generators of input.
    """
    found: dict[Line, float] = defaultdict(float)
    for name, samples in profile.threads.items():
        for stack, seconds in samples:
            line = _line(stack, name == MAIN)
            if line is not None:
                found[line] += seconds
    total = sum(seconds for _, seconds in profile.threads.get(MAIN, ()))
    ordered = sorted(found.items(), key=lambda item: -item[1])
    return {line: seconds / total for line, seconds in ordered} if total else {}


def _line(stack: Sequence[Frame], main: bool) -> Line | None:
    here = next((i for i, frame in enumerate(stack) if frame.users), None)
    if not main:
        # Threads of the program's own may wait for ever and harm nobody.
        if here is None or stack[-1].path.endswith("/threading.py"):
            return None
        return Line(stack[here].text(), _ON_A_THREAD)
    if here is None:
        return Line(_NOWHERE, "")
    called = [library(frame.path, frame.function) for frame in stack[:here]]
    package = next(filter(None, reversed(called)), "")
    return Line(stack[here].text(), f"in {package}" if package else "")


def describe_difference(found: Mapping[int, Shares]) -> str:
    """Returns a sentence on where some ranks spend much more time than the others.

    Ranks that wait for a slow one do so in TensorFlow, Keras or tfring, so a line of the program's
    own code says more.

    Args:
        found: The shares of at least two ranks.
    """
    best: tuple[bool, float, Line, list[int]] | None = None
    for line in {line for own in found.values() for line in own}:
        ordered = sorted(found, key=lambda rank: found[rank].get(line, 0.0))
        values = [found[rank].get(line, 0.0) for rank in ordered]
        # Those behind the widest gap, at most half of all.
        gap, at = max(
            (values[i] - values[i - 1], i) for i in range((len(ordered) + 1) // 2, len(ordered))
        )
        own = line.inside in ("", _ON_A_THREAD)
        if gap < _MUCH or line.inside == "in tfring" or line.place == _NOWHERE:
            continue
        if best is None or (own, gap) > best[:2]:
            best = own, gap, line, sorted(ordered[at:])
    if best is None:
        return "The ranks spend their time on the same lines."
    _, _, line, slow = best
    return _sentence(line, slow, found)


def _sentence(line: Line, slow: list[int], found: Mapping[int, Shares]) -> str:
    others = [rank for rank in found if rank not in slow]
    least = min(found[rank][line] for rank in slow)
    most = max(found[rank].get(line, 0.0) for rank in others)
    who = upper_first(ranks_text(slow))
    spend = "spends" if len(slow) == 1 else "spend at least"
    rest = ranks_text(others) if len(others) == 1 else "the others at most"
    return (
        f"{who} {spend} {100 * least:.0f} % of the time in {line.text()}; "
        f"{rest} {100 * most:.0f} %."
    )
