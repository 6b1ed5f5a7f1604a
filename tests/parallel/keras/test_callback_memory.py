"""What callbacks remember, and what optimizers have accumulated, outlives a restart."""

from __future__ import annotations

import contextlib
import os
import random
import re
import signal
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras_cases import PER_RANK, build_model, compiled, loss, my_data, whole_data

import tfring.keras as hvd
from tfring.checkpoint import Checkpointer, CheckpointError
from tfring.data import policies
from tfring.data.elastic_dataset import ElasticDataset
from tfring.keras.callbacks import CheckpointCallback

pytestmark = pytest.mark.usefixtures("eager_functions")

# The best epoch is the third. Training stops after the eighth, five epochs later.
SCRIPT = [1.0, 0.5, 0.1, *(0.2 + 0.01 * i for i in range(20))]
EPOCHS, BEST, LAST = 10, 3, 8
STEPS, TO_TRAIN = 6, 3


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """One folder for all ranks, which only rank 0 may use."""
    return Path(hvd.broadcast_object(str(tmp_path)))


class Scripted(keras.callbacks.Callback):  # type: ignore[misc]
    """Gives each epoch its val_loss, and crashes when an epoch begins."""

    def __init__(self, crash: int | None = None) -> None:
        super().__init__()
        self._crash = crash

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        if epoch == self._crash:
            raise Crash

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        logs["val_loss"] = SCRIPT[epoch]
        logs["recalls"] = np.array([0.25, 0.5])  # as F1Score(average=None) gives: one per class


class Crash(Exception):
    pass


class Counts(keras.callbacks.Callback):  # type: ignore[misc]
    """Says what it remembers."""

    def __init__(self) -> None:
        super().__init__()
        self.epochs, self.sums, self.seen = 0, np.zeros(2, ">f4"), [np.zeros(3)]
        self.names = np.array(["none"])

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.epochs += 1
        self.sums += epoch
        self.seen[0][0] = epoch
        self.names = np.array(["val_loss", str(epoch)])

    def state_dict(self) -> dict[str, Any]:
        arrays = {"sums": self.sums, "seen": self.seen, "names": self.names}
        return {"epochs": np.int64(self.epochs), **arrays}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.epochs, self.sums, self.seen = state["epochs"], state["sums"], state["seen"]
        self.names = state["names"]


class Forgets(keras.callbacks.Callback):  # type: ignore[misc]
    """Has something to remember, and does not say it."""

    def __init__(self) -> None:
        super().__init__()
        self.mine = 1


def by_callback(model: Any, folder: Path | None, callbacks: list[Any]) -> Any:
    saving = [] if folder is None else [CheckpointCallback(folder)]
    return by_fit(model, [*saving, *callbacks])  # which Keras calls last all the same


def by_fit(model: Any, callbacks: list[Any], epochs: int = EPOCHS) -> Any:
    x, y = my_data(2)
    how = {"batch_size": PER_RANK, "shuffle": False, "verbose": 0, "epochs": epochs}
    return model.fit(x, y, callbacks=callbacks, **how)


def by_elastic(model: Any, folder: Path | None, callbacks: list[Any]) -> Any:
    x, y = my_data(2)
    data = ElasticDataset(lambda rows: (x[rows], y[rows]), len(x), policies.Policy(6))
    return hvd.elastic.fit(
        model, data, epochs=EPOCHS, callbacks=callbacks, checkpoint=folder, verbose=0
    )


Life = Callable[[Any, Path | None, list[Any]], Any]


