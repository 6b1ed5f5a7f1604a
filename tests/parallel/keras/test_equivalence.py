"""N ranks with 32 samples each make of 12 steps what one process makes of the whole batches.

All optimizers of Keras are in tests/parallel/zoo, with fewer steps.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras_cases import (
    assert_same_on_all_ranks,
    assert_same_weights,
    broadcast,
    build_model,
    compiled,
    fit,
    loss,
    my_part,
    train_alone,
    train_together,
    whole_data,
)
from tiers import cases, slow

import tfring.keras as hvd

STEPS, SAMPLES = 12, 32
eager = pytest.mark.usefixtures("eager_functions")  # tracing takes most of the time
SGD = keras.optimizers.SGD


def decaying(rate: float) -> Any:
    return keras.optimizers.schedules.ExponentialDecay(rate, 5, 0.7)


OPTIMIZERS: dict[str, Any] = {
    "momentum": lambda: SGD(0.1, momentum=0.9, nesterov=True),
    "accumulation clipnorm": lambda: SGD(0.1, gradient_accumulation_steps=4, clipnorm=0.01),
    "accumulation schedule": lambda: SGD(decaying(0.2), gradient_accumulation_steps=4),
}


@pytest.fixture
def policy() -> Iterator[Any]:
    yield keras.mixed_precision.set_global_policy
    keras.mixed_precision.set_global_policy("float32")


@pytest.mark.parametrize("name", cases(OPTIMIZERS, quick=["accumulation clipnorm"]))
def test_options(name: str) -> None:
    data = whole_data(STEPS, SAMPLES)
    together = train_together(OPTIMIZERS[name](), STEPS, 1, data=data)
    assert_same_weights(together, train_alone(OPTIMIZERS[name](), STEPS, 1, data=data))
    assert_same_on_all_ranks(together)


@pytest.mark.parametrize(("overflow", "accumulate"), [slow(True, None), (True, 2)])
def test_mixed_float16(policy: Any, accumulate: Any, overflow: bool) -> None:
    """With `overflow` one sample of the last rank is infinite: all skip the step of its batch."""
    policy("mixed_float16")
    data = whole_data(STEPS, SAMPLES)
    if overflow:
        data[0][7 * hvd.size() * SAMPLES - 1] = np.inf
    inner = SGD(0.1, gradient_accumulation_steps=accumulate)
    together = train_together(inner, STEPS, 2, data=data)
    alone = SGD(0.1, gradient_accumulation_steps=accumulate)
    assert_same_weights(together, train_alone(alone, STEPS, 2, data=data), tolerance=1e-2)
    assert_same_on_all_ranks(together)
    assert isinstance(together.optimizer, keras.optimizers.LossScaleOptimizer)
    counted = getattr(inner, "_iterations", inner.iterations)  # its name before Keras 3.5
    assert np.asarray(counted) == (STEPS - 1 if overflow else STEPS)
    # Halved once, on every rank.
    assert np.asarray(together.optimizer.dynamic_scale) == 2.0 ** (14 if overflow else 15)
    assert all(np.isfinite(w).all() for w in together.get_weights())


@eager
@pytest.mark.parametrize("scales", ["before fit", "in a loop of one's own"])
def test_a_loss_scale_that_rank_0_has_loaded(policy: Any, scales: str) -> None:
    """The first step is that of one process, whatever the ranks' scales are."""
    policy("mixed_float16")
    rate = 0.1
    model = compiled(SGD(rate), seed=3)
    variables, optimizer = model.trainable_variables, model.optimizer
    if hvd.rank() == 0:
        optimizer.build(variables)
        optimizer.dynamic_scale.assign(256.0)
    before = [v.numpy() for v in variables]
    if scales == "before fit":
        fit(model, broadcast(), data=(np.ones((6, 8)), np.zeros(6)), steps=1)
        assert np.asarray(optimizer.dynamic_scale) == 256.0
        keras.mixed_precision.set_global_policy("float32")
        alone = compiled(SGD(rate), seed=3)
        fit(alone, data=(np.ones((6, 8)), np.zeros(6)), steps=1)
        assert_same_weights(model, alone.get_weights(), tolerance=1e-3)
    else:
        optimizer.apply([optimizer.scale_loss(tf.ones(v.shape)) for v in variables], variables)
        for old, variable in zip(before, variables, strict=True):
            np.testing.assert_allclose(variable.numpy(), old - rate, atol=1e-6)


