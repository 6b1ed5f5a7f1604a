"""Checkpoints of several ranks: who writes and reads which share, and what one rank may hold up."""

from __future__ import annotations

import errno
import socket
import threading
import time
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from keras_cases import compiled, my_data

import tfring.keras as hvd
from tfring.checkpoint import Checkpointer
from tfring.checkpoint.folders import LocalFolder
from tfring.keras.callbacks import CheckpointCallback

pytestmark = pytest.mark.usefixtures("eager_functions")

STEPS, PER_RANK = 5, 4


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """One folder for all ranks, which only rank 0 may use."""
    return Path(hvd.broadcast_object(str(tmp_path)))


def made(seed: int) -> Any:
    hvd.set_random_seed(seed)  # other dropout on each rank
    return compiled(keras.optimizers.Adam(0.05), seed, middle=[keras.layers.Dropout(0.5)])


def check_restored(place: Path, model: Any, step: int) -> None:
    other = made(70 + hvd.rank())
    position = hvd.restore_checkpoint(place, other)
    assert position is not None
    assert position.step == step
    for a, b in zip(model.get_weights(), other.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("seen_by_all", [True, False])
def test_ranks_that_see_the_folder_write_and_read_shares(
    folder: Path, seen_by_all: bool, tmp_path: Path
) -> None:
    """A folder of the same name on another host is another one."""
    mine = hvd.rank() == 0 or seen_by_all
    place = folder if mine else tmp_path / "mine"
    model = made(1)
    model.optimizer.build(model.trainable_variables)
    with Checkpointer(place) as checkpoints:
        hvd.save_checkpoint(checkpoints, model, step=3)
    hvd.barrier()
    assert place.exists() == mine
    if hvd.rank() == 0:
        info = checkpoints.latest()
        assert info is not None
        assert info.shares == (hvd.size() if seen_by_all else 1)
        shared = [checkpoints.read(info, [name]) for name in checkpoints.parts(info)]
        assert len(shared) > 4 and all(len(each) == 1 for each in shared)
        assert not [path for path in folder.iterdir() if "s000000000" in path.name], "no sign"
    check_restored(place, model, 3)
    check_restored(folder if hvd.rank() == 0 else Path("no such folder"), model, 3)
    check_restored(folder, model, 3)


def test_ranks_with_other_numbers_of_batches_write_one_checkpoint(folder: Path) -> None:
    """Each has trained other numbers of steps; the checkpoint is named by those of rank 0."""
    rows = (2 + hvd.rank()) * PER_RANK
    used = [hvd.callbacks.JoinCallback(), CheckpointCallback(folder)]
    model = made(1)
    x, y = my_data(STEPS * PER_RANK)
    model.fit(x[:rows], y[:rows], batch_size=PER_RANK, epochs=2, verbose=0, callbacks=used)
    check_restored(folder, model, step=4)


def test_the_same_step_again_is_written_by_rank_0(folder: Path) -> None:
    """Its manifest takes the place of the older one by one rename."""
    model = made(1)
    checkpoints = Checkpointer(folder, asynchronous=False)
    for value in ("first", "second"):
        hvd.save_checkpoint(checkpoints, model, step=3, values={"which": value})
    hvd.barrier()
    if hvd.rank() == 0:
        info = checkpoints.latest()
        assert info is not None
        assert info.shares == 1
    position = hvd.restore_checkpoint(checkpoints, made(2))
    assert position is not None
    assert position.values == {"which": "second"}
    check_restored(folder, model, 3)


def test_what_one_rank_finds_damaged_is_passed_over_by_all(folder: Path) -> None:
    checkpoints = Checkpointer(folder, asynchronous=False)
    models = {step: made(step) for step in (1, 2)}
    for step, model in models.items():
        hvd.save_checkpoint(checkpoints, model, step=step)
    hvd.barrier()
    if hvd.rank() == 0:
        for path in folder.glob("*-s000000002-*.npz"):
            content = bytearray(path.read_bytes())
            content[len(content) // 2] ^= 1
            path.write_bytes(content)
    hvd.barrier()
    check_restored(folder, models[1], 1)
    with pytest.raises(RuntimeError, match=r"rank 0 cannot go on from .*s000000002"):
        hvd.restore_checkpoint(folder, made(3), name=f"g{0:05d}-s{2:09d}")


def test_what_comes_while_one_rank_writes_is_skipped_on_all(folder: Path) -> None:
    goes_on = threading.Event()

    def lease() -> bool:
        return hvd.rank() != 0 or goes_on.wait(60)

    asked = []

    class Asked(keras.callbacks.Callback):  # type: ignore[misc]
        def state_dict(self) -> dict[str, Any]:
            asked.append(self)
            return {}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            pass

    checkpoints, model = Checkpointer(folder, lease_check=lease), made(1)
    saved = [
        hvd.save_checkpoint(checkpoints, model, step=step, callbacks=[Asked()]) for step in (1, 2)
    ]
    assert saved == [True, False]
    assert len(asked) == (1 if hvd.rank() == 0 else 0), "nobody is asked for what is skipped"
    goes_on.set()
    assert hvd.save_checkpoint(checkpoints, model, step=3, must=True)
    checkpoints.close()
    hvd.barrier()
    assert [info.step for info in checkpoints.all()] == [1, 3]
    assert checkpoints.skipped == 1


class Breaking(LocalFolder):
    """A folder whose mount may break for writing."""

    broken = False

    def _write(self, *given: Any) -> None:
        if self.broken:
            raise OSError(errno.EIO, "Input/output error")
        super()._write(*given)


@pytest.mark.skipif("hvd.size() == 1", reason="nobody else can write")
@pytest.mark.parametrize("breaks", [0, -1])
def test_while_one_ranks_storage_fails_the_others_write_its_share(
    folder: Path, breaks: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("tfring.checkpoint.retries.FIRST_DELAY", 0.01)
    mine = hvd.rank() == breaks % hvd.size()
    model, storage, stopping = made(1), Breaking(str(folder)), keras.callbacks.EarlyStopping()
    stopping.wait = 7 + hvd.rank()

    def save(step: int) -> Any:
        more = {"values": {"of": hvd.rank()}, "callbacks": [stopping]}
        assert hvd.save_checkpoint(checkpoints, model, step=step, **more)
        checkpoints.wait()
        hvd.barrier()
        return checkpoints.latest()

    with Checkpointer(folder, timeout=60) as checkpoints:
        checkpoints._files.folder = storage
        assert save(1).shares == hvd.size()
        storage.broken = mine
        hvd.save_checkpoint(checkpoints, model, step=2)  # which nobody can know
        while mine and not checkpoints.trouble:
            time.sleep(0.01)
        if not mine:
            checkpoints.wait()
        hvd.barrier()
        for step in (3, 4):
            found = save(step)
            assert (found.step, found.shares) == (step, hvd.size() - 1)
        check_restored(folder, model, 4)
        position = hvd.restore_checkpoint(folder, model)
        assert position is not None
        assert position.values == {"of": 0}
        assert position.memory.states["EarlyStopping(val_loss)/0"]["wait"] == {"value": 7}
        storage.broken = False
        while checkpoints.trouble:
            time.sleep(0.01)
        hvd.barrier()
        assert save(5).shares == hvd.size()
    said = [r.getMessage() for r in caplog.records if "The other ranks write" in r.getMessage()]
    assert len(said) == int(mine)
    assert all(
        f"rank {hvd.rank()} (host {socket.gethostname()}) cannot write to {folder}: OSE" in line
        for line in said
    )
