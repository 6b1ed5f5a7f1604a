"""CheckpointCallback: training goes on as if it had never stopped, and all ranks leave together."""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import threading
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from keras_cases import build_model, compiled, loss, my_data

import tfring.keras as hvd
from tfring.checkpoint import Checkpointer
from tfring.keras.callbacks import CheckpointCallback

pytestmark = pytest.mark.usefixtures("eager_functions")

STEPS, EPOCHS, PER_RANK = 5, 3, 4


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """One folder for all ranks, which only rank 0 may use."""
    return Path(hvd.broadcast_object(str(tmp_path)))


class Data(keras.utils.PyDataset):  # type: ignore[misc]
    """Batches in another order in every epoch, and the cursor that counts those trained."""

    def __init__(self) -> None:
        super().__init__()
        self._x, self._y = my_data(STEPS * PER_RANK)
        self._first = 0
        self.epoch = self.batch = 0

    def __len__(self) -> int:
        return STEPS

    def __getitem__(self, index: int) -> Any:
        order = np.random.default_rng(self.epoch).permutation(STEPS * PER_RANK)
        begin = (self._first + index) % STEPS * PER_RANK  # some are read ahead and never trained
        rows = order[begin : begin + PER_RANK]
        return self._x[rows], self._y[rows]

    def trained(self, *, epoch: bool = False) -> None:
        self.batch += 1
        if epoch:
            self.epoch, self.batch, self._first = self.epoch + 1, 0, 0

    def state_dict(self) -> dict[str, int]:
        return {"epoch": self.epoch, "batch": self.batch}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.epoch, self.batch = state["epoch"], state["batch"]
        self._first = self.batch


class Advance(keras.callbacks.Callback):  # type: ignore[misc]
    """Advances the cursor, and does something before one step of training."""

    def __init__(self, data: Data, at: int | None = None, what: Any = None) -> None:
        super().__init__()
        self._data, self._at, self._what = data, at, what
        self.steps = 0

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        if self.steps == self._at:
            self._what()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.steps += 1
        self._data.trained()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._data.trained(epoch=True)


class Crash(Exception):
    pass


def crash() -> None:
    raise Crash


def made(seed: int) -> Any:
    hvd.set_random_seed(seed)  # other dropout on each rank
    return compiled(keras.optimizers.Adam(0.05), seed, middle=[keras.layers.Dropout(0.5)])


def train(model: Any, data: Data, *callbacks: Any, epochs: int = EPOCHS) -> Any:
    first = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
    how = {"epochs": epochs, "verbose": 0, "shuffle": False}  # Data shuffles, not Keras
    return model.fit(data, callbacks=[first, *callbacks], **how)


@functools.cache
def straight() -> Any:
    """The model of a run that nothing interrupts; tests only read it."""
    model, data = made(1), Data()
    train(model, data, Advance(data))
    return model


def assert_equal(one: Any, other: Any) -> None:
    metrics = {id(v) for v in one.metrics_variables}
    pairs = [
        (a, b)
        for a, b in zip(
            (*one.variables, *one.optimizer.variables),
            (*other.variables, *other.optimizer.variables),
            strict=True,
        )
        if id(a) not in metrics
    ]
    assert len(pairs) > len(one.weights), "seeds and optimizer state are compared, too"
    for a, b in pairs:
        np.testing.assert_array_equal(a.numpy(), b.numpy(), err_msg=a.path)


def test_an_interrupted_run_ends_as_one_that_was_not(folder: Path) -> None:
    """To the bit, with steps lost between the last checkpoint and the crash."""
    saved, crashed = 7, 9
    data, model = Data(), made(1)
    checkpoints = Checkpointer(folder)
    saving = CheckpointCallback(checkpoints, every_steps=saved, every_epochs=None, cursor=data)
    with pytest.raises(Crash):
        train(model, data, Advance(data, crashed, crash), saving)
    checkpoints.close()
    hvd.barrier()
    resumed, data = made(50 + hvd.rank()), Data()
    going_on = CheckpointCallback(folder, cursor=data)
    counted = Advance(data)
    history = train(resumed, data, counted, going_on)
    position = going_on.position
    assert position is not None
    assert (position.epoch, position.batch, position.step) == (*divmod(saved, STEPS), saved)
    assert counted.steps == EPOCHS * STEPS - saved
    assert history.epoch == list(range(EPOCHS))
    before = 0 if hvd.rank() == 0 else saved // STEPS  # what was before is rank 0's on all
    losses, right = history.history["loss"], straight().history.history["loss"]
    assert losses[before:] == right[before:], "also of the epoch that was interrupted"
    assert_equal(resumed, straight())


