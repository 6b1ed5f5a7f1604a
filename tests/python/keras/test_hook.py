"""Where the optimizer hook reduces, its names, and the class of a wrapped optimizer.

A recorder that returns the tensors replaces the collectives: these tests check what is reduced, and
when; tests/parallel has the real collectives.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras_recorder import Recorder, X, Y, build_model, fit, recording

from tfring.collectives.compression import Compression
from tfring.keras.gradient_hook import find_hook
from tfring.keras.optimizer import DistributedOptimizer
from tfring.ops import reduce_ops
from tfring.runtime import process_sets, topology


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Recorder]:
    yield from recording(monkeypatch)


@pytest.mark.parametrize("how", [{}, {"run_eagerly": True}, {"steps_per_execution": 2}])
def test_one_reduction_per_step(recorder: Recorder, how: Any) -> None:
    options = {"use_ema": True, "clipnorm": 1.0, "weight_decay": 0.1}
    fit(DistributedOptimizer(keras.optimizers.Adam(1e-2, **options)), **how)
    assert recorder.ran == ["tfring.optimizer.0.0.0"] * 4


def test_accumulation_reduces_once_per_update(recorder: Recorder) -> None:
    optimizer = keras.optimizers.SGD(1e-2, gradient_accumulation_steps=2)
    fit(DistributedOptimizer(optimizer), steps_per_execution=2)
    assert recorder.ran == ["tfring.optimizer.0.0.0"] * 2


def test_a_retrace_gives_the_same_names(recorder: Recorder) -> None:
    optimizer = DistributedOptimizer(keras.optimizers.SGD(1e-2))
    model = fit(optimizer)
    build_model()  # moves Keras' name counters
    (first,) = recorder.built
    recorder.built.clear()
    model.train_function = None
    model.fit(X[:7], Y[:7], batch_size=4, verbose=0)
    assert recorder.built and all(again == first for again in recorder.built)


def test_names_are_counted_or_given(recorder: Recorder) -> None:
    fit(DistributedOptimizer(keras.optimizers.SGD(1e-2)))
    fit(DistributedOptimizer(keras.optimizers.SGD(1e-2)))
    fit(DistributedOptimizer(keras.optimizers.SGD(1e-2), name="critic"))
    assert sorted(set(recorder.ran)) == [
        "tfring.optimizer.0.0.0",
        "tfring.optimizer.1.0.0",
        "tfring.optimizer.critic.0.0",
    ]


def test_what_names_an_optimizer_keeps_no_layer_or_variable() -> None:
    layer = keras.layers.Dense(1)
    layer.build((None, 2))
    optimizer = DistributedOptimizer(
        keras.optimizers.SGD(), local_layers=[layer], groups=[[layer.kernel]]
    )
    assert find_hook(optimizer).name.startswith("tfring.optimizer.")
    left = [weakref.ref(layer), weakref.ref(optimizer)]
    del layer, optimizer
    gc.collect()
    assert [ref() for ref in left] == [None, None]


def test_wrapping_what_is_no_optimizer_is_refused() -> None:
    with pytest.raises(TypeError, match="needs a Keras optimizer object"):
        DistributedOptimizer("sgd")


@pytest.mark.parametrize(
    ("kwargs", "error"),
    [
        ({"sparse_as_dense": "sometimes"}, ValueError),
        ({"compression": object()}, TypeError),
        ({"before_reduce": 1}, TypeError),
        ({"op": 17}, ValueError),
        ({"gradient_predivide_factor": 2.0, "op": reduce_ops.Sum}, ValueError),
        ({"gradient_predivide_factor": 0.0}, ValueError),
        ({"num_groups": 2, "groups": 3}, ValueError),
        ({"backward_passes_per_step": 0}, ValueError),
        ({"process_set": process_sets.ProcessSet([0])}, ValueError),
    ],
)
def test_impossible_parameters_are_refused(kwargs: Any, error: type[Exception]) -> None:
    optimizer = keras.optimizers.SGD(0.1)
    with pytest.raises(error):
        DistributedOptimizer(optimizer, **kwargs)
    assert find_hook(optimizer) is None


def test_accumulation_asked_for_twice_is_refused() -> None:
    with pytest.raises(ValueError, match="gradient_accumulation_steps"):
        DistributedOptimizer(
            keras.optimizers.SGD(0.1, gradient_accumulation_steps=2), backward_passes_per_step=2
        )


@pytest.mark.parametrize(("how", "average"), [({}, False), ({"run_eagerly": True}, True)])
def test_a_built_optimizer_learns_to_accumulate(
    recorder: Recorder, how: Any, average: bool, tmp_path: Any
) -> None:
    def trained(then: Any) -> Any:
        keras.utils.set_random_seed(1)
        model = build_model()
        model.compile(optimizer=keras.optimizers.SGD(1e-2, momentum=0.9), loss="mse", **how)
        model.fit(X[:16], Y[:16], batch_size=8, verbose=0, shuffle=False)
        return then(model)

    def whole_batches(model: Any) -> Any:
        model.fit(X[16:], Y[16:], batch_size=8, verbose=0, shuffle=False)
        return model

    def in_two_passes(model: Any) -> Any:
        if not average:  # a sum of two means over four is twice the mean over eight
            model.optimizer.learning_rate = 5e-3
        passes = {"backward_passes_per_step": 2, "average_aggregated_gradients": average}
        DistributedOptimizer(model.optimizer, resumed=True, **passes)
        model.compile(optimizer=model.optimizer, loss="mse", **how)
        model.fit(X[16:], Y[16:], batch_size=4, verbose=0, shuffle=False)
        return model

    plain, ours = trained(whole_batches), trained(in_two_passes)
    assert int(ours.optimizer.iterations) == int(plain.optimizer.iterations) == 4
    assert recorder.ran == ["tfring.optimizer.0.0.0"] * 2
    for a, b in zip(ours.get_weights(), plain.get_weights(), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
    ours.save(tmp_path / "m.keras")
    loaded = keras.models.load_model(tmp_path / "m.keras")
    for a, b in zip(loaded.optimizer.variables, ours.optimizer.variables, strict=True):
        np.testing.assert_array_equal(a, b)


def test_before_init_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topology, "is_initialized", lambda: False)
    optimizer = DistributedOptimizer(keras.optimizers.SGD(0.1))
    with pytest.raises(tf.errors.FailedPreconditionError, match="init"):
        optimizer.apply([tf.constant([1.0])], [keras.Variable([1.0])])


def test_a_missing_gradient_keeps_positions_and_changes_the_layout(recorder: Recorder) -> None:
    variables = [keras.Variable([1.0]), keras.Variable([2.0])]
    optimizer = DistributedOptimizer(keras.optimizers.SGD(1.0))
    optimizer.apply([tf.constant([1.0]), tf.constant([1.0])], variables)
    with pytest.warns(UserWarning, match="Gradients do not exist"):
        optimizer.apply([None, tf.constant([1.0])], variables)
    both, one = recorder.built
    assert both.name == one.name
    assert both.layout != one.layout
    np.testing.assert_array_equal([v.numpy()[0] for v in variables], [0.0, 0.0])


def test_no_gradient_at_all_still_meets_the_others(recorder: Recorder) -> None:
    variables = [keras.Variable([1.0])]
    optimizer = DistributedOptimizer(keras.optimizers.SGD(1.0))
    with pytest.raises(ValueError, match="No gradients"):
        optimizer.apply([None], variables)
    assert recorder.ran == ["tfring.optimizer.0.0.0"]


def test_overwrite_variables_travel_apart_and_by_max(recorder: Recorder) -> None:
    plain, scale = keras.Variable([1.0]), keras.Variable([5.0])
    scale.overwrite_with_gradient = True
    optimizer = DistributedOptimizer(keras.optimizers.SGD(1.0), compression=Compression.fp16)
    optimizer.apply([tf.constant([0.5]), tf.constant([7.0])], [plain, scale])
    np.testing.assert_array_equal([plain.numpy()[0], scale.numpy()[0]], [0.5, 7.0])
    assert [(r.name, r.op, r.dtypes) for r in recorder.built] == [
        ("tfring.optimizer.0.0.0", reduce_ops.Average, ["float16"] * 2),  # see first_steps.WIRE
        ("tfring.optimizer.0.0.overwrite.0", reduce_ops.Max, ["float32"]),
    ]


def test_options_reach_the_collective(recorder: Recorder) -> None:
    optimizer = DistributedOptimizer(keras.optimizers.SGD(1.0), gradient_predivide_factor=4.0)
    optimizer.apply([tf.constant([1.0])], [keras.Variable([1.0])])
    summing = DistributedOptimizer(keras.optimizers.SGD(1.0), op=reduce_ops.Sum)
    summing.apply([tf.constant([1.0])], [keras.Variable([1.0])])
    assert [(r.op, r.prescale, r.postscale) for r in recorder.built] == [
        (reduce_ops.Average, 0.25, 4.0),
        (reduce_ops.Sum, 1.0, 1.0),
    ]


@pytest.mark.parametrize("groups", [2, "lists"])
def test_groups_become_collectives(recorder: Recorder, groups: Any) -> None:
    variables = [keras.Variable([float(i)]) for i in range(4)]
    if groups == "lists":
        groups = [[variables[0], variables[2]]]
    optimizer = DistributedOptimizer(keras.optimizers.SGD(1.0), groups=groups)
    optimizer.apply([tf.constant([1.0])] * 4, variables)
    # The first bucket has first_steps.WIRE, too; a list comes before what is in none.
    first = 3 if groups != 2 else 2
    assert [len(r.dtypes) for r in recorder.built] == [first, 5 - first]
    stranger = DistributedOptimizer(keras.optimizers.SGD(1.0), groups=[[keras.Variable([1.0])]])
    with pytest.raises(ValueError, match="groups"):
        stranger.apply([tf.constant([1.0])] * 4, variables)


def test_hooks_see_gradients_before_and_after(recorder: Recorder) -> None:
    seen: list[Any] = []

    def before(gradients: list[Any], variables: list[Any]) -> list[Any]:
        seen.append(("before", [float(g[0]) for g in gradients], gradients[0].dtype.name))
        assert [v is w for v, w in zip(variables, [variable], strict=True)] == [True]
        return [tf.clip_by_value(g, -2.0, 2.0) for g in gradients]

    def after(gradients: list[Any], variables: list[Any]) -> list[Any]:
        seen.append(("after", [float(g[0]) for g in gradients], gradients[0].dtype.name))
        return [g + 0.5 for g in gradients]

    variable = keras.Variable([1.0])
    scaling = keras.optimizers.LossScaleOptimizer(
        keras.optimizers.SGD(1.0, clipvalue=0.25), initial_scale=2.0**20
    )
    DistributedOptimizer(
        scaling, compression=Compression.fp16, before_reduce=before, after_reduce=after
    )
    scaling.apply([tf.constant([3.0 * 2.0**20])], [variable])
    # Unscaled, then clipped by the hook, then compressed; the optimizer's own clipping is last.
    assert seen == [("before", [3.0], "float32"), ("after", [2.0], "float32")]
    assert recorder.built[0].dtypes == ["float16"] * 2
    np.testing.assert_array_equal(variable, [0.75])


@pytest.mark.parametrize("average", [False, True])
def test_hooks_run_once_per_update_on_what_was_accumulated(
    recorder: Recorder, average: bool
) -> None:
    seen: list[Any] = []

    def hook(gradients: list[Any], variables: list[Any]) -> list[Any]:
        seen.append([float(g[0]) for g in gradients])
        return gradients

    variable = keras.Variable([1.0])
    optimizer = DistributedOptimizer(
        keras.optimizers.SGD(0.1),
        backward_passes_per_step=2,
        average_aggregated_gradients=average,
        before_reduce=hook,
        after_reduce=hook,
    )
    for value in (1.0, 3.0):
        optimizer.apply([tf.constant([value])], [variable])
    total = 2.0 if average else 4.0
    assert seen == [[total], [total]]
    np.testing.assert_allclose(variable, [1.0 - 0.1 * total], rtol=1e-6)


def test_a_hook_that_loses_gradients_is_refused(recorder: Recorder) -> None:
    optimizer = DistributedOptimizer(keras.optimizers.SGD(1.0), after_reduce=lambda g, v: g[1:])
    with pytest.raises(ValueError, match="one for each"):
        optimizer.apply([tf.constant([1.0])], [keras.Variable([1.0])])


def test_loss_scaling_looks_at_reduced_gradients(recorder: Recorder) -> None:
    keras.mixed_precision.set_global_policy("mixed_float16")
    model = fit(DistributedOptimizer(keras.optimizers.SGD(1e-2)))
    assert isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer)
    assert recorder.ran == ["tfring.optimizer.0.0.0"] * 4
    before = model.get_weights()
    recorder.ran.clear()
    model.fit(X * 1e30, Y, batch_size=8, verbose=0)  # overflows: nothing is applied
    assert recorder.ran == ["tfring.optimizer.0.0.0"] * 4
    for old, new in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(old, new)


def test_loss_scaling_with_accumulation_agrees_on_finiteness(recorder: Recorder) -> None:
    keras.mixed_precision.set_global_policy("mixed_float16")

    def accumulating() -> Any:
        inner = keras.optimizers.SGD(1e-2, gradient_accumulation_steps=2)
        wrapped = DistributedOptimizer(inner)
        return keras.optimizers.LossScaleOptimizer(wrapped, initial_scale=1.0)

    fit(accumulating())
    assert recorder.ran.count("tfring.optimizer.0.finite.0") == 4
    assert recorder.ran.count("tfring.optimizer.0.0.0") == 2
    recorder.ran.clear()
    fit(accumulating(), X * 1e30)
    assert recorder.ran == ["tfring.optimizer.1.finite.0"] * 4


def test_a_plain_optimizer_under_loss_scaling_is_left_alone(recorder: Recorder) -> None:
    DistributedOptimizer(keras.optimizers.SGD(1.0))  # installs the class-level hook
    keras.mixed_precision.set_global_policy("mixed_float16")
    fit(keras.optimizers.SGD(1e-2))
    assert recorder.built == []


def test_multi_optimizer(recorder: Recorder) -> None:
    optimizer = keras.optimizers.MultiOptimizer(
        keras.optimizers.OptimizerMap(keras.optimizers.SGD(0.1))
    )
    fit(DistributedOptimizer(optimizer))
    assert recorder.ran == ["tfring.optimizer.0.0.0"] * 4
    accumulating = keras.optimizers.SGD(0.1, gradient_accumulation_steps=2)
    optimizer = keras.optimizers.MultiOptimizer(keras.optimizers.OptimizerMap(accumulating))
    fit(DistributedOptimizer(optimizer))  # one for each micro-step: more than needed, but right
    assert recorder.ran[4:] == ["tfring.optimizer.1.0.0"] * 4


def test_the_parts_of_keras_that_are_used_are_still_there() -> None:
    """Keras may rename private parts; this test fails before a training run does."""
    optimizer = keras.optimizers.SGD(0.1)
    for name in (
        "apply",
        "_clip_gradients",
        "_backend_update_step",
        "_get_variable_index",
        "_check_variables_are_known",
        "_trainable_variables",
        "gradient_accumulation_steps",
        "add_variable_from_reference",
        "_iterations",
        "_learning_rate",
        "_variables",
        "loss_scale_factor",
        "built",
    ):
        assert hasattr(optimizer, name), name
    scaling = keras.optimizers.LossScaleOptimizer(optimizer)
    for name in ("apply", "check_finite", "inner_optimizer", "initial_scale"):
        assert hasattr(scaling, name), name
    scaling.build([keras.Variable([1.0])])
    assert hasattr(scaling, "dynamic_scale")
    source = __import__("inspect").getsource(keras.optimizers.Optimizer._backend_apply_gradients)
    assert source.count("self._clip_gradients(") == 2
    assert source.count("self._backend_update_step(") == 2
