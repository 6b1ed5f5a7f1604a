"""Ranks whose gradients differ: the error names the variable, the difference and the remedy."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf

import tfring as hvd

DENSE = "has a dense gradient"


@pytest.fixture
def others() -> str:
    """The ranks that do not differ, as messages list them."""
    if hvd.size() == 1:
        pytest.skip("one rank agrees with itself")
    ranks = [rank for rank in range(hvd.size()) if rank != 1]
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"


def error_of(loss: Callable[[], Any], variables: list[Any], graph: bool) -> str:
    def step() -> Any:
        with tf.GradientTape() as tape:
            value = loss()
        reduced = hvd.DistributedGradientTape(tape).gradient(value, variables)
        return [tf.convert_to_tensor(each) for each in reduced if each is not None]

    with pytest.raises(tf.errors.FailedPreconditionError) as caught:
        (tf.function(step) if graph else step)()
    assert float(hvd.allreduce(1.0, op=hvd.Sum)) == hvd.size(), "the next collective works"
    return str(caught.value)


def model(odd: bool) -> list[Any]:
    """Variables of more than one bucket; on the odd rank they have other names."""
    name = "other" if odd else "head"
    return [
        tf.Variable(tf.ones([4]), name="trunk"),
        tf.Variable(tf.ones([3, 2]), name=f"{name}_a"),
        tf.Variable(tf.ones([2]), name=f"{name}_b"),
        tf.Variable(tf.ones([600, 600]), name=f"{name}_c"),
    ]


@pytest.mark.any_ranks
@pytest.mark.parametrize("graph", [False, True])
def test_a_gradient_that_one_rank_lacks(others: str, graph: bool) -> None:
    odd = hvd.rank() == 1
    variables = model(odd)

    def loss() -> Any:
        return tf.add_n([tf.reduce_sum(v) for i, v in enumerate(variables) if i != 1 or not odd])

    for _ in range(2):
        text = error_of(loss, variables, graph)
        spec = r"\(float32, shape \(3, 2\)\)"
        assert re.search(rf"'head_a(:0)?' {spec} {DENSE} on {others}; ", text), text
        assert re.search(rf"'other_a(:0)?' {spec} has no gradient on rank 1\. ", text), text
        assert "tape.gradient(..., unconnected_gradients=tf.UnconnectedGradients.ZERO)" in text


@pytest.mark.any_ranks
def test_the_remedy_is_right(others: str) -> None:
    odd = hvd.rank() == 1
    variables = model(False)
    with tf.GradientTape() as tape:
        loss = tf.add_n([tf.reduce_sum(v) for i, v in enumerate(variables) if i != 1 or not odd])
    reduced = hvd.DistributedGradientTape(tape).gradient(
        loss, variables, unconnected_gradients=tf.UnconnectedGradients.ZERO
    )
    part = (hvd.size() - 1) / hvd.size()
    tf.debugging.assert_near(reduced[1], tf.fill([3, 2], part))


@pytest.mark.parametrize("graph", [False, True])
def test_a_sparse_gradient_on_one_rank(others: str, graph: bool) -> None:
    variables = model(False)

    def loss() -> Any:
        table = tf.gather(variables[1], [0, 2]) if hvd.rank() == 1 else variables[1]
        return tf.reduce_sum(table) + tf.reduce_sum(variables[3])

    text = error_of(loss, [variables[1], variables[3]], graph)
    assert re.search(rf"'head_a(:0)?' [^;]* {DENSE} on {others}; ", text), text
    assert re.search(r"'head_a(:0)?' [^;]* has a sparse gradient on rank 1\. ", text), text
    assert "sparse_as_dense=True on every rank" in text


@pytest.mark.parametrize(
    ("value", "seen"),
    [
        (tf.ones([5, 2]), r"\(float32, shape \(5, 2\)\)"),
        (tf.ones([3, 2], tf.float64), r"\(float64, shape \(3, 2\)\)"),
    ],
)
def test_another_shape_or_dtype(others: str, value: Any, seen: str) -> None:
    variables = model(False)
    if hvd.rank() == 1:
        variables[1] = tf.Variable(value, name="head_a")

    def loss() -> Any:
        return tf.add_n([tf.cast(tf.reduce_sum(v), tf.float32) for v in variables])

    text = error_of(loss, variables, graph=False)
    spec = r"\(float32, shape \(3, 2\)\)"
    assert re.search(rf"'head_a(:0)?' {spec} {DENSE} on {others}; ", text), text
    assert re.search(rf"'head_a(:0)?' {seen} {DENSE} on rank 1\. Build the same model", text), text


@pytest.mark.parametrize(
    ("missing", "seen"), [(1, rf"'head_b(:0)?' [^;]* {DENSE}"), (3, "no variable 4")]
)
def test_a_variable_that_one_rank_lacks(others: str, missing: int, seen: str) -> None:
    variables = model(False)
    name = f"head_{'abc'[missing - 1]}"
    if hvd.rank() == 1:
        del variables[missing]

    def loss() -> Any:
        return tf.add_n([tf.reduce_sum(v) for v in variables])

    text = error_of(loss, variables, graph=False)
    assert re.search(rf"'{name}(:0)?' [^;]* {DENSE} on {others}; {seen} on rank 1\. Build", text)
