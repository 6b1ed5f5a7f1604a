"""The op that multiplies gradients by the weight of a rank."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tfring.ops import gradients, library  # noqa: F401

WHOLE = ["int8", "uint8", "int32", "int64"]
DTYPES = [*WHOLE, "float16", "bfloat16", "float32", "float64", "complex64", "complex128"]


def address(tensor: Any) -> int:
    return int(np.asarray(memoryview(tensor)).ctypes.data)


def scaled(tensor: Any, factor: float) -> Any:
    return library.load().tfring_scaled(tensor=tensor, factor=factor)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("factor", [0.5, 3.0])
def test_each_element_is_multiplied(dtype: str, factor: float) -> None:
    values = np.arange(100_000) % 40 - (0 if dtype == "uint8" else 20)
    want = (values * factor).astype("int64" if dtype in WHOLE else "complex128")
    got = scaled(tf.cast(tf.constant(values), dtype), factor)
    narrow = {"float16": 1e-3, "bfloat16": 1e-2}.get(dtype, 1e-6)
    np.testing.assert_allclose(tf.cast(got, "complex128"), want, rtol=narrow)


def test_a_factor_of_1_hands_the_tensor_on() -> None:
    tensor = tf.constant([np.nan, 3.0])
    got = scaled(tensor, 1.0 + 1e-7)
    np.testing.assert_array_equal(got, tensor)
    assert address(got) == address(tensor)


def test_times_0_is_0_even_of_nan() -> None:
    np.testing.assert_array_equal(scaled(tf.constant([np.nan, np.inf, 3.0]), 0.0), [0.0, 0.0, 0.0])


def test_an_input_that_is_still_needed_keeps_its_values() -> None:
    @tf.function
    def both(x: Any) -> Any:
        y = x + 1.0
        return scaled(y, 2.0), y

    twice, once = both(tf.constant([1.0]))
    assert (twice.numpy(), once.numpy()) == (4.0, 2.0)


def test_its_gradient_has_the_same_factor() -> None:
    x = tf.Variable([2.0])
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(scaled(x, 3.0) ** 2)
    np.testing.assert_array_equal(tape.gradient(loss, x), [36.0])


def test_a_factor_with_dimensions_is_refused() -> None:
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"a scalar as its factor, not shape"):
        library.load().tfring_scaled(tensor=[1.0], factor=[1.0, 2.0])


def test_the_factor_has_a_gradient_too() -> None:
    x, factor = tf.constant([1.0, 2.0]), tf.Variable(3.0)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(scaled(x, factor) * [10.0, 100.0])
    np.testing.assert_array_equal(tape.gradient(loss, factor), 210.0)