def remembered(life: Life, folder: Path | None, best: Path, crash: int | None = None) -> Any:
    """One life of a job; returns what its callbacks know at its end, and the weights."""
    hvd.set_random_seed(3)
    model = compiled(keras.optimizers.SGD(0.1, momentum=0.9), 1)
    stop = keras.callbacks.EarlyStopping("val_loss", patience=5, restore_best_weights=True)
    plateau = keras.callbacks.ReduceLROnPlateau("val_loss", patience=4, factor=0.1)
    saves = [keras.callbacks.ModelCheckpoint(best, "val_loss", save_best_only=True)]
    counts = Counts()
    mine = [Scripted(crash), stop, plateau, *(saves if hvd.rank() == 0 else []), counts]
    history = life(model, folder, mine)
    return (
        [stop.best, stop.wait, stop.stopped_epoch, stop.best_epoch],
        [plateau.best, plateau.wait, plateau.cooldown_counter],
        float(model.optimizer.learning_rate),
        [saves[0].best] if hvd.rank() == 0 else [],
        [counts.epochs, counts.sums.tolist(), [each.tolist() for each in counts.seen]],
        counts.names.tolist(),
        [history.epoch, history.history["val_loss"]],
        [weight.tolist() for weight in model.get_weights()],
    )


@pytest.mark.parametrize("life", [by_callback, by_elastic])
def test_a_worse_model_does_not_take_the_place_of_the_best(folder: Path, life: Life) -> None:
    """And training ends as it would have without the crash in the sixth epoch."""
    straight = remembered(life, None, folder / "straight.keras")
    with pytest.raises(Crash):
        remembered(life, folder, folder / "best.keras", crash=5)
    hvd.barrier()
    resumed = remembered(life, folder, folder / "best.keras")
    assert resumed == straight
    again = remembered(life, folder, folder / "best.keras")
    assert again == straight, "training that a callback has ended is over"
    assert straight[0] == [SCRIPT[BEST - 1], 5, LAST - 1, BEST - 1]
    if hvd.rank() == 0:
        of_both = [
            keras.models.load_model(folder / f"{name}.keras", compile=False).get_weights()
            for name in ("straight", "best")
        ]
        for one, other in zip(*of_both, strict=True):
            np.testing.assert_array_equal(one, other)
    hvd.barrier()


class TimeIsUp(keras.callbacks.Callback):  # type: ignore[misc]
    """Ends `fit` after some steps, or after an epoch, and counts the steps."""

    def __init__(self, steps: int = 0, epoch: int | None = None) -> None:
        super().__init__()
        self._steps, self._epoch = steps, epoch
        self.steps = 0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.steps += 1
        self.model.stop_training |= self.steps == self._steps

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.model.stop_training |= epoch == self._epoch


def test_a_limit_of_time_is_not_the_end_of_training(folder: Path) -> None:
    for first in (TimeIsUp(epoch=2), TimeIsUp()):
        history = by_callback(compiled(keras.optimizers.SGD(0.1), 1), folder, [first])
        hvd.barrier()
    assert history.epoch == list(range(EPOCHS))


def test_training_goes_on_within_the_epoch_in_which_a_callback_has_ended_it(folder: Path) -> None:
    after = 4

    def life(place: Path, after: int) -> tuple[Any, ...]:
        model, stops = compiled(keras.optimizers.Adam(0.05), 1), TimeIsUp(after)
        data = hvd.shard(whole_data(STEPS), PER_RANK, seed=3)
        callbacks = hvd.fit_callbacks(CheckpointCallback(place), stops)
        history = model.fit(data, callbacks=callbacks, epochs=2, shuffle=False, verbose=0)
        return stops.steps, history.epoch, history.history["loss"], model.get_weights()

    straight = life(folder / "straight", 0)
    assert straight[:2] == (2 * STEPS, [0, 1])
    assert life(folder / "stopped", after)[0] == after
    hvd.barrier()
    steps, *resumed = life(folder / "stopped", 0)
    assert steps == 2 * STEPS - after
    assert resumed[:2] == list(straight[1:3])
    for one, other in zip(resumed[2], straight[3], strict=True):
        np.testing.assert_array_equal(one, other)


