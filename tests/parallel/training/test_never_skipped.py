"""Gradients are reduced, and once: what a user does between tape and optimizer is seen through."""

from __future__ import annotations

import copy
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras_cases import mean_over_ranks, mine

import tfring as hvd


def reduced_gradient(variable: Any) -> Any:
    with tf.GradientTape() as tape:
        target = tf.reduce_sum(variable) * mine()
    return hvd.DistributedGradientTape(tape).gradient(target, [variable])


def clipped(gradients: list[Any]) -> list[Any]:
    return [tf.clip_by_norm(g * 2.0, 1.0) for g in gradients]


@pytest.mark.parametrize("where", ["eager", "one function", "condition", "function in function"])
def test_a_gradient_changed_after_the_tape_is_not_reduced_again(where: str) -> None:
    variable = keras.Variable([1.0, 2.0])
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1))
    optimizer.build([variable])

    @tf.function
    def gradients_of_a_function() -> Any:
        return clipped(reduced_gradient(variable.value))

    def step() -> None:
        if where == "function in function":
            gradients = gradients_of_a_function()
        else:
            gradients = clipped(reduced_gradient(variable.value))
        if where == "condition":
            tf.cond(
                tf.reduce_sum(gradients[0]) > -1.0,
                lambda: optimizer.apply(gradients, [variable]),
                lambda: None,
            )
        else:
            optimizer.apply(gradients, [variable])

    with pytest.raises(ValueError, match="not both"):
        (step if where == "eager" else tf.function(step))()
    np.testing.assert_array_equal(variable, [1.0, 2.0])


def test_a_tape_used_before_the_optimizer_was_wrapped_does_not_count() -> None:
    variable = keras.Variable([1.0])
    optimizer = keras.optimizers.SGD(1.0)
    optimizer.apply(clipped(reduced_gradient(variable.value)), [variable])
    hvd.DistributedOptimizer(optimizer, resumed=True)
    optimizer.apply([tf.constant([mine()])], [variable])
    np.testing.assert_allclose(variable, [-mean_over_ranks()], rtol=1e-6)


def test_other_variables_and_a_loss_that_contains_reduced_gradients_are_fine() -> None:
    critic, generator = keras.Variable([1.0]), keras.Variable([3.0])
    plain = keras.optimizers.SGD(1.0)
    wrapped = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0))
    plain.build([critic])
    wrapped.build([generator])

    @tf.function
    def step() -> None:
        plain.apply(reduced_gradient(critic.value), [critic])
        with tf.GradientTape() as outer:
            with tf.GradientTape() as inner:
                value = tf.reduce_sum(generator.value**2)
            (slope,) = hvd.DistributedGradientTape(inner).gradient(value, [generator.value])
            penalty = tf.reduce_sum(slope) * mine()
        wrapped.apply(outer.gradient(penalty, [generator.value]), [generator])

    step()
    np.testing.assert_allclose(critic, [1.0 - mean_over_ranks()], rtol=1e-6)
    np.testing.assert_allclose(generator, [3.0 - 2 * mean_over_ranks()], rtol=1e-6)


@pytest.mark.parametrize("weight", ["loss of a function", "stopped norm"])
def test_a_loss_weighted_by_what_a_tape_was_used_for_is_fine(weight: str) -> None:
    """The function reduces gradients and returns its loss, which was not computed from them."""
    critic, generator = keras.Variable([2.0]), keras.Variable([3.0])
    plain = keras.optimizers.SGD(1.0)
    wrapped = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0))
    plain.build([critic])
    wrapped.build([generator])

    @tf.function
    def train_critic(x: Any) -> Any:
        with tf.GradientTape() as tape:
            value = tf.reduce_sum(critic.value * x)
        (gradient,) = hvd.DistributedGradientTape(tape).gradient(value, [critic.value])
        plain.apply([gradient], [critic])
        return value, tf.norm(gradient)

    @tf.function
    def step(x: Any) -> None:
        loss, norm = train_critic(x)
        factor = loss if weight == "loss of a function" else tf.stop_gradient(norm)
        with tf.GradientTape() as tape:
            value = tf.reduce_sum(generator.value * x) * factor
        wrapped.apply(tape.gradient(value, [generator.value]), [generator])

    step(tf.constant([mine()]))
    mean = mean_over_ranks()
    squares = np.mean([(r + 1.0) ** 2 for r in range(hvd.size())])
    change = 2 * squares if weight == "loss of a function" else mean**2
    np.testing.assert_allclose(critic, [2.0 - mean], rtol=1e-6)
    np.testing.assert_allclose(generator, [3.0 - change], rtol=1e-6)