def test_sigterm_at_one_rank_ends_all_after_the_same_step(folder: Path) -> None:
    def terminate() -> None:
        if hvd.rank() == hvd.size() - 1:
            os.kill(os.getpid(), signal.SIGTERM)

    data, model = Data(), made(1)
    callback = CheckpointCallback(folder, cursor=data)
    counted = Advance(data, 6, terminate)
    with pytest.raises(SystemExit) as left:
        train(model, data, counted, callback, epochs=1000)
    assert left.value.code == 75
    assert callback.stopped
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    steps = hvd.allgather_object(counted.steps)
    assert set(steps) == {steps[0]}
    assert steps[0] >= 7, "the step is finished"
    if hvd.rank() == 0:
        latest = Checkpointer(folder).latest()
        assert latest is not None
        assert latest.step == steps[0]
    # The next run is generation 1, ends at the same numbers, and returns where it is told to.
    if steps[0] < STEPS * EPOCHS:
        resumed, data = made(9), Data()
        train(resumed, data, Advance(data), CheckpointCallback(folder, cursor=data))
        assert_equal(resumed, straight())


def test_what_cannot_be_written_before_the_end_is_said(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The last rank's storage stands still when SIGTERM has come; all leave all the same."""
    monkeypatch.setenv("TFRING_STOP_TIMEOUT", "3")
    goes_on, last = threading.Event(), hvd.size() - 1

    def lease() -> bool:
        return hvd.rank() != last or goes_on.wait(60)

    def terminate() -> None:
        if hvd.rank() == 0:
            os.kill(os.getpid(), signal.SIGTERM)

    data, model = Data(), made(1)
    checkpoints = Checkpointer(folder, lease_check=lease)
    callback = CheckpointCallback(checkpoints, every_steps=2, cursor=data)
    with pytest.raises(SystemExit) as left:
        train(model, data, Advance(data, 4, terminate), callback, epochs=1000)
    assert left.value.code == 75
    said = [r.getMessage() for r in caplog.records if "is killed soon" in r.getMessage()]
    assert len(said) == (1 if hvd.rank() == 0 else 0)
    assert all(f"rank {last} has not written" in line and "s000000002" in line for line in said)
    goes_on.set()
    checkpoints.close()


@pytest.mark.parametrize("second, restore", [("", False), ("more", True)])
def test_a_second_callback_may_only_save_elsewhere(
    folder: Path, second: str, restore: bool
) -> None:
    """Two that restore begin with the weights of one and the data of the other."""
    both = [CheckpointCallback(folder), CheckpointCallback(folder / second, restore=restore)]
    with pytest.raises(ValueError, match=r"two CheckpointCallbacks, for .*another folder"):
        train(made(1), Data(), *both)


def test_fit_returns_after_request_stop(folder: Path) -> None:
    data, model = Data(), made(1)
    checkpoints = Checkpointer(folder)
    callback = CheckpointCallback(checkpoints, at_sigterm="return", generation=lambda: 7)
    stop = callback.request_stop if hvd.rank() == 0 else lambda: None
    train(model, data, Advance(data, 1, stop), callback, epochs=1000)
    assert callback.stopped
    if hvd.rank() == 0:
        info = checkpoints.latest()
        assert info is not None
        assert info.generation == 7
        assert len(checkpoints.all()) <= 4


def test_checkpoints_by_time_and_by_epoch(folder: Path) -> None:
    kept = {"keep_last": 100, "keep_best": 1, "metric": "loss"}
    checkpoints = Checkpointer(folder, asynchronous=False, **kept)
    data, model = Data(), made(1)
    often = CheckpointCallback(
        checkpoints, every_seconds=1e-9, every_epochs=2, values=lambda: {"note": "mine"}
    )
    train(model, data, Advance(data), often)
    if hvd.rank() == 0:
        saved = {info.step: info for info in checkpoints.all()}
        assert {1, 2 * STEPS, 3 * STEPS} <= set(saved), "the first step by time, epochs, the end"
        assert saved[2 * STEPS].metrics["loss"] > 0
    restored = hvd.restore_checkpoint(folder, made(3))
    assert restored is not None
    assert restored.values == {"note": "mine"}


def test_a_loop_of_ones_own(folder: Path) -> None:
    """Optimizer and model that know nothing of each other, with other numbers in their names."""
    hvd.set_random_seed(2)

    def parts(seed: int) -> tuple[Any, Any]:
        model, optimizer = build_model(seed), keras.optimizers.SGD(0.1, momentum=0.9)
        return model, optimizer

    model, optimizer = parts(1)
    optimizer.build(model.trainable_variables)
    x, y = my_data(1)
    computed = loss()(y, model(x))
    assert float(computed) > 0
    optimizer.apply([np.ones(v.shape, "float32") for v in model.trainable_variables])
    cursor = Data()
    cursor.epoch = hvd.rank()  # each rank has its own
    with Checkpointer(folder, asynchronous=False) as checkpoints:  # none takes another's place
        hvd.save_checkpoint(
            checkpoints, model, step=3, epoch=1, batch=2, optimizer=optimizer, cursor=cursor
        )
        hvd.save_checkpoint(checkpoints, model, step=4, optimizer=optimizer, values={"a": [1]})
    hvd.barrier()
    other, unbuilt = parts(70 + hvd.rank())
    place = folder if hvd.rank() == 0 else Path("no such folder")
    name = "g00000-s000000003"
    read = Data()
    position = hvd.restore_checkpoint(place, other, name=name, optimizer=unbuilt, cursor=read)
    assert position is not None
    assert (position.epoch, position.batch, position.step) == (1, 2, 3)
    assert read.epoch == hvd.rank()
    for a, b in zip(optimizer.variables, unbuilt.variables, strict=True):
        np.testing.assert_array_equal(a.numpy(), b.numpy())
    np.testing.assert_array_equal(model.get_weights()[0], other.get_weights()[0])
    with pytest.warns(UserWarning, match="no data cursor"):
        newest = hvd.restore_checkpoint(place, other, optimizer=unbuilt, cursor=read)
    assert newest is not None
    assert newest.values == {"a": [1]}


def test_what_cannot_be_saved_or_restored_fails_on_every_rank(folder: Path) -> None:
    model = made(1)
    assert hvd.restore_checkpoint(folder, model) is None
    checkpoints = Checkpointer(folder, asynchronous=False)
    with pytest.raises(RuntimeError, match=r"rank 0 cannot save to .*values must be"):
        hvd.save_checkpoint(checkpoints, model, step=1, values={"a": object()})
    hvd.save_checkpoint(checkpoints, model, step=1)
    other = keras.Sequential([keras.layers.Input((8,)), keras.layers.Dense(3)])
    other.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse")
    with pytest.raises(RuntimeError, match=r"rank 0 cannot go on from .* of a different model"):
        hvd.restore_checkpoint(folder, other)
    with pytest.raises(RuntimeError, match=r"cannot go on from .* has no weights yet"):
        hvd.restore_checkpoint(folder, keras.Sequential([keras.layers.Dense(3)]))
    assert hvd.restore_checkpoint(folder / "none", keras.Sequential()) is None
    with pytest.raises(ValueError, match="every_steps=0"):
        CheckpointCallback(folder, every_steps=0)
    with pytest.raises(TypeError, match="needs a Checkpointer, which you make once"):
        hvd.save_checkpoint(folder, model, step=1)
    with pytest.raises(TypeError, match="'float' object cannot be interpreted as an integer"):
        hvd.save_checkpoint(checkpoints, model, step=1.5)
    hvd.save_checkpoint(checkpoints, model, step=model.optimizer.iterations)
    assert checkpoints.saved is None or checkpoints.saved[1] == 0
    if hvd.rank() == 0:  # an older tfring had a list there
        older = {"tfring": {"epoch": 0, "batch": 0, "ranks": [{"seeds": []}]}}
        checkpoints.save({}, step=2, metadata=older)
    hvd.barrier()
    with pytest.raises(RuntimeError, match="or by an older tfring"):
        hvd.restore_checkpoint(folder, model)


def test_a_lost_lease_ends_training_on_all_ranks(folder: Path) -> None:
    checkpoints = Checkpointer(folder, lease_check=lambda: False)
    data, model = Data(), made(1)
    with pytest.raises(RuntimeError, match=r"rank 0 cannot save to .* lost its lease"):
        train(model, data, Advance(data), CheckpointCallback(checkpoints, every_steps=1))


def beginnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What was logged of how training begins since the last call."""
    said = [r.getMessage() for r in caplog.records if "training " in r.getMessage()]
    caplog.clear()
    return said


def test_a_line_says_what_training_begins_with(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="tfring")
    lines = 1 if hvd.rank() == 0 else 0
    data = Data()
    with pytest.raises(RuntimeError, match=r"finds no checkpoint in .*mounted"):
        train(made(1), data, CheckpointCallback(folder / "new", restore="required"))
    assert not (folder / "new").exists()
    train(made(1), data, CheckpointCallback(folder / "new"), epochs=1)
    anew = f"there is no checkpoint in {folder / 'new'}: training begins anew"
    assert beginnings(caplog) == [anew] * lines
    train(made(1), data, CheckpointCallback(folder / "new", restore="required"), epochs=2)
    goes_on = (
        f"training goes on from checkpoint g00000-s{STEPS:09d} in {folder / 'new'}: step {STEPS}, "
        "epoch 2, from its beginning"
    )
    assert beginnings(caplog) == [goes_on] * lines
    with pytest.raises(ValueError, match="restore='must'"):
        CheckpointCallback(folder, restore="must")


def test_a_folder_that_cannot_be_written_ends_fit_before_it_trains(folder: Path) -> None:
    data, model = Data(), made(1)
    counted = Advance(data)
    for restore in (True, False):
        callback = CheckpointCallback("/proc/no/folder", every_epochs=None, restore=restore)
        with pytest.raises(RuntimeError, match=r"rank 0 cannot save to /proc/no/folder"):
            train(model, data, counted, callback)
    assert counted.steps == 0


def test_keras_2_goes_on_within_an_epoch_by_a_cursor(folder: Path) -> None:
    tf_keras = pytest.importorskip("tf_keras")

    class Sequence(tf_keras.utils.Sequence):  # type: ignore[misc]
        """Batches in another order in every epoch, which begin where the cursor is."""

        def __init__(self) -> None:
            self.cursor = Data()

        def __len__(self) -> int:
            return STEPS

        def __getitem__(self, index: int) -> Any:
            return self.cursor[index]

    class Steps(Advance, tf_keras.callbacks.Callback):  # type: ignore[misc]
        """Of Keras 2."""

    def life(crashes: int | None, *callbacks: Any) -> tuple[Any, int]:
        tf_keras.utils.set_random_seed(3)
        model = tf_keras.Sequential([tf_keras.Input((8,)), tf_keras.layers.Dense(3)])
        optimizer = hvd.DistributedOptimizer(tf_keras.optimizers.Adam(0.01))
        model.compile(optimizer, tf_keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        data = Sequence()
        steps = Steps(data.cursor, crashes, crash)
        saving = [each(cursor=data.cursor) for each in callbacks]
        how = {"epochs": EPOCHS, "shuffle": False, "verbose": 0}
        with contextlib.suppress(Crash):
            model.fit(data, callbacks=hvd.fit_callbacks(steps, *saving), **how)
        return model, steps.steps

    checkpoints = Checkpointer(folder, asynchronous=False)
    saving = functools.partial(CheckpointCallback, checkpoints, every_steps=2)
    life(STEPS + 3, saving)
    hvd.barrier()
    resumed, steps = life(None, saving)
    straight, _ = life(None)
    assert steps == (EPOCHS - 1) * STEPS - 3
    for one, other in zip(resumed.get_weights(), straight.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)


def test_keras_2_goes_on_with_the_next_epoch(folder: Path) -> None:
    tf_keras = pytest.importorskip("tf_keras")

    class Steps(tf_keras.callbacks.Callback):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.seen: list[Any] = []

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            self.seen.append(epoch)

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            self.seen.append("step")

    def life(epochs: int, **more: Any) -> tuple[Any, Any]:
        tf_keras.utils.set_random_seed(3)
        layers = [tf_keras.Input((8,)), tf_keras.layers.Dense(3)]
        model = tf_keras.Sequential(layers)
        optimizer = hvd.DistributedOptimizer(tf_keras.optimizers.Adam(0.01))
        model.compile(optimizer, tf_keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        steps, (x, y) = Steps(), my_data(4)
        callbacks = [*hvd.fit_callbacks(checkpoint=folder, **more), steps]
        model.fit(x, y, batch_size=6, epochs=epochs, shuffle=False, verbose=0, callbacks=callbacks)
        return model, steps.seen

    life(1)
    resumed, seen = life(3, restore="required")
    assert seen == [1, *["step"] * 4, 2, *["step"] * 4]
    straight, seen = life(3, restore=False)
    assert seen[0] == 0
    for one, other in zip(resumed.get_weights(), straight.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)
    assert len(resumed.fit(*my_data(4), verbose=0).epoch) == 1, (
        "a later fit begins where it is told"
    )
