"""assert_equal: silent where variables are equal, and exact about the first that is not."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfring as hvd
from tfring.training.comparison.hashes import fingerprint

pytestmark = pytest.mark.any_ranks


def variables(rank_value: float = 0.0) -> list[Any]:
    model = keras.Sequential(
        [keras.layers.Input((2,)), keras.layers.Dense(3, kernel_initializer="ones", name="d")]
    )
    kernel = np.ones((2, 3), "f")
    kernel[1, 2] += rank_value
    model.set_weights([kernel, np.zeros(3)])
    return list(model.weights)


def test_equal_variables_pass() -> None:
    nothing_special = [tf.Variable(np.nan), tf.constant([True]), tf.Variable([], dtype=tf.float32)]
    hvd.assert_equal([*variables(), *nothing_special, tf.Variable([1], dtype=tf.bfloat16)])
    hvd.assert_equal([])


def test_the_first_difference_is_named(several: int) -> None:
    last = hvd.size() - 1
    odd = hvd.rank() == last
    given = [tf.Variable(5.0), *variables(0.5 if odd else 0.0), tf.Variable(float(odd))]
    right = 0
    text = (
        rf"rank {hvd.rank()}: the ranks' variables differ after step 3: \S*d/kernel \(number 1, "
        rf"float32\[2, 3\]\) of rank {last} is not that of rank {right}: element \[1, 2\] is "
        rf"1.0 on rank {right} and 1.5 on rank {last} \(1 more variables differ\)"
    )
    with pytest.raises(RuntimeError, match=text):
        hvd.assert_equal(given, "after step 3")
    hvd.assert_equal(variables())  # the next call works


def test_scalars_bits_and_types(several: int) -> None:
    odd = hvd.rank() == 1
    with pytest.raises(RuntimeError, match="it is 0 on rank 0 and 1 on rank 1"):
        hvd.assert_equal([tf.constant(int(odd))])
    with pytest.raises(RuntimeError, match=r"element \[0\] is 0.0 on rank 0 and -0.0 on rank 1"):
        hvd.assert_equal([tf.constant([-0.0 if odd else 0.0])])
    with pytest.raises(RuntimeError, match=r"is int32\[1\] on rank 0, float32\[1\] on rank 1"):
        hvd.assert_equal([tf.constant([1.0] if odd else [1])])
    with pytest.raises(RuntimeError, match="numbers are 1 on rank 0, 2 on rank 1"):
        hvd.assert_equal(variables()[: 1 + odd])


def test_strings_are_refused() -> None:
    with pytest.raises(TypeError, match="strings"):
        hvd.assert_equal([tf.constant("a")])


def test_the_fingerprint_changes_with_values_kinds_and_order() -> None:
    values = np.arange(6, dtype=np.float32)
    zero = values * 0
    lists = [
        [values, zero],
        [zero, values],
        [values[:3], values[3:], zero],
        [values[::-1], zero],
        [values.reshape(2, 3), zero],
        [values.astype(np.int32), zero],
        [values, zero[:0]],
        [],
    ]
    found = [fingerprint([tf.Variable(value) for value in each]) for each in lists]
    assert len(set(found)) == len(lists)
    same = [keras.Variable(values, dtype="float32"), tf.constant(zero)]
    assert fingerprint(same) == found[0]
    changed = values.copy()
    changed.view(np.int32)[4] ^= 1  # the last bit of an element
    assert fingerprint([changed, zero]) != fingerprint([values, zero])
    halves = [tf.cast(values, tf.bfloat16), tf.constant(True)]
    assert fingerprint(halves) == fingerprint(map(tf.Variable, halves))