def test_a_rank_that_resumed_meets_the_others(several: int) -> None:
    """Its optimizer is built and knows positions; the first call has only some of the variables."""
    variables = [keras.Variable([0.0]), keras.Variable([0.0])]
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0))
    if hvd.rank() == 0:
        optimizer.build(variables)
    optimizer.apply([tf.constant([mine()])], variables[1:])
    np.testing.assert_allclose(variables[1], [-mean_over_ranks()], rtol=1e-6)


@pytest.mark.parametrize("passes", [1, 2])
def test_different_missing_gradients_are_an_error(several: int, passes: int) -> None:
    variables = [keras.Variable([1.0]), keras.Variable([2.0])]
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1), backward_passes_per_step=passes)
    one = tf.constant([1.0])
    with pytest.raises(tf.errors.FailedPreconditionError, match=r"tfring\.optimizer"):
        for _ in range(passes):
            optimizer.apply([one, None] if hvd.rank() == 0 else [one, one], variables)
    if passes == 1:
        optimizer.apply([one, one], variables)  # and the next step works
        np.testing.assert_allclose([v.numpy()[0] for v in variables], [0.9, 1.9], rtol=1e-6)


@pytest.mark.any_ranks
def test_adasum_of_equal_gradients_is_one_of_them() -> None:
    variable = keras.Variable([0.0, 0.0])
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), op=hvd.Adasum)
    optimizer.apply([tf.constant([1.0, 2.0])], [variable])
    np.testing.assert_allclose(variable, [-1.0, -2.0], rtol=1e-5)
    with tf.GradientTape() as tape:
        target = tf.reduce_sum(variable)
    tape = hvd.DistributedGradientTape(tape, op=hvd.Adasum)
    np.testing.assert_allclose(tape.gradient(target, variable.value), [1.0, 1.0], rtol=1e-5)


@pytest.mark.any_ranks
@pytest.mark.parametrize("sparse_as_dense", [False, True, "auto"])
def test_the_average_counts_those_that_take_part(several: int, sparse_as_dense: Any) -> None:
    # No other test has a list of variables that looks so: rank 0 is behind in numbering them.
    table = tf.Variable(tf.zeros([3, 1, 1, 1, 1]))
    if hvd.rank() > 0:
        with tf.GradientTape() as tape:
            target = tf.reduce_sum(tf.gather(table, [1, 1, 2])) * mine()
        tape = hvd.DistributedGradientTape(tape, sparse_as_dense=sparse_as_dense)
        gradient = tape.gradient(target, table)
        expected = np.mean([r + 1.0 for r in range(1, several)])
        dense = tf.reshape(tf.convert_to_tensor(gradient), [3])
        np.testing.assert_allclose(dense, [0.0, 2 * expected, expected], rtol=1e-6)
    assert hvd.join() in range(several)


def test_optimizers_that_one_rank_alone_wraps_or_copies(rank: int, size: int) -> None:
    """They are never used; the others' gradients must not wait under other names."""
    if rank == 0:
        for copied in (False, True):
            unused = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1))
            unused.build([keras.Variable(1.0)])
            if copied:
                copy.deepcopy(unused)
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0))
    variable = keras.Variable(0.0)
    optimizer.apply([tf.constant(float(rank))], [variable])
    assert float(variable) == pytest.approx(-(size - 1) / 2)