class Diverges(keras.callbacks.Callback):  # type: ignore[misc]
    """Makes the weights nan when an epoch begins."""

    def __init__(self, epoch: int) -> None:
        super().__init__()
        self._epoch = epoch

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        if epoch == self._epoch:
            self.model.set_weights([weight * np.nan for weight in self.model.get_weights()])


@pytest.mark.parametrize("life", [by_callback, by_elastic])
def test_what_has_diverged_takes_the_place_of_no_checkpoint(folder: Path, life: Life) -> None:
    """Training goes on before it, when it is started again."""
    model = compiled(keras.optimizers.SGD(0.1), 1)
    with warned_of("loss that is nan or inf, of which no checkpoint"):
        life(model, folder, [Diverges(2), keras.callbacks.TerminateOnNaN()])
    assert np.isnan(model.get_weights()[0]).all()
    hvd.barrier()
    position = hvd.restore_checkpoint(folder, model)
    assert position is not None
    assert not position.stopped
    assert (position.epoch, position.batch) == (2, 0)
    assert all(np.isfinite(weight).all() for weight in model.get_weights())


def warned_of(text: str) -> Any:
    """Rank 0 warns of it, and it alone."""
    return pytest.warns(UserWarning, match=text) if hvd.rank() == 0 else contextlib.nullcontext()


