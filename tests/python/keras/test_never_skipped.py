"""Ways in which a wrapped optimizer's gradients might not be reduced: each is repaired or an error.

A recorder replaces the collectives, as in test_hook.py.
"""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras_recorder import Recorder, X, Y, fit, recording

from tfring.keras.gradient_hook import find_hook
from tfring.keras.optimizer import DistributedOptimizer
from tfring.ops import topology_ops


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Recorder]:
    yield from recording(monkeypatch)


def test_a_trained_model_can_be_exported(recorder: Recorder, tmp_path: Any) -> None:
    model = fit(DistributedOptimizer(keras.optimizers.Adam(1e-2)))
    model.export(str(tmp_path / "exported"), verbose=False)


@pytest.mark.parametrize(
    "make_copy",
    [
        copy.copy,
        lambda o: pickle.loads(pickle.dumps(o)),
        lambda o: type(o).from_config(o.get_config()),
        lambda o: keras.optimizers.deserialize(keras.optimizers.serialize(o)),
    ],
)
def test_copies_are_plain_and_can_be_wrapped(recorder: Recorder, make_copy: Any) -> None:
    optimizer = DistributedOptimizer(keras.optimizers.SGD(0.5, momentum=0.5))
    again = make_copy(optimizer)
    assert type(again) is keras.optimizers.SGD
    assert find_hook(again) is None
    assert find_hook(DistributedOptimizer(again)) is not find_hook(optimizer)


def test_wrapping_twice_is_refused(recorder: Recorder) -> None:
    optimizer = DistributedOptimizer(keras.optimizers.SGD(0.1))
    with pytest.raises(ValueError, match="already"):
        DistributedOptimizer(optimizer)
    with pytest.raises(ValueError, match="already"):
        DistributedOptimizer(keras.optimizers.LossScaleOptimizer(optimizer))


def test_a_deepcopy_reduces_under_a_name_of_its_own(recorder: Recorder) -> None:
    optimizer = DistributedOptimizer(keras.optimizers.SGD(0.5), backward_passes_per_step=2)
    again = copy.deepcopy(optimizer)
    variable = keras.Variable([1.0])
    for _ in range(2):
        again.apply([tf.constant([1.0])], [variable])
    assert recorder.ran == ["tfring.optimizer.0.copy1.0.0"]
    np.testing.assert_allclose(variable, [0.0])  # the sum of two passes, as in the original
    assert find_hook(optimizer) is not None is not find_hook(copy.deepcopy(again))


@pytest.mark.parametrize("loaded", [False, True])
def test_an_optimizer_that_took_steps_is_refused_unless_resumed(
    recorder: Recorder, loaded: bool, tmp_path: Any
) -> None:
    model = fit(keras.optimizers.Adam(1e-2))
    if loaded:
        model.save(tmp_path / "m.keras")
        model = keras.models.load_model(tmp_path / "m.keras")
    with pytest.raises(ValueError, match=r"(?s)taken 4 steps already.*resumed=True"):
        DistributedOptimizer(model.optimizer)
    assert find_hook(model.optimizer) is None
    DistributedOptimizer(model.optimizer, resumed=True)
    if not loaded:
        model.compile(optimizer=model.optimizer, loss="mse")
    model.fit(X, Y, batch_size=8, verbose=0)
    assert recorder.ran == ["tfring.optimizer.0.0.0"] * 4
    assert int(model.optimizer.iterations) == 8


def test_a_local_variable_is_registered_before_a_step_is_traced(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topology_ops, "size_op", lambda process_set_id: tf.constant(4))
    for how, allowed in (({}, False), ({"run_eagerly": True}, True)):
        optimizer = DistributedOptimizer(keras.optimizers.SGD(1e-2))
        model = fit(optimizer, **how)
        assert recorder.built[-1].dtypes == ["float32"] * (4 + 2)  # and the rank's message
        if allowed:
            optimizer.register_local_var(model.layers[0].kernel)
        else:
            with pytest.raises(RuntimeError, match=r"(?s)dense.*kernel.*before the first training"):
                optimizer.register_local_var(model.layers[0].kernel)
        model.fit(X, Y, batch_size=8, verbose=0)
        assert recorder.built[-1].dtypes == ["float32"] * (5 if allowed else 6)


class OwnAccumulation(keras.optimizers.SGD):
    """Keeps accumulated gradients from `_clip_gradients`, where they would be reduced."""

    def _backend_apply_gradients(self, grads: Any, trainable_variables: Any) -> None:
        for gradient, variable in zip(grads, trainable_variables, strict=True):
            variable.assign_sub(gradient * 0.0)


def test_accumulation_past_the_hook_is_refused(recorder: Recorder) -> None:
    optimizer = DistributedOptimizer(OwnAccumulation(0.1, gradient_accumulation_steps=2))
    variable = keras.Variable([1.0])

    def steps() -> None:
        for _ in range(2):
            optimizer.apply([tf.constant([1.0])], [variable])

    optimizer.build([variable])
    with pytest.raises(RuntimeError, match="accumulates"):
        tf.function(steps)()


def test_a_second_model_cannot_use_the_optimizer(recorder: Recorder) -> None:
    optimizer = DistributedOptimizer(keras.optimizers.SGD(1e-2))
    fit(optimizer)
    with pytest.raises(ValueError, match="Unknown variable"):
        fit(optimizer)


def test_going_past_the_hook_is_refused(recorder: Recorder) -> None:
    optimizer = DistributedOptimizer(keras.optimizers.SGD(0.1))
    variable = keras.Variable([1.0])
    optimizer.build([variable])
    with pytest.raises(RuntimeError, match="not reduced"):
        keras.optimizers.SGD.apply(optimizer, [tf.constant([1.0])], [variable])
    np.testing.assert_array_equal(variable, [1.0])
