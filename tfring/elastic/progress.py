"""How far the state of a rank is, and whose is taken when ranks meet."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import secrets
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from tfring.runtime import _native
from tfring.runtime.topology import is_initialized, rank, size


@dataclasses.dataclass
class Progress:
    """How far a state is."""

    # A number of the training that the state belongs to; 0 before the first sync. States of one
    # lineage with the same number of commits are equal.
    lineage: int = 0
    commit: int = 0  # commits so far
    step: int = 0  # steps that they hold
    live_step: int = 0  # steps so far, those after the last commit too
    counted: bool = False  # whether the program counts steps; if not, a commit counts as one
    # Whether the state was read from a copy, and no rank has looked at it since. A rank that has
    # made the commit may have changed its state meanwhile, in a reset callback.
    copied: bool = False

    def commit_now(self) -> None:
        """Counts a commit."""
        self.commit += 1
        if not self.counted:
            self.live_step = max(self.live_step, self.step + 1)
        self.step = self.live_step

    def roll_back(self) -> None:
        """Forgets the steps after the last commit."""
        self.live_step = self.step


class Ahead(NamedTuple):
    """Whose state all ranks take."""

    root: int  # the rank that is ahead of all others; the lowest of several
    behind: bool  # whether any rank is not where that one is
    progress: Progress  # of the root, and so of all ranks afterwards


def compare(mine: Progress, parts: Sequence[str], root: int | None = None) -> Ahead:
    """Finds the rank whose state is ahead; or takes the state of a root. A collective.

    The parts are what the state consists of. ValueError: they differ between two ranks. CoreError:
    a rank was lost.
    """
    lineage = mine.lineage or 1 + secrets.randbits(62)
    if not is_initialized() or size() == 1:
        own = Progress(lineage, mine.commit, mine.step, mine.step, mine.counted)
        return Ahead(0, mine.lineage == 0, own)
    known, parts_hash = int(mine.lineage != 0), hash_of(parts)
    value = [known, mine.commit, mine.step, -int(mine.copied), lineage, parts_hash]
    numbers: Any = np.array([value], dtype=np.int64)
    _native.note_call_site()
    ranks = _native.core.allgather(numbers, name="tfring.elastic.compare").tolist()
    if any(other[-1] != ranks[0][-1] for other in ranks):
        _refuse(parts)
    if root is None:
        root = max(range(len(ranks)), key=lambda r: (*ranks[r][:4], -r))
    known, commit, step, copied, chosen, _ = ranks[root]
    behind = known == 0 or copied != 0 or any(other != ranks[root] for other in ranks)
    return Ahead(root, behind, Progress(chosen, commit, step, step, mine.counted))


def hash_of(parts: Sequence[str]) -> int:
    """Returns a number below 2**63 that is equal for states that consist of the same."""
    digest = hashlib.sha256("\n".join(parts).encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1


def _refuse(mine: Sequence[str]) -> None:
    """Raises the error for states that consist of different parts: the first that differs."""
    text: Any = np.frombuffer("\n".join(mine).encode(), dtype=np.uint8)
    length: Any = np.array([text.size], dtype=np.int64)
    name = "tfring.elastic.parts"
    _native.note_call_site()
    lengths = _native.core.allgather(length, name=f"{name}.lengths").tolist()
    _native.note_call_site()
    together = _native.core.allgather(text, name=name).tobytes()
    ends = list(itertools.accumulate(lengths))
    of_rank = [
        together[end - length : end].decode().split("\n")
        for end, length in zip(ends, lengths, strict=True)
    ]
    other = next(r for r, parts in enumerate(of_rank) if parts != of_rank[0])
    pairs = itertools.zip_longest(of_rank[0], of_rank[other], fillvalue="nothing")
    at_first, at_other = next((a, b) for a, b in pairs if a != b)
    raise ValueError(
        f"rank {rank()}: the states of the ranks differ: rank 0 has {at_first} where rank {other} "
        f"has {at_other}. Give all ranks the same model, optimizer and attributes"
    )