def test_callbacks_that_forget_are_named(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    def life(*callbacks: Any) -> None:
        model = compiled(keras.optimizers.SGD(0.1), 1)
        by_fit(model, hvd.fit_callbacks(*callbacks, checkpoint=folder), epochs=1)

    stateless = keras.callbacks.TerminateOnNaN()
    life(Forgets(), stateless)
    caplog.clear()
    late = keras.callbacks.ReduceLROnPlateau("loss", patience=50)
    with warned_of("nothing to do"):
        life(Forgets(), stateless, late)
    said = [record.getMessage() for record in caplog.records if "has no state of" in record.message]
    assert len(said) == (hvd.rank() == 0)
    assert all("them: Forgets/0, ReduceLROnPlateau(loss)/0.\n" in text for text in said)


def test_what_cannot_be_kept_is_an_error_on_all_ranks(folder: Path) -> None:
    class Wrong(Counts):
        def state_dict(self) -> dict[str, Any]:
            return {"what": object()}

    model = compiled(keras.optimizers.SGD(0.1), 1)
    with pytest.raises(RuntimeError, match=r"rank 0 cannot save to .*of the callback Wrong/0 must"):
        by_fit(model, hvd.fit_callbacks(Wrong(), checkpoint=folder))


def test_callbacks_are_known_by_what_they_monitor(folder: Path) -> None:
    """The best accuracy is no bound for a loss: the best model would never be saved again."""

    def life(*monitors: str) -> list[float]:
        stops = [keras.callbacks.EarlyStopping(each, mode="max") for each in monitors]
        model = compiled(keras.optimizers.SGD(0.0), 1)
        by_fit(model, hvd.fit_callbacks(Scripted(), *stops, checkpoint=folder), epochs=2)
        return [stop.best for stop in stops]

    first = life("val_loss", "loss")
    with warned_of("nothing to do"):
        assert life("loss", "val_loss") == first[::-1]


@pytest.mark.parametrize("method", ["state_dict", "load_state_dict"])
def test_a_callback_whose_state_fails_is_named(folder: Path, method: str) -> None:
    def fails(*_: Any) -> Any:
        return {}["momentum"]

    def life(counts: Counts) -> None:
        model = compiled(keras.optimizers.SGD(0.1), 1)
        by_fit(model, hvd.fit_callbacks(counts, checkpoint=folder), epochs=2)

    if method == "load_state_dict":
        life(Counts())
    counts = Counts()
    setattr(counts, method, fails)
    named = rf"{method}\(\) of the callback Counts/0 .*KeyError: 'momentum'"
    with pytest.raises((RuntimeError, CheckpointError), match=named):
        life(counts)


def test_random_generators_go_on_on_each_rank(folder: Path) -> None:
    model = compiled(keras.optimizers.SGD(0.1), 1, middle=[keras.layers.Dropout(0.5)])
    generator = tf.random.get_global_generator()

    def draw() -> list[float]:
        keras_random = keras.random.uniform(())  # without a seed of its own
        numbers = [random.random(), random.gauss(0, 1), np.random.rand(), np.random.randn()]
        return [*numbers, float(generator.uniform(())), float(keras_random)]

    for seed in (random.seed, np.random.seed):
        seed(hvd.rank())
    generator.reset_from_seed(hvd.rank())
    draw()
    with Checkpointer(folder, asynchronous=False) as checkpoints:
        hvd.save_checkpoint(checkpoints, model, step=1)
    wanted = [draw(), draw()]
    hvd.barrier()
    for seed in (random.seed, np.random.seed):
        seed(99)
    keras.utils.set_random_seed(98)
    hvd.restore_checkpoint(folder, model)
    assert [draw(), draw()] == wanted
    assert len({tuple(each[0][:5]) for each in hvd.allgather_object(wanted)}) == hvd.size()


class Decays(keras.callbacks.LearningRateScheduler):  # type: ignore[misc]
    """Multiplies the learning rate when an epoch begins."""

    def __init__(self) -> None:
        super().__init__(lambda epoch, rate: rate * 0.5)


def by_keras() -> Any:
    return compiled(keras.optimizers.Adam(0.05, gradient_accumulation_steps=4), 1)


def by_tfring() -> Any:
    model = build_model(1)
    optimizer = hvd.DistributedOptimizer(keras.optimizers.Adam(0.05), backward_passes_per_step=4)
    model.compile(optimizer, loss())
    return model


def trained(model: Any, folder: Path | None = None, **more: Any) -> tuple[Any, int]:
    """Trains on the same batches in each epoch; returns what was trained, and in how many steps."""
    hvd.set_random_seed(3)
    data = Batches()
    callbacks, saving = [Decays(), data.advance], None
    if folder is not None:
        how = {"every_epochs": None, **{k: v for k, v in more.items() if k == "every_steps"}}
        saving = CheckpointCallback(folder, cursor=data, **how)
        callbacks += [saving]
    counts = Asks(more.get("asks", 0), saving)
    history = None
    how = {"epochs": TO_TRAIN, "shuffle": False, "verbose": 0}
    with contextlib.suppress(SystemExit):
        history = model.fit(data, callbacks=[*callbacks, counts], **how)
    values = [v.numpy().tolist() for v in (*model.weights, *model.optimizer.variables)]
    return (values, history and history.history), counts.steps


class Batches(keras.utils.PyDataset):  # type: ignore[misc]
    """The same batches in every epoch, which go on where training was."""

    def __init__(self) -> None:
        super().__init__()
        self._x, self._y = my_data(STEPS)
        self.batch = self._first = 0
        outer = self

        class Advance(keras.callbacks.Callback):  # type: ignore[misc]
            def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
                outer.batch += 1

            def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
                outer.batch = outer._first = 0

        self.advance = Advance()

    def __len__(self) -> int:
        return STEPS

    def __getitem__(self, index: int) -> Any:
        begin = (self._first + index) % STEPS * PER_RANK
        return self._x[begin : begin + PER_RANK], self._y[begin : begin + PER_RANK]

    def state_dict(self) -> dict[str, int]:
        return {"batch": self.batch}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.batch = self._first = state["batch"]


class Asks(keras.callbacks.Callback):  # type: ignore[misc]
    """Asks to stop after some steps, as SIGTERM does, and counts them."""

    def __init__(self, at: int, saving: CheckpointCallback | None) -> None:
        super().__init__()
        self._at, self._saving, self.steps = at, saving, 0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.steps += 1
        if self.steps == self._at and self._saving is not None:
            self._saving.request_stop()


@pytest.mark.parametrize(
    ("make", "asks", "stops"),
    # Steps 4 and 8 end an update; the epoch ends after step 6, which does not.
    [(by_keras, 2, 4), (by_tfring, 6, 8)],
)
def test_no_accumulated_gradient_is_lost(
    folder: Path, make: Callable[[], Any], asks: int, stops: int
) -> None:
    """A stop waits for the update. Callbacks change the rate of an epoch once, too."""
    straight, steps = trained(make())
    assert steps == STEPS * TO_TRAIN
    _, steps = trained(make(), folder, asks=asks)
    assert steps == stops
    resumed, steps = trained(make(), folder)
    assert steps == STEPS * TO_TRAIN - stops
    assert resumed[0] == straight[0]
    if hvd.rank() == 0:
        assert resumed[1] == straight[1]


def test_checkpoints_wait_for_an_update(folder: Path) -> None:
    """Also those that an epoch's end makes due; not the last one, which says so."""
    kept = Checkpointer(folder, keep_last=100, asynchronous=False)
    saving = CheckpointCallback(kept, every_steps=5, cursor=Batches())
    x, y = my_data(STEPS)
    how = {"batch_size": PER_RANK, "shuffle": False, "verbose": 0, "epochs": TO_TRAIN}
    with warned_of("gradients that were accumulated"):
        by_keras().fit(x, y, callbacks=[saving], **how)
    if hvd.rank() == 0:
        saved = [(info.step, info.metadata["tfring"]["batch"]) for info in kept.all()]
        # Step 5 and the ends of epochs, 6 and 12, make them due.
        assert saved == [(8, 2), (12, 0), (16, 4), (18, 0)]


def test_a_job_of_elastic_fit_waits_for_the_update_as_well(folder: Path) -> None:
    x, y = my_data(STEPS)

    def life(stops: bool, checkpoint: Path | None) -> tuple[Any, int]:
        model, count = by_keras(), Asks(0, None)
        ask = [AtStep(2, signal_here)] if stops else []
        with pytest.raises(SystemExit) if stops else contextlib.nullcontext():
            hvd.elastic.fit(
                model,
                (x, y),
                epochs=2,
                policy=PER_RANK,
                checkpoint=checkpoint,
                callbacks=[*ask, Decays(), count],
                verbose=0,
            )
        return [w.tolist() for w in model.get_weights()], count.steps

    straight, _ = life(False, None)
    _, steps = life(True, folder)
    assert steps == 4
    assert life(False, folder)[0] == straight


def signal_here() -> None:
    if hvd.rank() == hvd.size() - 1:
        os.kill(os.getpid(), signal.SIGTERM)


class AtStep(keras.callbacks.Callback):  # type: ignore[misc]
    """Does something when a step begins."""

    def __init__(self, at: int, what: Callable[[], None]) -> None:
        super().__init__()
        self._left, self._what = at, what

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self._left -= 1
        if self._left == 0:
            self._what()


def test_ops_that_draw_from_a_state_of_their_own_are_named(folder: Path) -> None:
    x, y = my_data(2)
    plain = tf.data.Dataset.from_tensor_slices((x, y)).batch(PER_RANK)

    @tf.function
    def noisy(inputs: Any) -> Any:
        return inputs + tf.random.normal(tf.shape(inputs))

    augmented = plain.map(lambda inputs, target: (noisy(inputs), target)).prefetch(1)
    fixed = plain.map(lambda i, t: (i + tf.random.stateless_normal(tf.shape(i), [1, 2]), t))
    named = "(?s)RandomStandardNormal .*stateless"
    for data, warns in ((augmented, hvd.rank() == 0), (fixed, False)):
        with pytest.warns() as said:
            warnings.warn("one at least", stacklevel=1)
            model = compiled(keras.optimizers.SGD(0.1), 1)
            saving = CheckpointCallback(folder, restore=False)
            model.fit(data, callbacks=[saving], verbose=0)
        assert [bool(re.search(named, str(each.message))) for each in said].count(True) == warns
