"""What test_matrix.py leaves out: defaults, plain values, mixed groups, sparse tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tfring
from tfring.collectives.compression import Compression
from tfring.ops import topology_ops

pytestmark = pytest.mark.any_ranks


def graphed(call: Callable[..., Any], in_graph: bool) -> Callable[..., Any]:
    return tf.function(call) if in_graph else call


def test_plain_python_and_numpy_values(rank: int, size: int) -> None:
    assert float(tfring.allreduce(1.5, op=tfring.Sum)) == 1.5 * size
    assert int(tfring.allreduce(2, op=tfring.Sum)) == 2 * size
    got = tfring.allreduce(np.full((2, 2), rank, np.float64), op=tfring.Max)
    np.testing.assert_array_equal(got, size - 1)
    np.testing.assert_array_equal(tfring.allgather([rank]), np.arange(size))
    assert float(tfring.broadcast(tf.Variable(float(rank)), size - 1)) == size - 1


def test_factors_keep_double_precision(rank: int, size: int) -> None:
    call = tf.function(
        lambda x: tfring.allreduce(x, op=tfring.Sum, prescale_factor=1 / 3, postscale_factor=0.1)
    )
    got = call(tf.constant([1.0], tf.float64))
    np.testing.assert_allclose(got, size / 30, rtol=1e-15)


@pytest.mark.parametrize("value", [60000.0, 2.0**-21])
@pytest.mark.parametrize("rows", [1, 20_000, 500_000])
def test_averages_of_float16_at_the_ends_of_its_range(rows: int, value: float, size: int) -> None:
    """A sum of two is not finite, a fraction loses bits, their average is exact."""
    x = tf.fill([rows * size], tf.constant(value, tf.float16))
    share = 1.0 / size
    wide = tf.cast(x, tf.float32)
    averages = [
        tfring.allreduce(x, op=tfring.Average),
        tfring.allreduce(x, op=tfring.Sum, postscale_factor=share),
        2 * tfring.allreduce(x, op=tfring.Average, prescale_factor=2.0**-2, postscale_factor=2.0),
        tfring.allreduce(wide, op=tfring.Average, compression=Compression.fp16),
        *tfring.grouped_allreduce([x, x[:3]], op=tfring.Average),
        tfring.reducescatter(x, op=tfring.Average),
        *tfring.grouped_reducescatter([x, x[:size]], op=tfring.Average),
    ]
    for i, average in enumerate(averages):
        np.testing.assert_array_equal(average, value, err_msg=f"average {i}")


@pytest.mark.parametrize("compression", [Compression.none, Compression.fp16, Compression.bf16])
def test_compression_gives_the_dtype_back(compression: Any, rank: int, size: int) -> None:
    for dtype in ("float32", "int32"):
        got = tfring.allreduce(
            tf.cast([rank + 1, 2], dtype), op=tfring.Sum, compression=compression
        )
        assert got.dtype.name == dtype
        np.testing.assert_array_equal(got, [size * (size + 1) // 2, 2 * size])


@pytest.mark.parametrize("in_graph", [False, True])
def test_grouped_allreduce_of_mixed_values(in_graph: bool, rank: int, size: int) -> None:
    def call(x: Any) -> Any:
        slices = tf.IndexedSlices(
            tf.ones([1, 2]) * x[0], tf.constant([rank]), tf.constant([size, 2])
        )
        return tfring.grouped_allreduce(
            [x, tf.cast(x, tf.int32), slices, x * 2, tf.zeros([0])], op=tfring.Sum
        )

    single, whole, sparse, double, empty = graphed(call, in_graph)(tf.fill([4], rank + 1.0))
    total = size * (size + 1) / 2
    np.testing.assert_array_equal(single, total)
    assert whole.dtype == tf.int32
    np.testing.assert_array_equal(whole, int(total))
    dense = tf.convert_to_tensor(sparse).numpy()
    np.testing.assert_array_equal(dense[:, 0], np.arange(1, size + 1))
    np.testing.assert_array_equal(double, 2 * total)
    assert empty.shape == (0,)


def test_an_empty_group_is_nothing() -> None:
    assert tfring.grouped_allreduce([]) == []


@pytest.mark.parametrize("in_graph", [False, True])
@pytest.mark.parametrize("op", [tfring.Average, tfring.Sum])
def test_indexed_slices_are_gathered(op: int, in_graph: bool, rank: int, size: int) -> None:
    """Every index occurs once in the result: row 0 of everybody, twice, and a row of one's own."""

    def call(values: Any) -> Any:
        slices = tf.IndexedSlices(values, tf.constant([0, rank + 1, 0]), tf.constant([size + 1, 2]))
        return tfring.allreduce(slices, op=op)

    got = graphed(call, in_graph)(tf.constant([[1.0, 1.0], [2.0, 2.0], [3.0, 3.0]]))
    assert isinstance(got, tf.IndexedSlices)
    assert sorted(got.indices.numpy().tolist()) == list(range(size + 1))
    dense = np.zeros((size + 1, 2))
    np.add.at(dense, got.indices.numpy(), got.values.numpy())
    share = size if op == tfring.Average else 1
    np.testing.assert_allclose(dense[0], 4.0 * size / share, rtol=1e-6)
    np.testing.assert_allclose(dense[1:], 2.0 / share, rtol=1e-6)


def test_a_traced_allgather_does_not_know_its_rows(rank: int, size: int) -> None:
    call = tf.function(
        lambda x: tfring.allgather(x), input_signature=[tf.TensorSpec([None, 2], tf.float32)]
    )
    assert call.get_concrete_function().structured_outputs.shape.as_list() == [None, 2]
    assert call(tf.ones([rank, 2])).shape == (size * (size - 1) // 2, 2)


@pytest.mark.parametrize("in_graph", [False, True])
def test_topology_ops(in_graph: bool) -> None:
    names = ("rank", "size", "local_rank", "local_size", "cross_rank", "cross_size")

    def call() -> Any:
        return [getattr(topology_ops, f"{name}_op")() for name in names]

    got = [int(value) for value in graphed(call, in_graph)()]
    assert got == [getattr(tfring, name)() for name in names]
    assert int(graphed(topology_ops.process_set_included_op, in_graph)()) == 1
