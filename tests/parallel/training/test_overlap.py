"""What overlap.pin changes in graphs: no value, and no graph gets a circle, which XLA would refuse.

It works where there is a GPU. Here it is made to work on CPUs, because a fake GPU computes
nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from tiers import cases

import tfring.keras as hvd
from tfring.ops import library, xla
from tfring.training import overlap

pytestmark = pytest.mark.skipif(
    bool(library.xla_trouble()), reason=f"no XLA: {library.xla_trouble()}"
)
ROWS, WIDTH, LAYERS = 4, 6, 4

# Takes what it trains on to make a step of it: a function of a batch.
Make = Callable[[Any], Callable[[Any], None]]


def dense(count: int = LAYERS) -> Any:
    layers = [keras.layers.Dense(WIDTH, activation="tanh") for _ in range(count)]
    return keras.Sequential([keras.layers.Input((WIDTH,)), *layers])


def loss_of(model: Any, x: Any) -> Any:
    return tf.reduce_sum(model(x, training=True) ** 2)


def descend(model: Any, x: Any, **options: Any) -> None:
    """One step of gradient descent; a bucket for each layer unless `options` say otherwise."""
    variables = model.trainable_variables
    with tf.GradientTape() as tape:
        loss = loss_of(model, x)
    tape = hvd.DistributedGradientTape(tape, **{"num_groups": len(model.layers), **options})
    for variable, gradient in zip(variables, tape.gradient(loss, variables), strict=True):
        variable.assign_sub(0.1 * tf.convert_to_tensor(gradient))


def with_layers(*middle: Callable[[], Any]) -> Callable[[], Any]:
    """What makes a model that has some layers between dense ones."""
    return lambda: keras.Sequential(
        [*dense(2).layers, *(each() for each in middle), *dense(2).layers]
    )


def residual() -> Any:
    x = keras.layers.Input((WIDTH,))
    shared = keras.layers.Dense(WIDTH, activation="tanh")
    y = shared(x)
    y = keras.layers.Add()([y, keras.layers.Dense(WIDTH)(y)])
    y = keras.layers.LayerNormalization()(y)
    y = keras.layers.Add()([shared(y), keras.layers.Dense(WIDTH)(y)])
    return keras.Model(x, y)


def nested_layers(model: Any) -> Any:
    """Forward and backward pass of each layer are functions of their own, one a loop."""
    layers = [tf.function(layer) for layer in model.layers]

    def looped(x: Any) -> Any:
        for layer in layers:
            y = tf.while_loop(
                lambda i, _: i < 2,
                lambda i, y, of=layer: (i + 1, of(y)),
                [0, x],
                maximum_iterations=2,
            )
            x = y[1]
        return x

    variables = model.trainable_variables

    def step(x: Any) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(looped(x) ** 2)
        tape = hvd.DistributedGradientTape(tape, num_groups=LAYERS)
        for variable, gradient in zip(variables, tape.gradient(loss, variables), strict=True):
            variable.assign_sub(0.1 * gradient)

    return step


def gradient_of_gradients(model: Any) -> Any:
    """Through the reduction, its barriers and its collectives."""

    def step(x: Any) -> None:
        variables = model.trainable_variables
        reduced = hvd.DistributedGradientTape(tf.GradientTape(), num_groups=LAYERS)
        with tf.GradientTape() as outer:
            with reduced:
                loss = loss_of(model, x)
            penalty = tf.add_n([tf.reduce_sum(g**2) for g in reduced.gradient(loss, variables)])
        for variable, gradient in zip(variables, outer.gradient(penalty, variables), strict=True):
            variable.assign_sub(0.001 * gradient)

    return step


def gradient_in_graph(model: Any) -> Any:
    """As tf.gradients finds it: by the edges of the graph, as they are afterwards."""

    def step(x: Any) -> None:
        variables = model.trainable_variables
        with tf.GradientTape() as tape:
            loss = loss_of(model, x)
        tape = hvd.DistributedGradientTape(tape, num_groups=LAYERS)
        reduced = tape.gradient(loss, variables)
        penalty = tf.add_n([tf.reduce_sum(g**2) for g in reduced])
        [slope] = tf.gradients(penalty, [x])
        for variable, gradient in zip(variables, reduced, strict=True):
            variable.assign_sub(0.1 * gradient + 0.001 * tf.reduce_sum(slope))

    return step


def stepping(**options: Any) -> Any:
    return lambda model: lambda x: descend(model, x, **options)


def in_reverse(model: Any) -> Any:
    """The first bucket has the gradient that the backward pass computes last."""
    groups = [layer.trainable_variables for layer in model.layers]
    return lambda x: descend(model, x, num_groups=0, groups=groups)


# A model, a step, and how many barriers there are; None: at least one. Each bucket but the last
# has one in the usual case.
CASES: dict[str, tuple[Callable[[], Any], Make, int | None]] = {
    "dense": (dense, stepping(), LAYERS - 1),
    "in reverse": (dense, in_reverse, None),
    "residual": (residual, stepping(num_groups=4), None),
    "synchronized": (with_layers(hvd.SyncBatchNormalization), stepping(), None),
    "nested layers": (dense, nested_layers, LAYERS - 1),
    "gradient of gradients": (dense, gradient_of_gradients, LAYERS - 1),
    "gradient in the graph": (dense, gradient_in_graph, LAYERS - 1),
}


def train(name: str, rank: int) -> tuple[list[Any], int]:
    """Trains for three steps; returns the weights, and how many barriers there are."""
    model_of, make, _ = CASES[name]
    keras.utils.set_random_seed(1)
    model = model_of()
    step = tf.function(make(model), jit_compile=True, autograph=False)
    generator = np.random.default_rng(rank)
    for _ in range(3):
        x = tf.constant(generator.uniform(-1, 1, (ROWS, WIDTH)), tf.float32)
        step(x)
    definition = step.get_concrete_function(x).graph.as_graph_def()
    nodes = [*definition.node, *(n for f in definition.library.function for n in f.node_def)]
    return model.get_weights(), sum(node.op == "XlaOptimizationBarrier" for node in nodes)


@pytest.mark.parametrize("name", cases(CASES, quick=["dense", "synchronized"]))
def test_weights_are_those_of_a_graph_that_was_left_alone(
    name: str, rank: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(overlap, "_wanted", lambda: False)  # as without a GPU
    expected, none = train(name, rank)
    assert none == 0
    monkeypatch.setattr(overlap, "_wanted", xla.compiling)
    weights, barriers = train(name, rank)
    wanted = CASES[name][2]
    assert barriers == wanted if wanted is not None else barriers > 0
    for found, weight in zip(weights, expected, strict=True):
        np.testing.assert_allclose(found, weight, rtol=1e-5, atol=1e-6)
