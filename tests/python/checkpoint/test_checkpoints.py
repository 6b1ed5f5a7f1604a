"""What a Checkpointer keeps, finds, refuses and removes."""

from __future__ import annotations

import dataclasses
import errno
import io
import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tfring.checkpoint import (
    Checkpointer,
    CheckpointError,
    CheckpointTimeoutError,
    FencedError,
    InvalidCheckpointError,
    arrays,
)


def state(step: int) -> dict[str, Any]:
    """Arrays whose values show the step."""
    return {
        "model/dense/kernel": np.full((3, 4), step, np.float32),
        "iterations": step,
        "blob": bytes([step % 256]) * 5,
    }


def assert_state(found: dict[str, Any], step: int) -> None:
    expected = state(step)
    assert set(found) == set(expected)
    np.testing.assert_array_equal(found["model/dense/kernel"], expected["model/dense/kernel"])
    assert found["iterations"] == step
    assert found["blob"] == expected["blob"]


def saved(folder: Any, *steps: int, **options: Any) -> Checkpointer:
    """A Checkpointer that has saved these steps one after the other."""
    checkpoints = Checkpointer(folder, **{"asynchronous": False, "keep_last": 9, **options})
    for step in steps:
        checkpoints.save(state(step), step)
    return checkpoints


def steps(checkpoints: Checkpointer) -> list[int]:
    return [info.step for info in checkpoints.all()]


def files(folder: Path) -> list[str]:
    """All files but those that reserve a generation."""
    return sorted(path.name for path in folder.iterdir() if path.suffix != ".owner")


def file_of(folder: Path, step: int, suffix: str) -> Path:
    (found,) = folder.glob(f"g*-s{step:09d}*{suffix}")
    return found


def test_values_come_back_with_dtype_and_shape(tmp_path: Path) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    values = {
        "half": np.array([1.5, -2], np.float16),
        "brain": np.arange(4).reshape(2, 2).astype(ml_dtypes.bfloat16),
        "eight": np.ones(3, ml_dtypes.float8_e4m3fn),
        "scalar": np.float64(0.1),
        "empty": np.zeros((0, 4), np.int8),
        "turned": np.arange(6).reshape(2, 3).T,
        "truth": np.array([True, False]),
        "complex": np.array([1j]),
        "big endian": np.array([1, 2], ">i4"),
        "text": np.array(["ab", "ä"]),
        "../a name with anything in it.npy": np.array(3),
    }
    metadata = {"epoch": 3, "cursor": {"seen": [1, 2]}, "none": None, "nan": float("inf")}
    with Checkpointer(tmp_path) as checkpoints:
        name = checkpoints.save(values, 7, 2, metadata=metadata, metrics={"loss": np.float32(0.5)})
    loaded = Checkpointer(tmp_path).load(name)
    assert loaded is not None
    assert (name, loaded.info.order) == ("g00002-s000000007", (2, 7))
    assert loaded.info.metadata == metadata
    assert loaded.info.metrics == {"loss": 0.5}
    assert list(loaded.state) == list(values)
    for key, value in values.items():
        assert loaded.state[key].dtype == np.asarray(value).dtype, key
        np.testing.assert_array_equal(loaded.state[key], value)
    with np.load(tmp_path / loaded.info.data) as plain:
        np.testing.assert_array_equal(plain["half"], values["half"])


