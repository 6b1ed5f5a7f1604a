"""The callbacks: what they broadcast and average, and the learning rates that they set."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
from keras_cases import (
    CLASSES,
    FEATURES,
    assert_same_on_all_ranks,
    assert_same_weights,
    broadcast,
    build_model,
    compiled,
    fit,
    loss,
    train_alone,
)

import tfring.keras as hvd
from tfring.keras import callbacks

pytestmark = pytest.mark.usefixtures("eager_functions")


@pytest.mark.parametrize("root", ["first", "last"])
def test_broadcast_takes_the_roots_weights_and_state(root: str) -> None:
    root_rank = 0 if root == "first" else hvd.size() - 1
    # The seed 0 is none in Keras 3.0 and 3.1.
    model = compiled(keras.optimizers.SGD(0.0, momentum=0.9), seed=1 + hvd.rank())
    model.optimizer.build(model.trainable_variables)
    for variable in model.optimizer.momentums:
        variable.assign(variable + 0.01 * hvd.rank())
    callback = callbacks.BroadcastGlobalVariablesCallback(root_rank)
    fit(model, callback, steps=1)
    # The rate is zero, so after a step weights are weights + 0.9 * the root's velocity.
    expected = build_model(1 + root_rank).get_weights()
    for ours, theirs in zip(model.get_weights(), expected, strict=True):
        np.testing.assert_allclose(ours, theirs + 0.9 * 0.01 * root_rank, rtol=1e-5, atol=1e-6)
    model.set_weights([w + hvd.rank() for w in model.get_weights()])
    fit(model, callback)  # which broadcasts, too
    assert_same_on_all_ranks(model)


def test_the_first_step_starts_from_the_weights_of_a_root_that_has_resumed() -> None:
    model = compiled(keras.optimizers.SGD(0.1, momentum=0.9), seed=1 + 100 * hvd.rank())
    if hvd.rank() == 0:
        model.optimizer.build(model.trainable_variables)
    fit(model, broadcast(), steps=1)
    alone = train_alone(keras.optimizers.SGD(0.1, momentum=0.9), steps=1, seed=1)
    assert_same_weights(model, alone)


def test_what_the_root_has_loaded_reaches_ranks_whose_model_is_not_built() -> None:
    """Their learning rates differ until the first batch has made the weights."""
    layers = [keras.layers.Dense(CLASSES)]
    if hvd.rank() == 0:
        layers.insert(0, keras.Input((FEATURES,)))
    model = keras.Sequential(layers)
    optimizer = keras.optimizers.Adam(0.01 if hvd.rank() == 0 else 0.1)
    if hvd.rank() == 0:
        optimizer.build(model.trainable_variables)
    model.compile(hvd.DistributedOptimizer(optimizer), loss())
    fit(model, broadcast(), epochs=2, steps=2)
    assert np.asarray(model.optimizer.learning_rate) == pytest.approx(0.01)
    assert_same_on_all_ranks(model)


def test_ranks_with_different_numbers_of_batches_are_refused() -> None:
    model = compiled(keras.optimizers.SGD(0.1))
    callback = broadcast()
    if hvd.size() > 1:
        with pytest.raises(RuntimeError, match=r"rank 0: 3, rank 1: 2"):
            fit(model, callback, steps=3 if hvd.rank() == 0 else 2)
    fit(model, callback, steps=2)  # and equal numbers are fine
    assert_same_on_all_ranks(model)


def test_ranks_that_run_other_numbers_of_steps_at_once_are_refused(several: int) -> None:
    together = 2 if hvd.rank() == 0 else 1
    model = compiled(keras.optimizers.SGD(0.1), steps_per_execution=together)
    with pytest.raises(RuntimeError, match=r"steps_per_execution \(rank 0: 2, rank 1: 1"):
        fit(model, broadcast(), steps=2)


def test_ranks_with_other_names_of_optimizers_are_refused(several: int) -> None:
    odd = hvd.rank() == several - 1
    model = build_model(1)
    name = "odd" if odd else "even"
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1), name=name), loss=loss())
    with pytest.raises(RuntimeError, match="name="):
        fit(model, broadcast())


def test_local_variables_are_left_alone() -> None:
    """The velocity of a local variable is local, too; the rate is zero, so steps scale it."""
    model = compiled(keras.optimizers.SGD(0.0, momentum=0.9), seed=hvd.rank())
    local, optimizer = model.layers[0].kernel, model.optimizer
    optimizer.build(model.trainable_variables)
    for velocity in optimizer.momentums:
        velocity.assign(velocity + 1.0 + hvd.rank())
    before = local.numpy()
    fit(model, callbacks.BroadcastGlobalVariablesCallback(0, local_variables=[local]), steps=1)
    mine = 1.0 + hvd.rank()
    np.testing.assert_allclose(local.numpy(), before + 0.9 * mine, rtol=1e-5)
    for variable, velocity in zip(optimizer._trainable_variables, optimizer.momentums, strict=True):
        expected = 0.9 * (mine if variable is local else 1.0)
        np.testing.assert_allclose(velocity.numpy(), np.full(velocity.shape, expected), rtol=1e-5)
    assert_same_on_all_ranks(model, but=local)


class Inject(keras.callbacks.Callback):
    """Adds to the epoch's logs."""

    def __init__(self, **values: Any) -> None:
        super().__init__()
        self._values = values

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        logs.update(self._values)


