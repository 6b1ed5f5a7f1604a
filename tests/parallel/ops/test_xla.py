"""Collectives in functions with jit_compile=True: values, order, gradients, errors, training."""

from __future__ import annotations

from collections.abc import Callable
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
    my_data,
    train_alone,
    train_together,
)
from tiers import cases, slow

import tfring as hvd
from tfring.keras import DistributedOptimizer
from tfring.ops import library

pytestmark = pytest.mark.skipif(
    bool(library.xla_trouble()), reason=f"no XLA: {library.xla_trouble()}"
)


def compiled(function: Callable[..., Any]) -> Any:
    return tf.function(function, jit_compile=True)


@pytest.mark.any_ranks
def test_scalars_empty_tensors_mixed_groups_and_factors(rank: int, size: int) -> None:
    @compiled
    def step(x: Any) -> Any:
        group = [x, tf.cast(x, tf.float16), tf.zeros([0, 3]), tf.reshape(x, [1, 1]) + 1]
        return hvd.grouped_allreduce(
            group, op=hvd.Average, prescale_factor=1 / 3, postscale_factor=3.0, name='odd "na\\me"'
        )

    mean = (size - 1) / 2
    scalar, half, empty, matrix = step(tf.constant(float(rank)))
    assert half.dtype == tf.float16 and empty.shape == (0, 3)
    np.testing.assert_allclose([scalar, matrix[0, 0] - 1], [mean, mean], rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(half, mean, rtol=1e-2)


def test_transposed_operands_arrive_in_row_major_order(rank: int, size: int) -> None:
    """XLA may turn a transpose into another layout of the operand; the runtime needs row-major."""

    @compiled
    def step(x: Any) -> Any:
        reduced = hvd.allreduce(tf.transpose(x), op=hvd.Sum, name="xla.layout")
        return reduced, tf.matmul(tf.ones([1, 2]), reduced), hvd.allgather(tf.transpose(x))

    x = tf.reshape(tf.range(6.0), [3, 2]) + rank
    total = np.arange(6.0).reshape(3, 2).T * size + size * (size - 1) / 2
    reduced, product, gathered = step(x)
    np.testing.assert_allclose(reduced, total)
    np.testing.assert_allclose(product, np.ones([1, 2]) @ total)
    np.testing.assert_array_equal(gathered[2 * rank : 2 * rank + 2], np.transpose(x))


def test_ranks_with_different_programs_meet_in_the_same_order(rank: int, size: int) -> None:
    """The ranks do different work, by which XLA would order their collectives differently."""

    @compiled
    def step(x: Any) -> Any:
        heavy = tf.reduce_sum(tf.matmul(tf.ones([64, 64]), tf.ones([64, 64]))) * 0
        first = x + heavy if rank % 2 else x
        a = hvd.allreduce(first, op=hvd.Sum, name="xla.order.a")
        b = hvd.allreduce(x * 2 + (0 if rank % 2 else heavy), op=hvd.Sum, name="xla.order.b")
        c = hvd.allgather(x, name="xla.order.c")
        if rank % 2:
            return c, tf.nn.relu(b), a + 0 * tf.reduce_sum(c)
        return c + 0 * tf.reduce_sum(a), b + 0 * a, a

    total = size * (size + 1) / 2
    for _ in range(200):
        c, b, a = step(tf.fill([4], rank + 1.0))
        np.testing.assert_array_equal(a, total)
        np.testing.assert_array_equal(b, 2 * total)
        assert c.shape == (4 * size,)


def test_nested_functions_loops_and_conditions_keep_the_order(rank: int, size: int) -> None:
    @tf.function
    def inner(x: Any, name: str) -> Any:
        return hvd.allreduce(x, op=hvd.Sum, name=name)

    @compiled
    def step(x: Any, times: Any) -> Any:
        before = inner(x, "xla.nest.before")
        y = x
        for i in tf.range(times):
            y = hvd.allreduce(y, op=hvd.Average, name="xla.nest.loop")
            if i % 2 == 0:
                y += hvd.allreduce(x, op=hvd.Sum, name="xla.nest.even")
            else:
                y -= inner(x, "xla.nest.odd")
        after = hvd.allreduce(x * 3, op=hvd.Sum, name="xla.nest.after")
        return (after, before, y) if rank % 2 else (after + 0 * before, before + 0 * y, y)

    for times in (1, 4, 5):
        after, before, y = step(tf.ones(2), tf.constant(times))
        np.testing.assert_array_equal(after, 3 * size)
        np.testing.assert_array_equal(before, size)
        np.testing.assert_array_equal(y, 1 + size * (times % 2))


@pytest.mark.any_ranks
def test_unused_results_and_rank_and_size(rank: int, size: int) -> None:
    from tfring.runtime._native import core

    @compiled
    def step(x: Any) -> Any:
        hvd.allreduce(tf.constant([1.0]), name="xla.unused")
        return x, hvd.rank_op(), hvd.size_op()

    step(tf.ones(2))
    before = core.counters()["collectives"]
    _, its_rank, its_size = step(tf.ones(2))
    assert core.counters()["collectives"] == before + 1
    assert (int(its_rank), int(its_size)) == (rank, size)


def loss_of_all(x: Any, tag: str) -> Any:
    y = hvd.allreduce(x * x, op=hvd.Sum, name=f"xla.{tag}.y")
    z = hvd.allgather(x, name=f"xla.{tag}.z") * tf.range(2.0 * hvd.size())
    w = hvd.broadcast(x, 0, name=f"xla.{tag}.w")
    return tf.reduce_sum(y) + tf.reduce_sum(z) + tf.reduce_sum(w)


def test_gradients_inside_and_outside_equal_those_without_xla(rank: int) -> None:
    def inside(x: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            value = loss_of_all(x, "inside")
        return tape.gradient(value, x)

    x = tf.constant([1.0, 2.0]) + rank
    expected = inside(x)
    np.testing.assert_allclose(compiled(inside)(x), expected)
    forward = compiled(lambda x: loss_of_all(x, "outside"))
    with tf.GradientTape() as tape:
        tape.watch(x)
        value = forward(x)
    np.testing.assert_allclose(tape.gradient(value, x), expected)


def test_an_allgather_of_different_rows_says_what_to_do(rank: int, several: int) -> None:
    step = compiled(lambda x: hvd.allgather(x, name="xla.rows"))
    # The last rank has two rows more, so that no rank guesses the sum of all rows right.
    rows = 3 if rank == several - 1 else 1
    with pytest.raises(tf.errors.FailedPreconditionError, match=r"xla\.rows.*same number of rows"):
        step(tf.ones([rows]))
    assert step(tf.ones([2])).shape == (2 * several,)


@pytest.mark.parametrize(
    ("call", "what"),
    [
        (lambda x: hvd.allreduce(tf.IndexedSlices(x, tf.range(2))), "IndexedSlices"),
        (lambda x: hvd.allgather(tf.boolean_mask(x, x > 0)), "only when the function runs"),
    ],
)
def test_what_cannot_be_compiled_says_so(call: Callable[[Any], Any], what: str) -> None:
    refusals = (NotImplementedError, tf.errors.UnimplementedError)
    with pytest.raises(refusals, match=f"(?s){what}.*jit_compile=False"):
        compiled(call)(tf.ones(2))


@pytest.mark.parametrize("takes", ["a sum", "a tape"])
def test_a_function_traced_without_xla_is_refused_inside_one_with(takes: str) -> None:
    """A tape adds ops that XLA cannot compile; without our error it would name those."""
    variable = tf.Variable([1.0, 2.0])

    @tf.function
    def plain(x: Any) -> Any:
        with tf.GradientTape() as tape:
            y = tf.reduce_sum(x * variable)
        if takes == "a sum":
            return hvd.allreduce(x, name="xla.plain.first")
        return hvd.DistributedGradientTape(tape).gradient(y, [variable])

    plain(tf.ones(2))
    with pytest.raises(NotImplementedError, match=r"(?s)Give each caller.*jit_compile=False"):
        compiled(lambda x: plain(x))(tf.ones(2))


OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "momentum": lambda: keras.optimizers.SGD(0.1, momentum=0.9),
    "adamw ema": lambda: keras.optimizers.AdamW(1e-3, use_ema=True, ema_momentum=0.9),
    "accumulation clipnorm": lambda: keras.optimizers.SGD(
        0.1, gradient_accumulation_steps=4, clipnorm=0.01
    ),
}


@pytest.mark.parametrize("name", cases(OPTIMIZERS, quick=["momentum"]))
def test_fit_with_jit_compile_equals_one_process(name: str) -> None:
    together = train_together(OPTIMIZERS[name](), steps=8, seed=1, jit_compile=True)
    assert together.jit_compile
    assert_same_weights(together, train_alone(OPTIMIZERS[name](), steps=8, seed=1))
    assert_same_on_all_ranks(together)


@pytest.mark.parametrize("accumulate", [None, slow(2)])
def test_an_overflow_on_one_rank_makes_all_skip(accumulate: Any, rank: int, size: int) -> None:
    keras.mixed_precision.set_global_policy("mixed_float16")
    try:
        model = build_model(5)
        inner = keras.optimizers.SGD(0.01, gradient_accumulation_steps=accumulate)
        scaling = keras.optimizers.LossScaleOptimizer(
            DistributedOptimizer(inner), initial_scale=16.0
        )
        model.compile(optimizer=scaling, loss=loss(), jit_compile=True)
        x, y = my_data(4)
        if rank == size - 1:
            x[PER_RANK] = np.inf
        model.fit(x, y, batch_size=PER_RANK, shuffle=False, verbose=0)
    finally:
        keras.mixed_precision.set_global_policy("float32")
    assert all(np.isfinite(weights).all() for weights in model.get_weights())
    assert_same_on_all_ranks(model)
