"""fit_callbacks: the right order, files by rank 0 alone, and ranks that resume together."""

from __future__ import annotations

import sys
import types
import warnings
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from keras_cases import assert_same_on_all_ranks, compiled, fit, my_data

import tfring.keras as hvd
from tfring.checkpoint import Checkpointer
from tfring.collectives.objects import allgather_object

pytestmark = pytest.mark.usefixtures("eager_functions")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """One folder for all ranks, which only rank 0 may use."""
    return Path(hvd.broadcast_object(str(tmp_path)))


class Seen(keras.callbacks.Callback):  # type: ignore[misc]
    """Notes the epochs, what the metrics were, and the rate of the first batch of each epoch."""

    def __init__(self) -> None:
        super().__init__()
        self.epochs: list[int] = []
        self.losses: list[float] = []
        self.rates: list[float] = []

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        if batch == 0:
            self.rates.append(float(self.model.optimizer.learning_rate))

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.epochs.append(epoch)
        self.losses.append(logs["loss"])


class Board(keras.callbacks.Callback):  # type: ignore[misc]
    """Stands where TensorBoard is, which may not be installed, and writes what it would."""

    def __init__(self, log_dir: Any) -> None:
        super().__init__()
        self.log_dir = Path(log_dir)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.log_dir.mkdir(exist_ok=True)
        (self.log_dir / f"epoch {epoch}").write_text(str(logs["loss"]))


def momentum() -> Any:
    return keras.optimizers.SGD(0.08, momentum=0.9)


