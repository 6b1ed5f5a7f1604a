"""Accumulation in custom loops, and the optimizers of TensorFlow 1."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras_cases import mean_over_ranks, mine

import tfring as hvd
from tfring.training.accumulation import LocalGradientAggregationHelper


@pytest.mark.parametrize(("average", "in_function"), [(False, True), (True, False)])
def test_a_loop_reduces_in_the_last_pass(average: bool, in_function: bool) -> None:
    calls: list[int] = []

    def reduce(gradients: list[Any], variables: list[Any]) -> list[Any]:
        calls.append(len(gradients))
        name = f"aggregation.{average}.{in_function}"
        return hvd.grouped_allreduce(gradients, name=name, ignore_name_scope=True)

    dense, table, unused = tf.Variable([0.0]), tf.Variable(tf.zeros([3, 2])), tf.Variable(1.0)
    variables = [dense, table, unused]
    helper = LocalGradientAggregationHelper(2, reduce, average_aggregated_gradients=average)
    optimizer = keras.optimizers.SGD(1.0)

    def step(scale: Any) -> Any:
        with tf.GradientTape() as tape:
            rows = tf.gather(table, [1, 1])
            target = scale * (tf.reduce_sum(dense) + tf.reduce_sum(rows))
        gradients = helper.compute_gradients(tape.gradient(target, variables), variables)
        assert gradients[2] is None
        return helper.apply_gradients(lambda: optimizer.apply(gradients[:2], variables[:2]))

    run = tf.function(step) if in_function else step
    scale = tf.constant(mine())
    updates = [bool(run(scale)) for _ in range(2)]
    built = len(calls)
    updates += [bool(run(scale)) for _ in range(2)]
    assert updates == [False, True, False, True]
    assert len(calls) - built == (0 if in_function else 1)
    expected = -mean_over_ranks() * (2 if average else 4)
    np.testing.assert_allclose(dense, [expected], rtol=1e-6)
    np.testing.assert_allclose(table, np.outer([0, 1, 0], [2 * expected] * 2), rtol=1e-6)
    assert int(optimizer.iterations) == 2


def test_its_default_is_the_average_with_local_variables_apart() -> None:
    shared, local = tf.Variable([0.0]), tf.Variable([0.0])
    helper = LocalGradientAggregationHelper(1, name="local")
    helper.register_local_var(local)
    mine = tf.constant([hvd.rank() + 1.0])
    first, second = helper.compute_gradients([mine, mine], [shared, local])
    np.testing.assert_allclose(first, [mean_over_ranks()], rtol=1e-6)
    np.testing.assert_allclose(second, mine / hvd.size(), rtol=1e-6)
    with pytest.raises(ValueError, match="one list of variables"):
        helper.compute_gradients([mine], [shared])


def test_it_says_what_is_wrong() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        LocalGradientAggregationHelper(0)
    with pytest.raises(RuntimeError, match="compute_gradients before"):
        LocalGradientAggregationHelper(2).apply_gradients(lambda: None)


def in_session(build: Any, steps: int) -> Any:
    """Builds a TF1 graph, (variable, operation), runs the operation and returns the variable."""
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        variable, train = build()
        session.run(tf.compat.v1.global_variables_initializer())
        for _ in range(steps):
            session.run(train)
        return session.run(variable)


def test_a_tensorflow_1_optimizer_minimizes() -> None:
    def build() -> Any:
        variable = tf.Variable([0.0, 0.0])
        step = tf.compat.v1.train.get_or_create_global_step()
        optimizer = hvd.DistributedOptimizer(tf.compat.v1.train.MomentumOptimizer(1.0, 0.0))
        loss = tf.reduce_sum(variable) * mine()
        return [variable, step], optimizer.minimize(loss, global_step=step)

    value, steps = in_session(build, 3)
    np.testing.assert_allclose(value, [-3 * mean_over_ranks()] * 2, rtol=1e-6)
    assert steps == 3


@pytest.mark.parametrize("average", [False, True])
def test_a_tensorflow_1_optimizer_accumulates(average: bool) -> None:
    def build() -> Any:
        variable = tf.Variable([0.0])
        step = tf.compat.v1.train.get_or_create_global_step()
        optimizer = hvd.DistributedOptimizer(
            tf.compat.v1.train.GradientDescentOptimizer(1.0),
            backward_passes_per_step=2,
            average_aggregated_gradients=average,
        )
        pairs = optimizer.compute_gradients(tf.reduce_sum(variable) * mine())
        clipped = [(tf.clip_by_value(g, -100.0, 100.0), v) for g, v in pairs]
        return [variable, step], optimizer.apply_gradients(clipped, global_step=step)

    value, steps = in_session(build, 5)
    np.testing.assert_allclose(value, [-mean_over_ranks() * (2 if average else 4)], rtol=1e-6)
    assert steps == 5  # passes, as in Horovod


def test_a_tensorflow_1_optimizer_in_eager_mode() -> None:
    variable = tf.Variable([0.0])
    optimizer = hvd.DistributedOptimizer(tf.compat.v1.train.GradientDescentOptimizer(1.0))
    optimizer.minimize(lambda: tf.reduce_sum(variable) * mine(), var_list=[variable])
    np.testing.assert_allclose(variable, [-mean_over_ranks()], rtol=1e-6)
    with pytest.raises(ValueError, match="Wrap it once"):
        hvd.DistributedOptimizer(optimizer)


@pytest.mark.parametrize("eager", [False, True])
def test_gradients_from_elsewhere_are_refused(eager: bool) -> None:
    def build() -> Any:
        variable = tf.Variable([0.0])
        optimizer = hvd.DistributedOptimizer(tf.compat.v1.train.GradientDescentOptimizer(1.0))
        with pytest.raises(RuntimeError, match="not reduced"):
            optimizer.apply_gradients([(tf.constant([1.0]), variable)])
        optimizer.register_local_var(variable)  # then nothing has to be reduced
        return variable, optimizer.apply_gradients([(tf.constant([1.0]), variable)])

    value = build()[0] if eager else in_session(build, 1)
    np.testing.assert_allclose(value, [-1.0])