@pytest.mark.any_ranks
def test_metrics_are_averaged() -> None:
    model = compiled(keras.optimizers.SGD(0.0))
    mean = callbacks.MetricAverageCallback()
    injected = Inject(a=float(hvd.rank()), b=1, text="not a number")
    history = fit(model, injected, mean, epochs=2).history
    assert history["a"] == [(hvd.size() - 1) / 2] * 2
    assert history["b"] == [1.0] * 2
    assert len(set(hvd.allgather_object(tuple(history["loss"])))) == 1


def test_different_metrics_are_an_error_on_every_rank() -> None:
    if hvd.size() == 1:
        pytest.skip("needs two ranks")
    model = compiled(keras.optimizers.SGD(0.0))
    extra = Inject(**{"only_here" if hvd.rank() == 0 else "only_there": 1.0})
    with pytest.raises(RuntimeError, match=r"rank 0: loss, only_here; rank 1: loss, only_there"):
        fit(model, extra, callbacks.MetricAverageCallback())


class Rates(keras.callbacks.Callback):
    """Writes down the learning rate that each batch was trained with."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[float] = []

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.seen.append(float(np.asarray(self.model.optimizer.learning_rate)))


def test_warmup_ends_at_the_given_rate(capsys: pytest.CaptureFixture[str]) -> None:
    model, rates = compiled(keras.optimizers.SGD(0.8)), Rates()
    warmup = callbacks.LearningRateWarmupCallback(0.8, warmup_epochs=2, verbose=1)
    history = fit(model, warmup, rates, epochs=3, steps=2).history
    size = hvd.size()
    fractions = [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]
    expected = [0.8 * (f * (size - 1) + 1) / size for f in fractions]
    np.testing.assert_allclose(rates.seen, expected, rtol=1e-6)
    np.testing.assert_allclose(history["lr"], expected[1::2], rtol=1e-6)
    said = "Epoch 2: finished gradual learning rate warmup to 0.8" in capsys.readouterr().out
    assert said == (hvd.rank() == 0)
    model = compiled(keras.optimizers.SGD(0.1), steps_per_execution=2)
    warmup = callbacks.LearningRateWarmupCallback(0.1, warmup_epochs=1)
    assert fit(model, warmup, epochs=2, steps=4).history["lr"][-1] == pytest.approx(0.1)


def test_schedule_by_epoch_and_by_batch() -> None:
    model, rates = compiled(keras.optimizers.SGD(1.0)), Rates()
    fit(
        model,
        callbacks.LearningRateScheduleCallback(1.0, 0.5, end_epoch=2),
        callbacks.LearningRateScheduleCallback(
            1.0, lambda epoch: 0.1**epoch, start_epoch=2, staircase=False
        ),
        rates,
        epochs=3,
        steps=2,
    )
    np.testing.assert_allclose(rates.seen, [1, 1, 0.5, 0.5, 0.01, 0.1**2.5], rtol=1e-6)


def test_a_number_as_multiplier_is_exponential_decay() -> None:
    model, rates = compiled(keras.optimizers.SGD(1.0)), Rates()
    decay = callbacks.LearningRateScheduleCallback(1.0, 0.1, start_epoch=1, staircase=False)
    fit(model, decay, rates, epochs=3, steps=2)
    exponents = [0, 0, 0, 0.5, 1, 1.5]
    np.testing.assert_allclose(rates.seen, 0.1 ** np.array(exponents), rtol=1e-6)


def test_momentum_correction_scales_the_velocity() -> None:
    """With v <- mu * (new / old) * v - new * g in the step that changes the rate."""
    model = compiled(keras.optimizers.SGD(0.1, momentum=0.9))
    velocity = model.optimizer
    fit(model, steps=1)
    before = [v.numpy() for v in velocity.momentums]
    model.optimizer.learning_rate = 0.1
    schedule = callbacks.LearningRateScheduleCallback(0.1, lambda epoch: 0.0)
    fit(model, schedule, steps=1)  # rate 0: only what is left of the velocity moves
    for old, now in zip(before, velocity.momentums, strict=True):
        np.testing.assert_allclose(now.numpy(), 0.0 * old, atol=1e-7)


def test_a_schedule_in_the_optimizer_is_refused() -> None:
    decay = keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.9)
    model = compiled(keras.optimizers.SGD(decay))
    with pytest.raises(TypeError, match="learning rate schedule"):
        fit(model, callbacks.LearningRateScheduleCallback(0.1, 0.5))
    with pytest.raises(ValueError, match="initial_lr"):
        callbacks.LearningRateScheduleCallback(None, 0.5)  # type: ignore[arg-type]


def test_a_model_that_was_never_compiled_is_told_what_to_do() -> None:
    """Horovod's documentation calls callbacks from loops of one's own."""
    callback = hvd.callbacks.MetricAverageCallback()
    callback.set_model(build_model(1))
    callback.set_params({"epochs": 1, "steps": 1})
    with pytest.raises(RuntimeError, match=r"never compiled.*compile.*loop of your own"):
        callback.on_train_begin()
