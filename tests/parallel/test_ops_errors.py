"""Errors as a script sees them: tf.errors classes, and a runtime that goes on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tfring

CASES: dict[str, tuple[Callable[[bool], Any], tuple[str, ...]]] = {
    "dtype": (
        lambda odd: tfring.allreduce(tf.ones(2, tf.float64 if odd else tf.float32), name="m.dtype"),
        ("m.dtype", "float32", "float64"),
    ),
    "shape": (
        lambda odd: tfring.allreduce(tf.ones([3, 2] if odd else [2, 3]), name="m.shape"),
        ("m.shape", "[3, 2]", "[2, 3]"),
    ),
    "op": (
        lambda odd: tfring.allreduce(tf.ones(2), op=tfring.Max if odd else tfring.Sum, name="m.op"),
        ("m.op", "Max", "Sum"),
    ),
    "root": (
        lambda odd: tfring.broadcast(tf.ones(2), 1 if odd else 0, name="m.root"),
        ("m.root", "root 0", "root 1"),
    ),
    "scale": (
        lambda odd: tfring.allreduce(
            tf.ones(2), prescale_factor=0.5 if odd else 0.25, name="m.scale"
        ),
        ("m.scale", "0.5", "0.25"),
    ),
    "rows": (
        lambda odd: tfring.allgather(tf.ones([2, 5] if odd else [2, 6]), name="m.rows"),
        ("m.rows", "[2, 5]", "[2, 6]"),
    ),
    "kind": (
        lambda odd: (
            tfring.allgather(tf.ones(2), name="m.kind")
            if odd
            else tfring.allreduce(tf.ones(2), name="m.kind")
        ),
        ("m.kind", "allgather", "allreduce"),
    ),
    "length": (
        lambda odd: tfring.grouped_allreduce([tf.ones(2)] * (2 if odd else 3), name="m.length"),
        ("m.length", "2", "3"),
    ),
}


BAD_CALLS: dict[str, Callable[[], Any]] = {
    "allreduce bool": lambda: tfring.allreduce(tf.constant([True])),
    "allreduce text": lambda: tfring.allreduce("a"),
    "grouped bool": lambda: tfring.grouped_allreduce([tf.constant([True])]),
    "sparse Min": lambda: tfring.allreduce(
        tf.IndexedSlices(tf.ones([1, 2]), tf.constant([0])), op=tfring.Min
    ),
    "allgather text": lambda: tfring.allgather(tf.constant(["a"])),
    "allgather scalar": lambda: tfring.allgather(tf.constant(1.0)),
    "broadcast text": lambda: tfring.broadcast("a", 0),
    "broadcast root": lambda: tfring.broadcast(tf.ones(2), "zero"),
}


@pytest.mark.parametrize("case", BAD_CALLS)
def test_a_refused_call_uses_up_no_name(case: str, rank: int, size: int) -> None:
    """One rank's bad call takes no part: the next calls without names meet."""
    if rank == size - 1:
        with pytest.raises((TypeError, ValueError, NotImplementedError)):
            BAD_CALLS[case]()
    ones = tf.ones(3)
    np.testing.assert_array_equal(tfring.allreduce(ones, op=tfring.Sum), size * ones)
    np.testing.assert_array_equal(tfring.grouped_allreduce([ones], op=tfring.Sum)[0], size * ones)
    np.testing.assert_array_equal(tfring.allgather(ones), tf.ones(3 * size))
    np.testing.assert_array_equal(tfring.broadcast(ones, 0), ones)


@pytest.mark.parametrize("in_graph", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_disagreement(case: str, in_graph: bool, rank: int, several: int) -> None:
    """Every rank gets the error, which names the tensor, the ranks and the values."""
    call, parts = CASES[case]
    odd_one = several - 1
    run = tf.function(call) if in_graph else call
    with pytest.raises(tf.errors.FailedPreconditionError) as caught:
        run(rank == odd_one)
    for part in (*parts, f"rank {odd_one}", "rank 0" if several == 2 else "ranks 0"):
        assert part in str(caught.value)
    np.testing.assert_array_equal(tfring.allreduce(tf.ones(2), op=tfring.Sum), several)


def test_a_root_that_does_not_exist(size: int) -> None:
    with pytest.raises(tf.errors.InvalidArgumentError, match=f"root rank {size}"):
        tfring.broadcast(1.0, size, name="no.root")
    assert float(tfring.broadcast(1.0, size - 1, name="no.root")) == 1.0


def test_dtypes_that_cannot_be_reduced() -> None:
    with pytest.raises(TypeError, match=r"tensor words has dtype string.*supported are float16"):
        tfring.allreduce(tf.constant("text"), name="words")
    with pytest.raises(TypeError, match=r"tensor flags has dtype bool.*supported are"):
        tfring.allreduce(tf.constant([True]), name="flags")
    with pytest.raises(TypeError, match=r"dtype string"):
        tfring.allgather(tf.constant(["text"]), name="words")


def test_a_scalar_cannot_be_gathered() -> None:
    with pytest.raises(ValueError, match=r"reshape it to \[1\]"):
        tfring.allgather(1.0)

    @tf.function(input_signature=[tf.TensorSpec(None, tf.float32)])
    def step(x: Any) -> Any:
        return tfring.allgather(x, name="unknown.rank")

    with pytest.raises(tf.errors.InvalidArgumentError, match=r"unknown\.rank.*reshape it to \[1\]"):
        step(tf.constant(1.0))


def test_an_error_in_one_of_two_collectives(rank: int, several: int) -> None:
    """The step fails as a whole, and nothing of it stays behind."""

    @tf.function
    def step(x: Any) -> Any:
        good = tfring.allreduce(x, name="half.good", op=tfring.Sum)
        bad = tfring.allreduce(tf.ones([rank + 1]), name="half.bad", op=tfring.Sum)
        return good, bad

    for _ in range(3):
        with pytest.raises(tf.errors.FailedPreconditionError, match=r"half\.bad"):
            step(tf.ones(2))
    got = tfring.allreduce(tf.ones(2), name="half.good", op=tfring.Sum)
    np.testing.assert_array_equal(got, several)
