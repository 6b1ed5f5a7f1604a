"""Complex gradients: tape and optimizer reduce them as pairs of real numbers."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfring as hvd


class Descent(keras.optimizers.SGD):
    """Subtracts and assigns: where a complex variable is in GPU memory, TensorFlow's assign_sub,
    which SGD calls, ends the process with SIGSEGV, also without tfring."""

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        self.assign(variable, variable - tf.cast(learning_rate, variable.dtype) * gradient)


COMPLEX = pytest.mark.parametrize("dtype", ["complex64", "complex128"])


def gradient(variable: Any, reduced: bool = True, **options: Any) -> Any:
    """Of |v|^2 times the rank's number: another one on each rank, with imaginary parts."""
    tape = tf.GradientTape()
    if reduced:
        tape = hvd.DistributedGradientTape(tape, **options)
    with tape:
        loss = tf.math.real(tf.reduce_sum(variable * tf.math.conj(variable)))
        loss *= tf.cast(hvd.rank() + 1.0, loss.dtype)
    return tape.gradient(loss, variable)


def wanted(variable: Any, op: str) -> Any:
    everywhere = [np.asarray(variable) * 2 * (r + 1) for r in range(hvd.size())]
    return np.mean(everywhere, axis=0) if op == "Average" else np.sum(everywhere, axis=0)


@pytest.mark.any_ranks
@COMPLEX
@pytest.mark.parametrize("in_graph", [False, True])
@pytest.mark.parametrize("op", ["Average", "Sum"])
def test_a_tape(op: str, in_graph: bool, dtype: str) -> None:
    variable = tf.Variable(tf.constant([1 + 2j, -3j], dtype))

    def step() -> Any:
        return gradient(variable, op=getattr(hvd, op))

    got = (tf.function(step) if in_graph else step)()
    assert got.dtype == dtype
    np.testing.assert_allclose(got, wanted(variable, op), rtol=1e-6)


def test_beside_real_gradients_in_one_bucket() -> None:
    numbers = tf.Variable(tf.constant([1 + 2j], "complex64")), tf.Variable([1.0])

    @tf.function
    def step() -> Any:
        with hvd.DistributedGradientTape(tf.GradientTape()) as tape:
            loss = tf.math.abs(numbers[0][0]) * numbers[1][0] * (hvd.rank() + 1.0)
        return tape.gradient(loss, numbers)

    mean = (hvd.size() + 1) / 2
    first, second = step()
    np.testing.assert_allclose(first, [(1 + 2j) / 5**0.5 * mean], rtol=1e-6)
    np.testing.assert_allclose(second, [5**0.5 * mean], rtol=1e-6)
    calls = [op for op in _ops(step.get_concrete_function().graph) if op.type == "TfringAllreduce"]
    assert len(calls) == 1


def _ops(graph: Any) -> list[Any]:
    return list(graph.get_operations())


def test_16_bits_on_the_wire() -> None:
    variable = tf.Variable(tf.constant([1 + 2j]))
    got = gradient(variable, compression=hvd.Compression.fp16)
    np.testing.assert_allclose(got, wanted(variable, "Average"), rtol=1e-2)


def test_what_pairs_cannot_do_is_refused() -> None:
    with pytest.raises(TypeError, match="is complex, which op=Max does not support"):
        gradient(tf.Variable(tf.constant([1 + 2j]), name="spectrum"), op=hvd.Max)


@COMPLEX
@pytest.mark.parametrize("passes", [2])
def test_an_optimizer_of_keras(passes: int, dtype: str) -> None:
    variable = keras.Variable(np.array([1 + 2j, -3j], dtype), dtype=dtype)
    before = np.asarray(variable.value)
    optimizer = hvd.DistributedOptimizer(
        Descent(0.125),
        backward_passes_per_step=passes,
        average_aggregated_gradients=True,
    )

    @tf.function
    def step() -> None:
        optimizer.apply([gradient(variable.value, reduced=False)], [variable])

    for _ in range(passes):
        step()
    want = before - 0.125 * wanted(before, "Average")
    np.testing.assert_allclose(np.asarray(variable.value), want, rtol=1e-5)