def test_a_copy_is_written_and_training_goes_on_meanwhile(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """All copies share the memory of the first: a save that would need a second one is skipped."""
    caplog.set_level("INFO", logger="tfring")
    asked, goes_on = threading.Event(), threading.Event()

    def lease() -> bool:
        asked.set()
        return goes_on.wait(60)

    array = np.zeros(4)
    with Checkpointer(tmp_path, lease_check=lease) as checkpoints:
        for step in range(1, 4):  # the first is being written meanwhile
            array[:] = step
            name = checkpoints.save({"a": array}, step)
            assert name == ("g00000-s000000001" if step == 1 else None)
            assert asked.wait(60)
        assert checkpoints.all() == []
        assert checkpoints.skipped == 2
        assert "step 3 is skipped, the 2. one" in caplog.text
        threading.Timer(0.1, goes_on.set).start()
        array[:] = 4
        checkpoints.save({"a": array}, 4, must=True)
        array[:] = -1
        checkpoints.wait()
        assert steps(checkpoints) == [1, 4]
    for step in (1, 4):
        loaded = checkpoints.load(f"g00000-s{step:09d}")
        assert loaded is not None
        assert (loaded.state["a"] == step).all()
    with pytest.raises(ValueError, match="closed"):
        checkpoints.save({"a": array}, 5)


@pytest.mark.parametrize(
    "bad, message",
    [
        ({"a": np.array([object()])}, "'a' has dtype object"),
        ({"a": np.zeros(2, [("x", int)])}, "only arrays of numbers"),
        ({"": np.zeros(2)}, "is no name"),
        ({"a\0b": np.zeros(2)}, "is no name"),
    ],
)
def test_what_cannot_be_kept_is_refused(tmp_path: Path, bad: Any, message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        saved(tmp_path).save(bad, 1)
    with pytest.raises(CheckpointError, match="metadata must be what JSON can hold"):
        saved(tmp_path).save({}, 1, metadata={"a": object()})
    assert files(tmp_path) == []


def test_the_last_and_the_best_are_kept(tmp_path: Path) -> None:
    checkpoints = Checkpointer(
        tmp_path, keep_last=2, keep_best=2, metric="loss", asynchronous=False
    )
    losses = [5.0, 1.0, float("nan"), 2.0, 2.0, 4.0, None, 3.0]
    for step, value in enumerate(losses):
        checkpoints.save(state(step), step, metrics={} if value is None else {"loss": value})
    assert steps(checkpoints) == [1, 4, 6, 7]
    assert len(files(tmp_path)) == 8, "two files each"
    most = Checkpointer(tmp_path, keep_last=1, keep_best=1, metric="loss", mode="max")
    with most:
        most.save(state(8), 8, metrics={"loss": 0.1})
    assert steps(most) == [7, 8]
    for options in ({"keep_last": 0}, {"keep_best": 1}, {"mode": "least"}):
        with pytest.raises(ValueError, match="="):
            Checkpointer(tmp_path, **options)
    with pytest.raises(ValueError, match="path of the folder is empty"):
        Checkpointer("")


def test_a_metric_that_is_not_there_is_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    kept = {"keep_best": 2, "metric": "val_acuracy", "asynchronous": False}
    checkpoints = Checkpointer(tmp_path, **kept)
    for step, metrics in enumerate(({}, {"val_loss": 1.0, "val_accuracy": 0.5}, {"loss": 2.0})):
        checkpoints.save(state(step), step, metrics=metrics)
    [said] = [r.getMessage() for r in caplog.records]
    assert "s000000001 is none of the best" in said
    assert "no metric 'val_acuracy'" in said
    assert "It has val_accuracy, val_loss." in said


def test_none_and_other_files(tmp_path: Path) -> None:
    empty = Checkpointer(tmp_path / "nowhere")
    assert (empty.latest(), empty.load(), empty.all()) == (None, None, [])
    for name in ("notes.txt", "g1.json", "g00001-s2.json.bak"):
        (tmp_path / name).write_text("{}")
    checkpoints = saved(tmp_path, 1, 2, keep_last=1)
    assert steps(checkpoints) == [2]
    assert len(files(tmp_path)) == 5, "other files stay"
    with pytest.raises(InvalidCheckpointError, match="a file is missing"):
        checkpoints.load("g00000-s000000001")


def test_any_flipped_bit_is_noticed_or_without_effect(tmp_path: Path) -> None:
    checkpoints = saved(tmp_path, 1)
    saved(tmp_path, 2)
    for suffix in (".npz", ".json"):
        path = file_of(tmp_path, 2, suffix)
        whole = path.read_bytes()
        noticed = 0
        for bit in range(0, 8 * len(whole), 13):
            damaged = bytearray(whole)
            damaged[bit // 8] ^= 1 << bit % 8
            path.write_bytes(damaged)
            loaded = checkpoints.load()
            assert loaded is not None
            assert_state(loaded.state, loaded.info.step)
            noticed += loaded.info.step == 1
        assert noticed > len(whole) / 4, "of 8/13 as many bits"
        path.write_bytes(whole)


def test_the_only_valid_one_is_never_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The storage loses its writes and reports success."""
    checkpoints = saved(tmp_path, 1, keep_last=1)
    real = os.replace

    def lose(source: str, target: str) -> None:
        if target.endswith(".npz"):
            size = os.stat(source).st_size
            Path(source).write_bytes(b"\0" * size)
        real(source, target)

    monkeypatch.setattr(os, "replace", lose)
    for step in (2, 3):
        with pytest.raises(OSError, match="cannot be read back"):
            saved(tmp_path, keep_last=1, timeout=0).save(state(step), step)
    monkeypatch.setattr(os, "replace", real)
    loaded = checkpoints.load()
    assert loaded is not None
    assert loaded.info.step == 1
    checkpoints.save(state(4), 4)
    assert steps(checkpoints) == [4]
    assert len(files(tmp_path)) == 2


def test_a_file_is_on_the_disk_before_it_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A test cannot cut the power; it checks the order of calls that makes this safe."""
    calls: list[tuple[str, str]] = []
    real_sync, real_replace = os.fsync, os.replace

    def sync(descriptor: int) -> None:
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        assert os.path.isdir(path) or os.stat(path).st_size > 0
        calls.append(("fsync", path))
        real_sync(descriptor)

    def replace(source: str, target: str) -> None:
        calls.append(("rename", source))
        real_replace(source, target)

    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(os, "replace", replace)
    saved(tmp_path, 1)
    assert calls[:2] == [("fsync", str(tmp_path / "g00000.owner")), ("fsync", str(tmp_path))]
    del calls[:2]  # the generation is reserved
    kinds = [kind for kind, _ in calls]
    assert kinds == ["fsync", "rename", "fsync"] * 2
    for begin, suffix in ((0, ".npz."), (3, ".json.")):
        assert suffix in calls[begin][1]
        assert calls[begin][1] == calls[begin + 1][1]
        assert calls[begin + 2][1] == str(tmp_path)


def test_who_is_killed_soon_publishes_and_does_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoints = saved(tmp_path, 1, keep_last=1)
    with monkeypatch.context() as patch:
        patch.setattr(arrays, "read", None)
        checkpoints.hurry(60)
        checkpoints.save(state(2), 2)
        assert steps(checkpoints) == [1, 2], "nothing is removed"
    checkpoints.hurry(None)
    checkpoints.save(state(3), 3)
    assert steps(checkpoints) == [3]


def test_a_copy_needs_no_new_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where names, shapes and dtypes stay the same."""
    seen = []
    real = arrays.write

    def write(stream: Any, given: Any) -> Any:
        seen.append(given["a"])
        return real(stream, given)

    monkeypatch.setattr(arrays, "write", write)
    checkpoints = Checkpointer(tmp_path, asynchronous=False)
    for step, value in enumerate((np.zeros(4), np.ones(4), np.ones(5), np.ones(5, np.float32))):
        checkpoints.save({"a": value}, step)
    assert seen[0] is seen[1]
    assert len({id(each) for each in seen[1:]}) == 3
    np.testing.assert_array_equal(seen[1], np.ones(4))


def test_a_full_disk_is_told_once_and_then_saving_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoints = saved(tmp_path, 1, asynchronous=True, timeout=0)
    checkpoints.wait(60)
    real = os.fsync

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    checkpoints.save(state(2), 2)
    with pytest.raises(OSError, match="No space left"):
        checkpoints.wait(60)
    checkpoints.wait(60)
    assert len(files(tmp_path)) == 2, "what was begun is removed: it takes up space"
    monkeypatch.setattr(os, "fsync", real)
    checkpoints.save(state(3), 3)
    checkpoints.close(60)
    assert steps(checkpoints) == [1, 3]


def test_a_storage_that_does_not_answer_blocks_nobody(tmp_path: Path) -> None:
    answers = threading.Event()
    checkpoints = Checkpointer(tmp_path, lease_check=lambda: answers.wait(60))
    checkpoints.save(state(1), 1)
    with pytest.raises(CheckpointTimeoutError, match=r"after 0.1 s checkpoint g00000-s000000001"):
        checkpoints.wait(0.1)
    with pytest.raises(CheckpointTimeoutError, match="the storage is slow"):
        checkpoints.close(0.1)
    answers.set()


def test_one_that_wakes_up_while_it_writes_wins_nothing(tmp_path: Path) -> None:
    """A newer generation publishes and cleans up after the first or after the last check."""
    new = Checkpointer(tmp_path, asynchronous=False, keep_last=1)
    looks = 0

    def lease() -> bool:
        nonlocal looks
        looks += 1
        if looks in (2, 3):  # the last check at step 100, the first one at step 101
            new.save(state(looks), looks, 2)
        return True

    old = Checkpointer(tmp_path, asynchronous=False, keep_last=1, lease_check=lease)
    for step in (100, 101):
        with pytest.raises(FencedError, match="generation 2 has published"):
            old.save(state(step), step, 1)
    for reader in (old, new):
        latest = reader.latest()
        assert latest is not None
        assert latest.order == (2, 2)
    assert len(files(tmp_path)) == 2


def test_a_checkpoint_that_may_not_appear_any_more_leaves_nothing_but_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It checks once its arrays are written: it may have been queued for long."""
    checkpoints, seen = Checkpointer(tmp_path), []

    def may_publish() -> bool:
        seen.append([Path(name).suffix for name in files(tmp_path)])
        return len(seen) == 1

    checkpoints.save(state(1), 1, may_publish=may_publish)
    checkpoints.wait()
    assert seen == [[], [".npz", ".tmp"]]  # the manifest has no name yet
    assert files(tmp_path) == []
    assert "g00000-s000000001 is not published" in caplog.text
    checkpoints.save(state(2), 2, may_publish=lambda: True)
    checkpoints.wait()
    assert steps(checkpoints) == [2]
    checkpoints.save(state(3), 3, may_publish=lambda: False)
    checkpoints.close()
    assert steps(checkpoints) == [2] and len(files(tmp_path)) == 2


@pytest.mark.parametrize("dtype", ["float4_of_next_year", "finfo"])
def test_a_dtype_that_is_not_known_here_is_said(dtype: str) -> None:
    file = io.BytesIO()
    parts = arrays.write(file, arrays.copied(state(1)))
    kernel = "model/dense/kernel"
    parts[kernel] = dataclasses.replace(parts[kernel], dtype=dtype)
    with pytest.raises(InvalidCheckpointError, match="is not known here"):
        list(arrays.read(file, parts))
