"""TensorFlow must not fold, merge or prune a collective, nor order it without need."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import tensorflow as tf

import tfring
from tfring.ops import library
from tfring.runtime._native import core


def collectives_run_by(call: Any) -> int:
    before = core.counters()["collectives"]
    call()
    return int(core.counters()["collectives"] - before)


def test_a_constant_is_reduced_each_time(size: int) -> None:
    @tf.function
    def step() -> Any:
        return tfring.allreduce(tf.constant([1.0, 2.0]), op=tfring.Sum) * 2

    step()
    for _ in range(2):
        assert collectives_run_by(step) == 1
    np.testing.assert_array_equal(step(), [2.0 * size, 4.0 * size])


def test_equal_collectives_are_not_merged(size: int) -> None:
    @tf.function
    def step(x: Any) -> Any:
        return tfring.allreduce(x, op=tfring.Sum) + tfring.allreduce(x, op=tfring.Sum)

    np.testing.assert_array_equal(step(tf.ones(2)), 2 * size)
    assert collectives_run_by(lambda: step(tf.ones(2))) in (1, 2)  # two requests, maybe fused
    operations = step.get_concrete_function(tf.ones(2)).graph.get_operations()
    assert sum(operation.type == "TfringAllreduce" for operation in operations) == 2


def test_arguments_and_variables_are_not_overwritten(rank: int, size: int) -> None:
    variable = tf.Variable(tf.fill([4], float(rank)))

    @tf.function
    def step(x: Any) -> Any:
        return tfring.grouped_allreduce([x, variable], op=tfring.Sum)

    argument = tf.fill([4], float(rank))
    total = size * (size - 1) / 2
    for _ in range(2):
        for got in step(argument):
            np.testing.assert_array_equal(got, total)
    np.testing.assert_array_equal(argument, rank)
    np.testing.assert_array_equal(variable, rank)


def test_two_collectives_overlap_in_time(rank: int, several: int) -> None:
    """No rank but 0 submits A before it has B's result: serial execution would never end."""

    @tf.function
    def step(x: Any) -> Any:
        if rank == 0:
            a = tfring.allreduce(x, name="overlap.a", op=tfring.Sum)
            return a, tfring.allreduce(x * 2, name="overlap.b", op=tfring.Sum)
        b = tfring.allreduce(x * 2, name="overlap.b", op=tfring.Sum)
        with tf.control_dependencies([b]):
            return tfring.allreduce(tf.identity(x), name="overlap.a", op=tfring.Sum), b

    for _ in range(20):
        a, b = step(tf.ones(3))
        np.testing.assert_array_equal(a, several)
        np.testing.assert_array_equal(b, 2 * several)


def test_a_name_used_twice_runs_one_after_the_other(size: int) -> None:
    @tf.function
    def step(x: Any) -> Any:
        first = tfring.allreduce(x, name="again", op=tfring.Sum)
        return first, tfring.allreduce(x * 2, name="again", op=tfring.Sum)

    for _ in range(10):
        first, second = step(tf.ones(2))
        np.testing.assert_array_equal(first, size)
        np.testing.assert_array_equal(second, 2 * size)


def test_rank_and_size_in_a_function(rank: int, size: int) -> None:
    """AutoGraph converts them, and would warn of a syntax that it does not know."""
    said: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("tensorflow")
    logger.addHandler(handler)
    try:
        both = tf.function(lambda: [tfring.rank(), tfring.size(), tfring.local_size()])()
    finally:
        logger.removeHandler(handler)
    assert [int(n) for n in both[:2]] == [rank, size]
    assert said == []


def test_a_collective_in_a_python_function_behind_a_collective(size: int) -> None:
    """An op after a collective may wait for another one; it blocks no thread of the runtime."""

    @tf.function
    def step(x: Any) -> Any:
        first = tfring.allreduce(x, op=tfring.Sum)
        again = tf.py_function(lambda y: tfring.allreduce(y, op=tfring.Sum), [first], tf.float32)
        return tfring.allreduce(again, op=tfring.Sum)

    for _ in range(5):
        np.testing.assert_array_equal(step(tf.ones(2)), size**3)


def test_a_retrace_on_one_rank_meets_the_others(rank: int, size: int) -> None:
    @tf.function
    def inner(x: Any) -> Any:
        return tfring.allreduce(x, op=tfring.Sum)

    @tf.function
    def step(x: Any, flavour: Any) -> Any:
        del flavour
        y = tfring.allreduce(tf.reduce_sum(x), op=tfring.Sum)
        return inner(y) + tfring.allreduce(tf.reduce_sum(x), op=tfring.Max)

    for flavour in range(4):
        # A new Python value is a new trace.
        got = step(tf.ones(2), flavour if rank == 0 else 0)
        assert float(got) == 2 * size * size + 2


def test_200_tensors_in_random_orders_inside_one_function(rank: int, size: int) -> None:
    count = 200

    @tf.function
    def step(x: Any) -> Any:
        order = np.random.default_rng(1000 + rank).permutation(count)
        results = {}
        for lane in range(4):  # each lane submits in its order; the lanes race each other
            before: list[Any] = []
            for i in order[lane::4]:
                # A collective is submitted after the input of the one before it is ready.
                with tf.control_dependencies(before):
                    tensor = tf.identity(x) + float(i)
                results[int(i)] = tfring.allreduce(tensor, name=f"random.{i}", op=tfring.Sum)
                before = [tensor]
        return [results[i] for i in range(count)]

    base = size * (size - 1) / 2
    for _ in range(20):
        got = step(tf.fill([3], float(rank)))
        for i, tensor in enumerate(got):
            np.testing.assert_array_equal(tensor, base + i * size)


def test_buffers_are_forwarded_where_nobody_else_reads_them(size: int) -> None:

    @tf.function
    def step(x: Any) -> Any:
        return tfring.grouped_allreduce([x * 2, x * 3, x], op=tfring.Sum)

    x = tf.ones(1000)
    step(x)
    before = library.output_counters()
    step(x)
    after = library.output_counters()
    assert after["forwarded"] - before["forwarded"] == 2
    assert after["allocated"] - before["allocated"] == 1


def test_results_are_not_overwritten_through_each_other(rank: int, size: int) -> None:
    """Behind them are ops that reuse their input's memory if it is free, and variables."""
    variables = [tf.Variable(tf.zeros([16])) for _ in range(12)]

    @tf.function
    def step(tensors: Any) -> Any:
        reduced = tfring.grouped_allreduce([t * 2 for t in tensors], op=tfring.Sum)
        for variable, value in zip(variables, reduced, strict=True):
            variable.assign(value)
        changed = [tf.negative(tf.square(value)) for value in reduced]
        with tf.control_dependencies(changed):
            for variable in variables[::2]:
                variable.assign_add(tf.ones([16]))
        return reduced, changed

    expected = 2 * sum(np.arange(16, dtype=np.float32) + other for other in range(size))
    for _ in range(5):
        reduced, changed = step([tf.constant(np.arange(16.0) + rank, tf.float32)] * 12)
        for value, square in zip(reduced, changed, strict=True):
            np.testing.assert_array_equal(value, expected)
            np.testing.assert_array_equal(square, -(expected**2))
        for i, variable in enumerate(variables):
            np.testing.assert_array_equal(variable, expected + (i % 2 == 0))
