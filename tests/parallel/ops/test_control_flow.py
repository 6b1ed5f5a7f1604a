"""Gradients of collectives inside loops, conditions, RNN cells, custom gradients and such."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from tiers import cases

import tfring
from tfring.ops import library


def total(x: Any) -> Any:
    return tfring.allreduce(x, op=tfring.Sum)


def loop(x: Any) -> Any:
    for _ in tf.range(3):
        x = total(x * x) * 0.1
    return x


def fixed_point(x: Any) -> Any:
    """The same collective in each of many iterations that may overlap."""
    return tf.map_fn(lambda e: total(e * e), x, parallel_iterations=10)


def condition(x: Any) -> Any:
    return tf.cond(tf.reduce_sum(x) > 0, lambda: total(x * x), lambda: x)


def switch(x: Any) -> Any:
    return tf.switch_case(tf.cast(x[0] > 0, tf.int32), [lambda: x, lambda: total(x * x)])


def scan(x: Any) -> Any:
    return tf.scan(lambda a, e: total(a * e), x, tf.constant(0.5))


def keras_condition(x: Any) -> Any:
    return keras.ops.cond(tf.reduce_sum(x) > 0, lambda: total(x * x), lambda: x)


@tf.custom_gradient
def summed_backward(x: Any) -> Any:
    return tf.identity(x), total


def custom(x: Any) -> Any:
    for _ in tf.range(2):
        x = summed_backward(x) * x
    return x


def recomputed(x: Any) -> Any:
    return tf.recompute_grad(lambda y: total(y * y))(x)


def nested() -> Callable[[Any], Any]:
    inner = tf.function(lambda x: total(x * x))

    def twice(x: Any) -> Any:
        return inner(x) * inner(x * 0.5)

    return twice


def nested_loop() -> Callable[[Any], Any]:
    inner = tf.function(lambda x: total(x * x))

    def run(x: Any) -> Any:
        for _ in tf.range(2):
            x = inner(x) * 0.1
        return x

    return run


def nested_deep() -> Callable[[Any], Any]:
    inner = tf.function(lambda x: total(x * x))
    middle = tf.function(lambda x: inner(x) + inner(x * 2.0))
    return lambda x: middle(x) * middle(x * 0.5)


def gradient(function: Callable[[Any], Any], x: Any) -> Any:
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = tf.reduce_sum(function(x) ** 2)
    return tape.gradient(y, x)


def gradient_twice(function: Callable[[Any], Any], x: Any) -> Any:
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(x)
        y = function(x)
        one, two = tf.reduce_sum(y), tf.reduce_sum(y * y)
    return tape.gradient(one, x), tape.gradient(two, x)


def second_order(function: Callable[[Any], Any], x: Any) -> Any:
    with tf.GradientTape() as tape:
        tape.watch(x)
        first = tf.reduce_sum(gradient(function, x) ** 2)
    return tape.gradient(first, x)


def jacobian(function: Callable[[Any], Any], x: Any) -> Any:
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = function(x)
    return tape.jacobian(y, x)


PLAIN = [loop, fixed_point, condition, switch, scan, keras_condition, custom, recomputed]
MAKERS: dict[str, Callable[[], Any]] = {
    **{f.__name__: lambda f=f: f for f in PLAIN},
    **{f.__name__: f for f in (nested, nested_loop, nested_deep)},
}
QUICK = ["loop", "condition", "custom", "nested_deep"]


@pytest.mark.parametrize("name", cases(MAKERS, quick=QUICK))
def test_compiled_modes_give_what_eager_mode_gives(name: str, rank: int) -> None:
    """In a function, outside of it, and compiled by XLA; once, twice and of second order."""
    x = tf.constant([1.0, 0.5, 0.25]) * (rank + 1.0)
    make = MAKERS[name]
    function = make()
    often = name in ("loop", "condition", "nested", "nested_loop")
    want = gradient(function, x).numpy()
    modes = [False] if library.xla_trouble() else [False, True]
    for jit in modes:
        traced = tf.function(gradient, jit_compile=jit)
        np.testing.assert_allclose(traced(make(), x), want, rtol=1e-5, atol=1e-7)
    called = tf.function(make())
    np.testing.assert_allclose(gradient(called, x), want, rtol=1e-5, atol=1e-7)
    if not often:
        return
    both = gradient_twice(function, x)
    for got, one in zip(tf.function(gradient_twice)(make(), x), both, strict=True):
        np.testing.assert_allclose(got, one, rtol=1e-5, atol=1e-7)
    want = second_order(function, x).numpy()
    for second in (tf.function(second_order)(make(), x), second_order(called, x)):
        np.testing.assert_allclose(second, want, rtol=1e-4, atol=1e-6)


def test_xla_refuses_the_gradient_of_a_loop_from_outside_before_it_runs(rank: int) -> None:
    """What TensorFlow would do frees variables that are still in use."""
    if library.xla_trouble():
        pytest.skip("no XLA")
    x = tf.constant([1.0, 0.5]) * (rank + 1.0)

    def afterwards(x: Any) -> Any:
        for _ in tf.range(2):
            x = x * x
        return total(x)

    for function in (loop, afterwards):
        compiled = tf.function(function, jit_compile=True)
        for outside in (gradient, tf.function(gradient)):
            with pytest.raises(NotImplementedError, match=r"outside .* through a loop"):
                outside(compiled, x)
        got = tf.function(gradient, jit_compile=True)(compiled, x)
        np.testing.assert_allclose(got, gradient(function, x), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("call", ["eager", "function", "jit"])
def test_jacobians(call: str, size: int, rank: int) -> None:
    if call == "jit" and library.xla_trouble():
        pytest.skip("no XLA")
    x = tf.constant([1.0, 2.0]) * (rank + 1.0)
    run: Any = jacobian if call == "eager" else tf.function(jacobian, jit_compile=call == "jit")
    want = np.diag(2.0 * size * x.numpy())
    np.testing.assert_allclose(run(lambda y: total(y * y), x), want, rtol=1e-6)


def test_one_gradient_taken_twice_in_a_tf1_graph(rank: int, size: int) -> None:
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        x = tf.compat.v1.placeholder(tf.float32, [2])
        y = tfring.allgather(x)
        both = [tf.gradients(tf.reduce_sum(y * f), x)[0] for f in (1.0, 3.0)]
        for _ in range(5):
            one, two = session.run(both, {x: [rank, 1.0]})
    np.testing.assert_allclose([one, two], [[size, size], [3.0 * size, 3.0 * size]])


def test_iterations_keep_their_order_on_skewed_ranks(rank: int, size: int) -> None:
    """Rank 0 is slow in the first iterations, the last rank in the last."""

    def delay(i: Any) -> Any:
        slow = i < 3 if rank == 0 else i > 3 and rank == size - 1
        time.sleep(0.02 if slow else 0.0)
        return np.float32(0.0)

    @tf.function
    def step(x: Any) -> Any:
        def one(i: Any) -> Any:
            late = tf.ensure_shape(tf.numpy_function(delay, [i], tf.float32), [])
            return tfring.allreduce(x[i] * x[i] + late, op=tfring.Sum, name="skewed")

        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.map_fn(one, tf.range(6), tf.float32, parallel_iterations=6)
            loss = tf.reduce_sum(y * tf.range(1.0, 7.0))
        return y, tape.gradient(loss, x)

    x = np.arange(1.0, 7.0, dtype=np.float32)
    for _ in range(3):
        y, g = step(tf.constant(x))
        np.testing.assert_allclose(y, size * x * x, rtol=1e-6)
        np.testing.assert_allclose(g, 2.0 * size * x * np.arange(1.0, 7.0), rtol=1e-6)
