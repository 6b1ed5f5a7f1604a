"""DistributedGradientTape: values, structures, sparse gradients, and a loop of one's own."""

from __future__ import annotations

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
    mine,
    my_data,
    train_alone,
)

import tfring as hvd
from tfring.collectives import buckets


def over_ranks(reduce: Any) -> float:
    return float(reduce([r + 1.0 for r in range(hvd.size())]))


def gradient_of_product(variable: Any, sources: Any, **options: Any) -> Any:
    """The gradient of `variable * (rank + 1)`: rank + 1 on each rank, before reducing."""
    with tf.GradientTape() as tape:
        target = tf.reduce_sum(variable * mine())
    return hvd.DistributedGradientTape(tape, **options).gradient(target, sources)


@pytest.mark.any_ranks
@pytest.mark.parametrize("in_function", [False, True])
@pytest.mark.parametrize(
    ("op", "reduce"),
    [("Average", np.mean), ("Sum", np.sum), ("Min", np.min), ("Max", np.max), ("Product", np.prod)],
)
def test_gradients_are_reduced(op: str, reduce: Any, in_function: bool) -> None:
    variable = tf.Variable([1.0, 2.0])

    def step() -> Any:
        return gradient_of_product(variable, variable, op=getattr(hvd, op))

    gradient = (tf.function(step) if in_function else step)()
    np.testing.assert_allclose(gradient, [over_ranks(reduce)] * 2, rtol=1e-6)


@pytest.mark.parametrize(
    "options",
    [
        {"gradient_predivide_factor": 2.0},
        {"compression": hvd.Compression.fp16},
        {"compression": hvd.Compression.bf16},
        {"num_groups": 1},
        {"groups": 1},
        {"device_dense": "/cpu:0"},
    ],
)
def test_options_do_not_change_the_mean(options: Any) -> None:
    variable = tf.Variable([1.0, 2.0])
    gradient = gradient_of_product(variable, variable, **options)
    assert gradient.dtype == tf.float32
    np.testing.assert_allclose(gradient, [over_ranks(np.mean)] * 2, rtol=1e-2)


def test_sources_keep_their_structure() -> None:
    a, b, c = tf.Variable(1.0), keras.Variable(1.0), tf.Variable(1.0)
    sources = {"x": a, "y": [b, (c,)]}
    with tf.GradientTape() as tape:
        target = (a + 2.0 * b) * mine()
    gradient = hvd.DistributedGradientTape(tape).gradient(target, sources)
    mean = over_ranks(np.mean)
    assert gradient["y"][1] == (None,)
    np.testing.assert_allclose([gradient["x"], gradient["y"][0]], [mean, 2 * mean], rtol=1e-6)
    assert hvd.DistributedGradientTape(tf.GradientTape()) is not None


def test_the_tape_can_be_entered_watched_and_asked_twice() -> None:
    x = tf.constant([3.0])
    with hvd.DistributedGradientTape(tf.GradientTape(persistent=True)) as tape:
        tape.watch(x)
        y = x * x * mine()
        with tape.stop_recording():
            _ = y * 100.0
    for _ in range(2):
        np.testing.assert_allclose(tape.gradient(y, x), [6.0 * over_ranks(np.mean)], rtol=1e-6)
    np.testing.assert_allclose(tape.jacobian(y, x), [[6.0 * mine()]], rtol=1e-6)
    assert tape.watched_variables() == ()
    with pytest.raises(ValueError, match="already"):
        hvd.DistributedGradientTape(tape)
    with pytest.raises(TypeError, match="GradientTape"):
        hvd.DistributedGradientTape(x)


@pytest.mark.any_ranks
@pytest.mark.parametrize(("as_dense", "in_function"), [(False, False), (False, True), (True, True)])
def test_sparse_gradients(as_dense: bool, in_function: bool) -> None:
    table = tf.Variable(tf.zeros([4, 2]))
    weight = tf.Variable([1.0])

    def step() -> Any:
        with tf.GradientTape() as tape:
            rows = tf.gather(table, [0, hvd.rank() % 4, 0])
            target = tf.reduce_sum(rows) * mine() + tf.reduce_sum(weight) * mine()
        tape = hvd.DistributedGradientTape(tape, sparse_as_dense=as_dense)
        return tape.gradient(target, [table, weight])

    sparse, dense = (tf.function(step) if in_function else step)()
    assert isinstance(sparse, tf.IndexedSlices) is not as_dense
    expected = np.zeros([4, 2])
    for r in range(hvd.size()):
        expected[0] += 2.0 * (r + 1) / hvd.size()
        expected[r % 4] += (r + 1.0) / hvd.size()
    np.testing.assert_allclose(tf.convert_to_tensor(sparse), expected, rtol=1e-6)
    np.testing.assert_allclose(dense, [over_ranks(np.mean)], rtol=1e-6)


@pytest.mark.any_ranks
def test_a_custom_loop_equals_one_process() -> None:
    model = build_model(3 + 100 * hvd.rank())
    optimizer = keras.optimizers.SGD(0.1, momentum=0.9)
    optimizer.build(model.trainable_variables)
    hvd.broadcast_variables(model.weights + optimizer.variables, root_rank=0)
    loss_of = loss()

    @tf.function
    def train_step(x: Any, y: Any) -> None:
        with tf.GradientTape() as tape:
            value = loss_of(y, model(x, training=True))
        tape = hvd.DistributedGradientTape(tape)
        optimizer.apply(tape.gradient(value, model.trainable_variables))

    x, y = my_data(20)
    for i in range(0, len(x), PER_RANK):
        train_step(x[i : i + PER_RANK], y[i : i + PER_RANK])
    alone = train_alone(keras.optimizers.SGD(0.1, momentum=0.9), steps=20, seed=3)
    assert_same_weights(model, alone)
    assert_same_on_all_ranks(model)


def test_many_small_buckets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buckets, "FIRST_BUCKET_BYTES", 8)
    monkeypatch.setattr(buckets, "BUCKET_BYTES", 64)
    variables = [tf.Variable(tf.ones([n])) for n in range(1, 40)]

    @tf.function
    def step() -> Any:
        with tf.GradientTape() as tape:
            target = tf.add_n([tf.reduce_sum(v * v) for v in variables]) * mine()
        return hvd.DistributedGradientTape(tape).gradient(target, variables)

    for _ in range(3):
        for gradient in step():
            np.testing.assert_allclose(gradient, 2 * over_ranks(np.mean), rtol=1e-6)
    graph = step.get_concrete_function().graph
    ops = [op for op in graph.get_operations() if op.type == "TfringAllreduce"]
    early = [op.get_attr("tensor_name") for op in ops if op.get_attr("early")]
    assert len(ops) > 3
    assert early == [ops[-1].get_attr("tensor_name")]


def test_gradients_missing_everywhere_are_fine() -> None:
    variables = [tf.Variable([1.0]), tf.Variable([2.0])]
    gradient = gradient_of_product(variables[0], variables)
    np.testing.assert_allclose(gradient[0], [over_ranks(np.mean)], rtol=1e-6)
    assert gradient[1] is None
