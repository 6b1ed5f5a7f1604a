"""A plain Keras program under keras.distribution ends with the same bits as one for tfring."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras_cases import (
    PER_RANK,
    assert_same_on_all_ranks,
    assert_same_weights,
    build_model,
    loss,
    train_alone,
    whole_data,
)
from tiers import cases, slow

import tfring.keras as hvd
from tfring.keras.distribution import training

STEPS, EPOCHS = 4, 2
SGD = keras.optimizers.SGD
OPTIMIZERS: dict[str, Any] = {
    "momentum": lambda: SGD(0.1, momentum=0.9),
    "adam": lambda: keras.optimizers.Adam(1e-2),
    "accumulation": lambda: SGD(0.1, gradient_accumulation_steps=2),
    "clipnorm": lambda: SGD(0.1, global_clipnorm=0.01),
}


@pytest.fixture
def mixed_float16() -> Iterator[None]:
    keras.mixed_precision.set_global_policy("mixed_float16")
    yield
    keras.mixed_precision.set_global_policy("float32")


def dataset() -> Any:
    """Batches for all ranks together."""
    batch = hvd.size() * PER_RANK
    return tf.data.Dataset.from_tensor_slices(whole_data(STEPS)).batch(batch, drop_remainder=True)


def my_dataset() -> Any:
    """This rank's part of each of them, cut as Keras does: where values lie changes roundings."""
    if hvd.size() == 1:
        return dataset()
    part = dataset().rebatch(PER_RANK).shard(hvd.size(), hvd.rank())
    return part.apply(tf.data.experimental.assert_cardinality(STEPS))


def build(optimizer: Any, **compile_kwargs: Any) -> Any:
    """A model that begins unlike those of the other ranks."""
    model = build_model(1 + hvd.rank())
    model.compile(optimizer, loss(), metrics=["accuracy"], **compile_kwargs)
    return model


def plain_keras(optimizer: Any, **compile_kwargs: Any) -> tuple[Any, Any]:
    """What a program does that knows nothing of tfring; the distribution is set."""
    data = dataset()
    model = build(optimizer, **compile_kwargs)
    history = model.fit(data, validation_data=data, epochs=EPOCHS, verbose=0).history
    return model, {**history, "evaluate": model.evaluate(data, verbose=0, return_dict=True)}


def for_tfring(optimizer: Any, **compile_kwargs: Any) -> tuple[Any, Any]:
    """The same, as it is written for tfring; no distribution is set."""
    mine = my_dataset()
    model = build(hvd.DistributedOptimizer(optimizer), **compile_kwargs)
    callbacks = [
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),
        hvd.callbacks.MetricAverageCallback(),
    ]
    history = model.fit(
        mine, validation_data=mine, epochs=EPOCHS, verbose=0, callbacks=callbacks
    ).history
    return model, {**history, "evaluate": hvd.evaluate(model, mine)}


def both(make: Any, **compile_kwargs: Any) -> list[tuple[Any, Any]]:
    ours = plain_keras(make(), **compile_kwargs)
    keras.distribution.set_distribution(None)
    return [ours, for_tfring(make(), **compile_kwargs)]


def assert_same_bits(one: tuple[Any, Any], other: tuple[Any, Any]) -> None:
    assert one[1] == other[1]
    for ours, theirs in zip(one[0].get_weights(), other[0].get_weights(), strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("name", cases(OPTIMIZERS, quick=["momentum"]))
def test_weights_and_history(data_parallel: None, name: str) -> None:
    ours, theirs = both(OPTIMIZERS[name])
    assert_same_bits(ours, theirs)
    assert_same_on_all_ranks(ours[0])
    assert set(ours[1]) == {"loss", "accuracy", "val_loss", "val_accuracy", "evaluate"}


@pytest.mark.slow
def test_mixed_float16(data_parallel: None, mixed_float16: None) -> None:
    assert_same_bits(*both(OPTIMIZERS["momentum"]))


@pytest.mark.parametrize(
    "how",
    [slow({"steps_per_execution": 2}), {"run_eagerly": True}, slow({"jit_compile": True})],
    ids=str,
)
def test_ways_to_run(data_parallel: None, how: Any) -> None:
    assert_same_bits(*both(OPTIMIZERS["momentum"], **how))


def test_one_process_with_the_whole_batches(data_parallel: None) -> None:
    """Adam's steps and its learning rate follow the number of iterations."""
    made = build_model(1 + hvd.rank())
    rate = keras.optimizers.schedules.ExponentialDecay(0.01, 4, 0.5, staircase=True)
    made.compile(keras.optimizers.Adam(rate), loss())
    made.fit(dataset(), epochs=EPOCHS, verbose=0)
    keras.distribution.set_distribution(None)
    assert int(made.optimizer.iterations) == STEPS * EPOCHS
    alone = train_alone(keras.optimizers.Adam(rate), STEPS, 1, epochs=EPOCHS)
    assert_same_weights(made, alone)


def test_a_last_batch_that_is_smaller(several: int, data_parallel: None) -> None:
    """Keras deals it to the first rank, so the others have a batch less: an error on all."""
    if not hasattr(keras.distribution.DataParallel, "num_processes"):
        pytest.skip("Keras before 3.15 gives all ranks a piece of it")
    x, y = whole_data(STEPS)
    batch = several * PER_RANK
    count = len(x) - batch + PER_RANK
    data = tf.data.Dataset.from_tensor_slices((x[:count], y[:count])).batch(batch)
    match = "the ranks d" if hvd.rank() == 0 else "Give every rank equally many batches"
    with pytest.raises((RuntimeError, tf.errors.OpError), match=match):
        build(SGD(0.1)).fit(data, epochs=2, verbose=0)


def sum_instead_of_average(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrap(optimizer: Any, **how: Any) -> Any:
        return hvd.DistributedOptimizer(optimizer, op=hvd.Sum, **how)

    monkeypatch.setattr(training, "DistributedOptimizer", wrap)


def the_part_of_another_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = keras.distribution.distribution()
    another = (hvd.rank() + 1) % hvd.size()
    if hvd.rank() == 0:  # and of the ranks, one gets its part twice
        monkeypatch.setattr(chosen, "_process_id", another)
        monkeypatch.setattr(training.backend, "data_parallel", lambda: chosen)


def no_average_of_metrics(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "MetricAverageCallback", Nothing)


class Nothing(keras.callbacks.Callback):
    def __init__(self, **_: Any) -> None:
        super().__init__()


@functools.cache
def right_result() -> tuple[Any, Any]:
    """What every faulty one is compared with."""
    return for_tfring(OPTIMIZERS["momentum"]())


@pytest.mark.slow
@pytest.mark.parametrize(
    "fault", [sum_instead_of_average, the_part_of_another_rank, no_average_of_metrics]
)
def test_a_planted_fault_is_found(
    several: int, data_parallel: None, monkeypatch: pytest.MonkeyPatch, fault: Any
) -> None:
    fault(monkeypatch)
    ours = plain_keras(OPTIMIZERS["momentum"]())
    monkeypatch.undo()
    keras.distribution.set_distribution(None)
    theirs = right_result()
    with pytest.raises(AssertionError):
        assert_same_bits(ours, theirs)


def test_an_optimizer_that_is_not_wrapped_is_refused(
    several: int, data_parallel: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training, "wrap_optimizers", lambda model: None)
    with pytest.raises(RuntimeError, match="does not reduce gradients"):
        plain_keras(SGD(0.1))