@eager
def test_a_float16_model_that_rank_0_has_loaded(policy: Any, tmp_path: Any) -> None:
    """Weights, moments, iterations and scale are those of rank 0; then each has data of its own."""
    policy("mixed_float16")
    before, steps = 4, 10
    path = tmp_path / "model.keras"

    def loaded(load: Any) -> Any:
        model = load(path)
        model.optimizer.dynamic_scale.assign(256.0)
        return model

    def made(model: Any) -> tuple[Any, ...]:
        optimizer = model.optimizer
        state = [v.numpy() for v in optimizer.inner_optimizer.variables]
        return model.get_weights(), state, float(np.asarray(optimizer.dynamic_scale))

    x, y = whole_data(steps, SAMPLES)
    x[2 * hvd.size() * SAMPLES - 1] = np.inf  # of the last rank, in the second step
    if hvd.rank() == 0:
        model = build_model(21)
        model.compile(optimizer=keras.optimizers.Adam(1e-2), loss=loss())
        count = before * SAMPLES
        model.fit(x[-count:], y[-count:], batch_size=SAMPLES, shuffle=False, verbose=0)
        model.save(path)
        together = loaded(hvd.load_model)
        alone = loaded(keras.saving.load_model)
        alone.fit(x, y, batch_size=len(x) // steps, shuffle=False, verbose=0)
    else:
        together = compiled(keras.optimizers.Adam(1e-2), seed=30 + hvd.rank())
    fit(together, broadcast(), data=my_part((x, y), steps), batch_size=SAMPLES)

    weights, state, scale = hvd.broadcast_object(made(alone) if hvd.rank() == 0 else None)
    assert_same_weights(together, weights, tolerance=5e-3)
    assert_same_on_all_ranks(together)
    _, own_state, own_scale = made(together)
    assert own_scale == scale == 128.0
    assert np.asarray(together.optimizer.inner_optimizer.iterations) == before + steps - 1
    for ours, theirs in zip(own_state, state, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=5e-3)


def test_float16_weights_keep_the_loss_scale_on_the_wire() -> None:
    """The gradient is too small for float16 without it; rank 0 has another scale."""
    variable = keras.Variable(tf.zeros([2], tf.float16), dtype="float16")
    optimizer = keras.optimizers.LossScaleOptimizer(hvd.DistributedOptimizer(SGD(1.0)))
    optimizer.build([variable])
    optimizer.dynamic_scale.assign(2.0 ** (15 if hvd.rank() == 0 else 13))
    reduced = []
    optimizer.inner_optimizer._tfring_hook._apply = lambda grads, variables: reduced.extend(grads)
    scaled = optimizer.dynamic_scale.value * 2.0**-25
    optimizer.apply([tf.cast(tf.fill([2], scaled), tf.float16)], [variable])
    np.testing.assert_array_equal(tf.cast(reduced[0], tf.float32), [2.0**-25] * 2)


@eager
def test_sync_batch_normalization() -> None:
    """The moving statistics are among the weights."""
    data = whole_data(STEPS, SAMPLES)
    sync = hvd.SyncBatchNormalization(momentum=0.9)
    together = train_together(OPTIMIZERS["momentum"](), STEPS, 4, middle=[sync], data=data)
    plain = keras.layers.BatchNormalization(momentum=0.9)
    alone = train_alone(OPTIMIZERS["momentum"](), STEPS, 4, middle=[plain], data=data)
    assert_same_weights(together, alone)
    assert_same_on_all_ranks(together)
