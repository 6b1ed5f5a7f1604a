"""The choice of the rank whose state is taken, from the numbers of several ranks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("tfring.runtime._native")

from tfring.elastic import progress
from tfring.elastic.progress import Progress, compare


class Others:
    """A fake of the exchange: returns the numbers of all ranks, ours included."""

    def __init__(self, ranks: list[Progress], parts: list[list[str]] | None = None) -> None:
        self.ranks = ranks
        self.parts = parts or [["part"]] * len(ranks)

    def allgather(self, mine: Any, name: str) -> Any:
        if name.endswith("compare"):
            rows = [
                [
                    int(r.lineage != 0),
                    r.commit,
                    r.step,
                    -int(r.copied),
                    r.lineage or 99 + n,
                    progress.hash_of(parts),
                ]
                for n, (r, parts) in enumerate(zip(self.ranks, self.parts, strict=True))
            ]
            return np.array(rows, dtype=np.int64)
        texts = ["\n".join(parts).encode() for parts in self.parts]
        if name.endswith("lengths"):
            return np.array([len(text) for text in texts], dtype=np.int64)
        return np.frombuffer(b"".join(texts), dtype=np.uint8)


@pytest.fixture
def ranks(monkeypatch: pytest.MonkeyPatch) -> Any:
    def set_up(made: list[Progress], parts: list[list[str]] | None = None) -> None:
        others = Others(made, parts)
        native = {"core": others, "note_call_site": lambda: None}
        monkeypatch.setattr(progress, "_native", type("Native", (), native))
        monkeypatch.setattr(progress, "is_initialized", lambda: True)
        monkeypatch.setattr(progress, "size", lambda: len(made))
        monkeypatch.setattr(progress, "rank", lambda: 0)

    return set_up


def test_the_first_sync_takes_rank_0s(ranks: Any) -> None:
    ranks([Progress(), Progress(), Progress()])
    assert compare(Progress(), ["part"]) == (0, True, Progress(99))


@pytest.mark.parametrize(
    ("made", "root", "behind"),
    [
        ([Progress(5, 3, 9), Progress(5, 3, 9)], 0, False),
        ([Progress(5, 3, 9), Progress(5, 4, 12)], 1, True),
        ([Progress(5, 3, 9), Progress(5, 3, 10)], 1, True),
        ([Progress(), Progress(5, 3, 9), Progress(5, 3, 9)], 1, True),  # rank 0 has joined
        ([Progress(0, 7, 7), Progress(5, 0, 0)], 1, True),  # its commits are of no training
        ([Progress(6, 3, 9), Progress(5, 3, 9)], 0, True),  # of another training
        # A reset callback of the rank that has made the commit may have changed its state since.
        ([Progress(5, 3, 9, copied=True), Progress(5, 3, 9)], 1, True),
        ([Progress(5, 3, 9, copied=True), Progress(5, 3, 9, copied=True)], 0, True),
    ],
)
def test_the_rank_that_is_ahead(ranks: Any, made: list[Progress], root: int, behind: bool) -> None:
    ranks(made)
    there = made[root]
    expected = Progress(there.lineage, there.commit, there.step, there.step)
    assert compare(made[0], ["part"]) == (root, behind, expected)


def test_a_root_that_is_given(ranks: Any) -> None:
    ranks([Progress(5, 3, 9), Progress(5, 4, 12)])
    assert compare(Progress(5, 3, 9), ["part"], 0) == (0, True, Progress(5, 3, 9, 9))


def test_states_of_different_parts_are_refused(ranks: Any) -> None:
    ranks(
        [Progress(5), Progress(5), Progress(5)],
        [["A", "variable 0: float32 (2,)"], ["A", "variable 0: float32 (2,)"], ["A"]],
    )
    with pytest.raises(ValueError, match=r"rank 0 has variable 0: float32 \(2,\) where rank 2 has"):
        compare(Progress(5), ["A", "variable 0: float32 (2,)"])
