"""Variables that tfring makes are where functions that XLA compiles for a GPU can read them.

TensorFlow keeps variables of int32, bool and string in host memory, also those of a GPU, and a
compiled function takes none that is on another device. So the dtypes are looked at here, on any
machine, and tests/gpu runs this file where there is a fake GPU.
"""

from __future__ import annotations

import contextlib
import itertools
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.ops import resource_variable_ops
from tiers import cases

import tfring
import tfring.keras as hvd
from tfring.ops import library
from tfring.runtime import topology
from tfring.training.accumulation import LocalGradientAggregationHelper

pytestmark = pytest.mark.skipif(
    bool(library.xla_trouble()), reason=f"no XLA: {library.xla_trouble()}"
)
PACKAGE = str(Path(hvd.__file__).parents[1])
ROWS, FEATURES = 4, 3
SGD = keras.optimizers.SGD
_names = itertools.count()


@contextlib.contextmanager
def made_by_tfring() -> Iterator[list[Any]]:
    """Collects the variables that are made while a function of tfring runs."""
    kind = resource_variable_ops.BaseResourceVariable
    original, found = kind.__init__, []

    def make(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        frame: Any = sys._getframe()
        while frame is not None and not frame.f_code.co_filename.startswith(PACKAGE):
            frame = frame.f_back
        if frame is not None:
            found.append(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kind, "__init__", make)
        yield found


def model_of(*middle: Any) -> Any:
    inputs = [keras.Input((FEATURES,)), keras.layers.Dense(2)]
    return keras.Sequential([*inputs, *middle, keras.layers.Dense(1)])


def train(model: Any, optimizer: Any) -> None:
    """Traces a step without XLA, then trains with it.

    What is not compiled does not run: conditions go astray on a fake GPU, which computes
    nothing.
    """
    data = [np.ones((4 * ROWS, width), "float32") for width in (FEATURES, 1)]
    counts = np.arange(4 * ROWS, dtype="float32")
    model.compile(optimizer, "mse", jit_compile=False)
    batch = tuple(tf.constant(values[:ROWS]) for values in (*data, counts))
    tf.function(model.train_step).get_concrete_function(batch)
    model.compile(optimizer, "mse", jit_compile=True)
    model.fit(*data, sample_weight=counts, batch_size=ROWS, verbose=0)


def fit(*middle: Any, inner: Callable[[], Any] = lambda: SGD(0.1), **options: Any) -> None:
    given = {name: make() for name, make in options.items()}
    # The fake leaves the count of steps as it finds the memory.
    optimizer = hvd.DistributedOptimizer(inner(), resumed=True, **given)
    train(model_of(*(make() for make in middle)), optimizer)


def local_layer() -> None:
    model = model_of()
    local = model.layers[-1]
    options: Any = {"backward_passes_per_step": 2, "resumed": True}
    train(model, hvd.PartialDistributedOptimizer(SGD(0.1), local_layers=local, **options))


def tape(inner: bool, outer: bool, weight_by: Any, **options: Any) -> None:
    """A gradient through a collective, in a function that XLA compiles or that calls one."""
    variable = tf.Variable([1.0, 2.0])
    name = f"variables.{next(_names)}"

    @tf.function(jit_compile=inner)
    def loss_of(x: Any) -> Any:
        gathered = tfring.allgather(x * variable, name=name, ignore_name_scope=True)
        return tf.reduce_sum(gathered**2)

    @tf.function(jit_compile=outer)
    def step(x: Any) -> Any:
        with tf.GradientTape() as plain:
            loss = loss_of(x)
        ours = hvd.DistributedGradientTape(plain, weight_by=weight_by, **options)
        return ours.gradient(loss, [variable])

    for _ in range(2):
        step(tf.ones([2]))


def helper() -> None:
    variable, optimizer = tf.Variable([1.0]), SGD(0.1)
    optimizer.build([variable])
    accumulated = LocalGradientAggregationHelper(2, name=f"variables.{next(_names)}")

    def step() -> Any:
        gradients = accumulated.compute_gradients([tf.ones([1])], [variable])
        return accumulated.apply_gradients(lambda: optimizer.apply(gradients, [variable]))

    tf.function(step).get_concrete_function()
    compiled = tf.function(step, jit_compile=True)
    for _ in range(2):
        compiled()


CASES: dict[str, tuple[Callable[[], Any], set[str]]] = {
    "passes": (
        lambda: fit(backward_passes_per_step=lambda: 2),
        {"passes", "accumulated_0", "weights_of_ranks"},
    ),
    "loss scale": (
        lambda: fit(
            inner=lambda: keras.optimizers.LossScaleOptimizer(SGD(0.1)),
            backward_passes_per_step=lambda: 2,
        ),
        {"passes"},
    ),
    "local layer": (local_layer, {"passes"}),
    "tape": (lambda: tape(True, True, 2.0), {"weights_of_ranks"}),
    "tape around": (lambda: tape(True, False, 2.0), set()),
    "helper": (helper, {"passes", "accumulated_0"}),
}


@pytest.fixture(autouse=True)
def as_with_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a fake GPU one rank runs this, which would compute no weights."""
    monkeypatch.setattr(topology, "always_alone", lambda: False)


@pytest.mark.parametrize("name", cases(CASES, quick=["passes", "tape around", "helper"]))
def test_compiled_functions_can_read_the_variables(name: str) -> None:
    run, expected = CASES[name]
    with made_by_tfring() as found:
        run()
    usual = tf.Variable(0.0).device
    for variable in found:
        kind = variable.dtype
        assert kind.is_floating or kind.is_complex or kind == tf.int64, variable.name
        assert variable.device == usual, variable.name
    assert expected <= {variable.name.split(":")[0].split("/")[-1] for variable in found}


def test_a_saver_of_tensorflow_1_finds_the_counter_as_it_was() -> None:
    """XLA compiles no TF1 graph, and files of before have a counter of int32."""
    helper = LocalGradientAggregationHelper(2, lambda gradients, _: gradients)
    with tf.Graph().as_default():
        variable = tf.compat.v1.get_variable("weight", [1])
        helper.compute_gradients([tf.ones([1])], [variable])
        saved = {v.op.name: v.dtype.base_dtype for v in tf.compat.v1.global_variables()}
    assert saved["passes"] == tf.int32
