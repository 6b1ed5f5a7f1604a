"""A copy of a commit restores all kinds of variables in a second process."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

pytest.importorskip("tfring.runtime._native")

import tfring.keras as hvd
from tfring.elastic.tensorflow_state import TensorFlowState


def take_over(state: Any, other: Any) -> None:
    """Restores one state from the copy of another one."""
    other._unpack(iter([bytearray(part.read()) for part in state._pack()]))
    other.save()


def values(variables: Any) -> list[Any]:
    return [np.asarray(v) for v in variables]


def same(ours: list[Any], theirs: list[Any]) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(ours, theirs, strict=True))


DTYPES = [tf.float64, tf.float16, tf.bfloat16, tf.int64, tf.bool, tf.complex64]


def test_variables_of_all_kinds() -> None:
    def state_of(scale: int) -> Any:
        variables = [tf.Variable(tf.cast([[scale, 0], [1, scale]], kind)) for kind in DTYPES]
        empty, scalar = tf.Variable(tf.zeros([0, 3])), tf.Variable(float(scale))
        return TensorFlowState([*variables, empty, scalar], step=scale)

    state, other = state_of(3), state_of(0)
    committed = values(state.variables)
    state.commit()
    take_over(state, other)
    assert same(values(other.variables), committed) and other.step == 3
    other.variables[0].assign(tf.zeros([2, 2], tf.float64))
    other.restore()
    assert same(values(other.variables), committed)


def test_variables_of_a_session() -> None:
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        variables = [tf.compat.v1.get_variable(name, [2]) for name in "ab"]
        session.run(tf.compat.v1.global_variables_initializer())
        states: list[Any] = [TensorFlowState(variables, session, step=n) for n in (4, 0)]
        committed = session.run(variables)
        states[0].commit()
        parts = [bytearray(part.read()) for part in states[0]._pack()]
        session.run([v.initializer for v in variables])
        states[1]._unpack(iter(parts))
        assert same(session.run(variables), committed) and states[1].step == 4


def test_a_model_of_keras_with_its_optimizer() -> None:
    def state_of(seed: int) -> Any:
        keras.utils.set_random_seed(seed)
        layers = [keras.layers.Dense(5), keras.layers.BatchNormalization(), keras.layers.Dense(1)]
        model = keras.Sequential([keras.layers.Input((3,)), *layers])
        model.compile(keras.optimizers.Adam(0.01), "mse", jit_compile=False)
        return hvd.elastic.KerasState(model, epoch=seed)

    state, other = state_of(1), state_of(2)
    x = np.random.default_rng(0).normal(size=(40, 3))
    state.model.fit(x, x[:, :1], verbose=0)
    state.commit()
    take_over(state, other)
    assert same(values(other._variables()), values(state._variables()))
    assert int(other.model.optimizer.iterations) == 2 and other.epoch == 1
