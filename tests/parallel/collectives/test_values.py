"""The TensorFlow collectives' values, eager and in a tf.function, against numpy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tfring
from tfring.collectives import broadcast
from tfring.collectives.compression import Compression
from tfring.ops import topology_ops

REDUCIBLE = ("float16", "bfloat16", "float32", "float64", "int8", "uint8", "int32", "int64")
OTHERS = ("bool", "int16", "uint16", "uint32", "uint64", "complex64", "complex128")
REDUCTIONS: dict[int, Callable[[Any], Any]] = {
    tfring.Sum: lambda all_: all_.sum(0),
    tfring.Min: lambda all_: all_.min(0),
    tfring.Max: lambda all_: all_.max(0),
    tfring.Product: lambda all_: all_.prod(0),
}


def tensor_of(owner: int, dtype: str, shape: tuple[int, ...] = (5, 7)) -> Any:
    rng = np.random.default_rng(owner)
    return tf.cast(tf.constant(rng.integers(1, 4, size=shape)), dtype)


def as_float(tensor: Any) -> Any:
    return tf.cast(tensor, tf.float64).numpy()


def graphed(call: Callable[..., Any], in_graph: bool) -> Callable[..., Any]:
    return tf.function(call) if in_graph else call


@pytest.mark.parametrize("in_graph", [False, True])
@pytest.mark.parametrize("dtype", REDUCIBLE)
def test_allreduce(dtype: str, in_graph: bool, rank: int, size: int) -> None:
    everything = np.stack([as_float(tensor_of(r, dtype)) for r in range(size)])
    for op, reduction in REDUCTIONS.items():
        call = graphed(lambda x, op=op: tfring.allreduce(x, op=op), in_graph)
        got = call(tensor_of(rank, dtype))
        assert got.dtype.name == dtype
        np.testing.assert_array_equal(as_float(got), reduction(everything))


@pytest.mark.parametrize("in_graph", [False, True])
def test_average_is_the_default(in_graph: bool, rank: int, size: int) -> None:
    call = graphed(lambda x: tfring.allreduce(x), in_graph)
    for dtype in ("float32", "float64"):
        got = call(tf.fill([3], tf.cast(rank, dtype)))
        np.testing.assert_allclose(got, (size - 1) / 2, rtol=1e-6)
    got = call(tf.fill([3], tf.constant(size * (rank + 1), tf.int32)))
    np.testing.assert_array_equal(got, size * (size + 1) // 2)


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
    def call(values: Any) -> Any:
        # Row 0 of everybody, twice, and a row of one's own.
        slices = tf.IndexedSlices(values, tf.constant([0, rank + 1, 0]), tf.constant([size + 1, 2]))
        return tfring.allreduce(slices, op=op)

    got = graphed(call, in_graph)(tf.constant([[1.0, 1.0], [2.0, 2.0], [3.0, 3.0]]))
    assert isinstance(got, tf.IndexedSlices)
    assert got.indices.shape[0] in (None, 2 * size)
    dense = np.zeros((size + 1, 2))
    np.add.at(dense, got.indices.numpy(), got.values.numpy())
    share = size if op == tfring.Average else 1
    np.testing.assert_allclose(dense[0], 4.0 * size / share, rtol=1e-6)
    np.testing.assert_allclose(dense[1:], 2.0 / share, rtol=1e-6)


@pytest.mark.parametrize("dtype", REDUCIBLE + OTHERS)
def test_allgather_of_different_rows(dtype: str, rank: int, size: int) -> None:
    call = tf.function(
        lambda x: tfring.allgather(x), input_signature=[tf.TensorSpec([None, 2], dtype)]
    )
    rows = [tf.cast(tf.fill([r % 3, 2], r % 2), dtype) for r in range(1, size + 1)]
    got = call(rows[rank])
    assert got.dtype.name == dtype
    np.testing.assert_array_equal(got, tf.concat(rows, 0))
    assert call.get_concrete_function().structured_outputs.shape.as_list() == [None, 2]


@pytest.mark.parametrize("dtype", REDUCIBLE + OTHERS)
def test_broadcast(dtype: str, rank: int, size: int) -> None:
    call = tf.function(lambda x, root: tfring.broadcast(x, root))
    for root in range(size):
        got = call(tf.cast(tf.fill([2, 3], (rank + 1) % 2), dtype), root)
        assert got.dtype.name == dtype and got.shape == (2, 3)
        np.testing.assert_array_equal(got, tf.cast(tf.fill([2, 3], (root + 1) % 2), dtype))


def test_bucket_broadcast_is_one_op(rank: int, size: int) -> None:
    got = broadcast.bucket_broadcast(
        [tf.fill([2], rank), tf.fill([3, 1], rank * 10)], name="values.bucket", root_rank=size - 1
    )
    np.testing.assert_array_equal(got[0], size - 1)
    np.testing.assert_array_equal(got[1], 10 * (size - 1))


@pytest.mark.parametrize("in_graph", [False, True])
def test_topology_ops(in_graph: bool, rank: int, size: int) -> None:
    def call() -> Any:
        return (
            topology_ops.rank_op(),
            topology_ops.size_op(),
            topology_ops.local_rank_op(),
            topology_ops.local_size_op(),
            topology_ops.cross_rank_op(),
            topology_ops.cross_size_op(),
            topology_ops.process_set_included_op(),
        )

    got = [int(value) for value in graphed(call, in_graph)()]
    assert got == [
        rank,
        size,
        tfring.local_rank(),
        tfring.local_size(),
        tfring.cross_rank(),
        tfring.cross_size(),
        1,
    ]