def test_own_callbacks_see_means_and_rank_0_writes(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard", types.ModuleType("tensorboard"))
    monkeypatch.setattr(keras.callbacks, "TensorBoard", Board)
    seen = Seen()
    logs, state = folder / "logs", folder / "state"
    callbacks = hvd.fit_callbacks(seen, log_dir=logs, checkpoint=state, warmup=2)
    names = [type(callback).__name__ for callback in callbacks if not isinstance(callback, Board)]
    broadcast, average = "BroadcastGlobalVariablesCallback", "MetricAverageCallback"
    ours = [broadcast, "_Warmup", "Writers", "BatchNormAverageCallback", average]
    assert names == [*ours, "Seen", "CheckpointCallback"]
    model = compiled(momentum(), seed=hvd.rank())
    fit(model, *callbacks, epochs=3)
    assert len({tuple(each) for each in hvd.allgather_object(seen.losses)}) == 1
    size, steps = hvd.size(), 3
    first = 0.08 * ((1 / steps) * (size - 1) / 2 + 1) / size
    assert seen.rates[0] == pytest.approx(first)
    assert seen.rates[2] == pytest.approx(0.08)
    assert_same_on_all_ranks(model)
    if hvd.rank() == 0:
        assert (logs / "epoch 2").read_text() == str(seen.losses[2])
        assert [info.metadata["tfring"]["epoch"] for info in Checkpointer(state).all()] == [1, 2, 3]


def test_without_tensorboard(monkeypatch: pytest.MonkeyPatch) -> None:
    if hvd.rank() == 0:
        monkeypatch.setitem(sys.modules, "tensorboard", None)
    with pytest.raises(ImportError, match="on rank 0: pip install tensorboard"):
        hvd.fit_callbacks(log_dir="logs")


def test_ranks_resume_together_and_end_as_if_nothing_had_happened(folder: Path) -> None:
    straight = compiled(momentum(), seed=1)
    fit(straight, *hvd.fit_callbacks(warmup=4), epochs=4)

    def run(epochs: int, seed: int) -> tuple[Any, Seen]:
        seen, model = Seen(), compiled(momentum(), seed=seed)
        # The other ranks find nothing where they look.
        place = folder / "state" if hvd.rank() == 0 else Path("no such folder")
        fit(model, *hvd.fit_callbacks(seen, checkpoint=place, warmup=4), epochs=epochs)
        return model, seen

    run(2, seed=1)
    resumed, seen = run(4, seed=50 + hvd.rank())
    assert seen.epochs == [2, 3]
    for a, b in zip(resumed.get_weights(), straight.get_weights(), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    assert not Path("no such folder").exists()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        again, seen = run(4, seed=9)
    assert seen.epochs == []
    told = [w for w in caught if "nothing to do" in str(w.message)]
    assert len(told) == (hvd.rank() == 0), "fit would return without a word"
    np.testing.assert_array_equal(again.get_weights()[0], resumed.get_weights()[0])
    assert len(fit(again, *hvd.fit_callbacks(), epochs=1).epoch) == 1, "it remembers the last fit"


def test_wrong_arguments_are_refused(folder: Path) -> None:
    with pytest.raises(ValueError, match="warmup=-1"):
        hvd.fit_callbacks(warmup=-1)
    with pytest.raises(ValueError, match="every_seconds=-1"):
        hvd.fit_callbacks(checkpoint=folder, every_seconds=-1)


class Counted(keras.callbacks.ModelCheckpoint):  # type: ignore[misc]
    """Counts what it writes."""

    written = 0

    def _save_model(self, *args: Any, **kwargs: Any) -> Any:
        self.written += 1
        return super()._save_model(*args, **kwargs)


@pytest.mark.parametrize("own", [False, True])
def test_one_rank_writes_a_file_that_several_have_named(
    several: int, tmp_path: Path, own: bool
) -> None:
    folder = Path(allgather_object(str(tmp_path))[0])
    name = f"-{hvd.rank()}" if own else ""
    saver = Counted(str(folder / f"model{name}.weights.h5"), save_weights_only=True)
    log = keras.callbacks.CSVLogger(str(folder / f"log{name}.csv"))
    model = compiled(keras.optimizers.SGD(0.01))
    fit(model, *hvd.fit_callbacks(saver, log), epochs=2)
    assert saver.written == (2 if own or hvd.rank() == 0 else 0)
    assert len(Path(log.filename).read_text().splitlines()) == 3


class Meets(keras.callbacks.ModelCheckpoint):  # type: ignore[misc]
    """Does what all ranks have to do."""

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if hvd.rank() == 0:
            super().on_epoch_end(epoch, logs)
        hvd.barrier()


def test_a_callback_with_a_method_of_its_own_is_left_alone(several: int, tmp_path: Path) -> None:
    path = Path(allgather_object(str(tmp_path))[0]) / "model.weights.h5"
    model = compiled(keras.optimizers.SGD(0.01))
    fit(model, *hvd.fit_callbacks(Meets(str(path), save_weights_only=True)), epochs=2)
    assert path.exists()


def test_two_ranks_that_back_up_into_one_folder_are_named(several: int, tmp_path: Path) -> None:
    folder = allgather_object(str(tmp_path))[0]
    model = compiled(keras.optimizers.SGD(0.01))
    text = "BackupAndRestore of ranks 0 and 1 would both write to "
    with pytest.raises(RuntimeError, match=text):
        fit(model, *hvd.fit_callbacks(keras.callbacks.BackupAndRestore(folder)), epochs=2)


@pytest.mark.any_ranks
def test_a_loss_that_is_nan_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    model = compiled(keras.optimizers.SGD(0.01))
    x, y = my_data(3)
    fit(model, *hvd.fit_callbacks(), data=(x * np.nan, y), epochs=3)
    texts = [text for text in caplog.messages if "became NaN in step 1 of epoch 1" in text]
    assert len(texts) == (hvd.rank() == 0)
    assert all("TFRING_CHECK_VALUES=error" in text for text in texts)


def test_a_learning_rate_that_is_lost_is_said_once(
    several: int, caplog: pytest.LogCaptureFixture
) -> None:
    model = compiled(keras.optimizers.SGD(0.01 if hvd.rank() == 0 else 0.02))
    fit(model, *hvd.fit_callbacks())
    fit(model, *hvd.fit_callbacks())
    texts = [text for text in caplog.messages if "learning rate" in text]
    assert len(texts) == (hvd.rank() == 0)
    ranks = "1 rank has" if several == 2 else f"{several - 1} ranks have"
    said = f"{ranks} another learning rate than rank 0 (rank 1: 0.02). All ranks now use rank 0's, "
    assert all(text.startswith(said) for text in texts)


@pytest.mark.parametrize("more", ["units", "layer"])
def test_another_model_on_a_rank_is_named_before_the_first_step(several: int, more: str) -> None:
    odd = hvd.rank() == several - 1
    layers = [keras.layers.Dense(4 if odd and more == "units" else 3)]
    layers += [keras.layers.Dense(3)] * (odd and more == "layer")
    model = keras.Sequential([keras.Input((3,)), *layers, keras.layers.Dense(1)])
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.01)), "mse")
    with pytest.raises(RuntimeError) as refused:
        fit(model, *hvd.fit_callbacks())
    what, do = str(refused.value).splitlines()
    assert what.startswith(f"Rank {several - 1} builds another model than rank 0: weight ")
    assert "kernel' of float32" in what and "hvd.rank()" in do
