"""Checkpoints of several processes: all shares are there, or none."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tfring.checkpoint import Checkpointer, CheckpointError, CheckpointInfo, FencedError
from tfring.checkpoint.manifest import share_data
from tfring.checkpoint.shares import Share, balanced


class Ranks:
    """Some processes that save to one folder."""

    def __init__(self, folder: Path, count: int, **options: Any) -> None:
        given = {"asynchronous": False, "keep_last": 9, **options}
        self.all = [Checkpointer(folder, **given) for _ in range(count)]
        self.generation = self.all[0].reserve()

    def data(self, step: int) -> str:
        return self.all[0].new_data(step, self.generation)

    def save(self, step: int, order: Any = None, data: str | None = None) -> None:
        """Saves an array per rank; `order` names the ranks that come to write it."""
        data = data or self.data(step)
        for rank in range(len(self.all)) if order is None else order:
            share = Share(data, rank, len(self.all))
            state = {f"of {rank}": np.full(1000, step), f"blob {rank}": bytes([rank])}
            self.all[rank].save(state, step, self.generation, share=share)

    def newest(self) -> int | None:
        found = self.all[-1].load()
        if found is None:
            return None
        assert sorted(found.state) == sorted(
            f"{kind} {rank}" for kind in ("of", "blob") for rank in range(len(self.all))
        )
        for rank in range(len(self.all)):
            assert (found.state[f"of {rank}"] == found.info.step).all()
            assert found.state[f"blob {rank}"] == bytes([rank])
        return found.info.step


def data_files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.suffix != ".owner")


@pytest.mark.parametrize(
    ("sizes", "count", "loads"),
    [
        ([3, 5, 4, 3, 3], 2, [10, 8]),
        ([8, 1, 1], 3, [8, 1, 1]),
        ([7], 3, [7, 0, 0]),
        ([], 2, [0, 0]),
    ],
)
def test_shares_are_balanced(sizes: list[int], count: int, loads: list[int]) -> None:
    named = {f"a{index}": size for index, size in enumerate(sizes)}
    shares = balanced(named, count)
    assert sorted(name for share in shares for name in share) == sorted(named)
    assert sorted((sum(named[n] for n in share) for share in shares), reverse=True) == loads


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2)])
def test_it_is_there_when_the_last_share_is(tmp_path: Path, order: tuple[int, ...]) -> None:
    ranks = Ranks(tmp_path, 3)
    ranks.save(1)
    data = ranks.data(2)
    for rank in order:
        assert ranks.newest() == 1
        assert [info.step for info in ranks.all[0].all()] == [1]
        ranks.save(2, [rank], data)
    assert ranks.newest() == 2
    assert len(data_files(tmp_path)) == 12


def test_one_of_which_a_share_is_missing_is_none(tmp_path: Path) -> None:
    ranks = Ranks(tmp_path, 2)
    with pytest.raises(CheckpointError, match=r"1 of its 2 shares were not written"):
        ranks.save(1, [0])
        ranks.newest()
    ranks.save(2)
    for order in ([0], [1]):
        ranks.save(3, order)
        assert ranks.newest() == 2
        latest = ranks.all[1].latest()
        assert latest is not None
        assert latest.step == 2


def test_what_was_not_finished_goes_when_a_newer_one_is_there(tmp_path: Path) -> None:
    """The newest stays in addition to the kept ones: its shares may still be written."""
    ranks = Ranks(tmp_path, 2, keep_last=2)
    for step in (1, 2, 3, 4):
        ranks.save(step)
    assert [info.step for info in ranks.all[0].all()] == [2, 3, 4]
    ranks.save(5, [1])
    ranks.save(6, [0])
    assert [info.step for info in ranks.all[0].all()] == [3, 4]
    ranks.save(7)
    ranks.save(8)
    assert [info.step for info in ranks.all[0].all()] == [4, 7, 8]
    ranks.save(9)
    assert [info.step for info in ranks.all[0].all()] == [7, 8, 9]
    assert len(data_files(tmp_path)) == 3 * 4
    with Checkpointer(tmp_path, keep_last=1) as alone:  # of another generation
        alone.save({"a": np.ones(2)}, 1)
    assert len(data_files(tmp_path)) == 2


def test_of_one_that_was_never_finished_nothing_is_left(tmp_path: Path) -> None:
    """Otherwise each start would read its manifest, and skip it with a warning."""
    ranks = Ranks(tmp_path, 2, keep_last=2)
    ranks.save(1)
    ranks.save(2, [0])
    ranks = Ranks(tmp_path, 2, keep_last=2)
    ranks.save(1, [0])
    left = [name for name in data_files(tmp_path) if name.startswith("g00000-s000000002")]
    assert not left
    assert len(data_files(tmp_path)) == 4 + 2, "the one before, and what is under way"


@pytest.mark.parametrize("suffix", [".1.npz", ".1.json"])
def test_damage_in_any_share_is_noticed(tmp_path: Path, suffix: str) -> None:
    ranks = Ranks(tmp_path, 2)
    ranks.save(1)
    ranks.save(2)
    (path,) = tmp_path.glob(f"*-s000000002-*{suffix}")
    whole = path.read_bytes()
    for damaged in (
        whole[: len(whole) // 2],
        whole[:200] + bytes([whole[200] ^ 1]) + whole[201:],
        b"",
    ):
        path.write_bytes(damaged)
        assert ranks.newest() == 1
    path.write_bytes(whole)
    assert ranks.newest() == 2


def test_some_of_the_arrays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = Ranks(tmp_path, 2)
    ranks.save(1)
    info = ranks.all[0].latest()
    assert isinstance(info, CheckpointInfo)
    assert info.shares == 2
    assert sorted(ranks.all[0].parts(info)) == ["blob 0", "blob 1", "of 0", "of 1"]
    folder = ranks.all[1]._files.folder
    opened, real = [], folder.open
    monkeypatch.setattr(folder, "open", lambda name: opened.append(name) or real(name))
    assert list(ranks.all[1].read(info, ["of 1", "nothing"])) == ["of 1"]
    assert [name for name in opened if name.endswith(".npz")] == [share_data(info.data, 1)]
    with np.load(tmp_path / info.data) as plain:
        assert list(plain) == ["of 0", "blob 0.bin"]


def test_a_newer_generation_fences_every_share(tmp_path: Path) -> None:
    old, new = Ranks(tmp_path, 2), Ranks(tmp_path, 2)
    new.save(1, [0])
    for rank in (0, 1):
        with pytest.raises(FencedError):
            old.save(9, [rank])
    assert not [name for name in os.listdir(tmp_path) if "s000000009" in name]
