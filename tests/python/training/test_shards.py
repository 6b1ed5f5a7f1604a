"""Shards of tensors that have values in some rows only."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from tfring.training.shards import EqualShards


@pytest.mark.parametrize("shape", [(7, 3), (8, 4), (5,), (2, 3, 5), (1, 2), (3, 0)])
@pytest.mark.parametrize("count", [1, 2, 3, 4, 9])
def test_a_part_of_slices_is_that_of_the_dense_tensor(shape: tuple[int, ...], count: int) -> None:
    random = np.random.default_rng(1)
    rows = random.integers(0, shape[0], 6)  # some of them twice
    values = random.integers(-9, 9, (6, *shape[1:])).astype("float32")
    slices = tf.IndexedSlices(values, tf.constant(rows), tf.constant(shape, tf.int64))
    dense = tf.convert_to_tensor(slices)
    for index in range(count):
        shards = EqualShards(count, index)
        part = shards.part_of_slices(slices, tf.TensorShape(shape))
        np.testing.assert_array_equal(part, shards.part(dense))
