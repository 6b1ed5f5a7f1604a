"""Trains a model of the zoo in one process on all data, and on the ranks with parts of it."""

from __future__ import annotations

import contextlib
import dataclasses
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import tfring.keras as hvd

STEPS = 4
NOISE = 1e-3
Rows = Callable[[int], int]


def unequal(rank: int) -> int:
    """The number of rows of a step that a rank has: 5, 3, 5, 3."""
    return 3 if rank % 2 else 5


def equal(rank: int) -> int:
    return 4


def total(rows: Rows) -> int:
    return sum(rows(rank) for rank in range(hvd.size()))


@dataclasses.dataclass(frozen=True)
class Case:
    """One training.

    Attributes:
        make: makes a model; its weights follow from Keras' seed.
        optimizer: makes a new optimizer.
        x, y: the data of all ranks, an array or a dict of arrays.
        loss: argument of compile.
        rows: returns the number of rows of a step that a rank has.
        count: the divisor of the loss of this rank's x and y in a tape loop.
        adapt: names of the layers to call `adapt` on.
        built: the optimizer is built before `fit`.
        graph: whether one process and the tape loop use a tf.function, too.
        options: more arguments of compile.
    """

    make: Callable[[], Any]
    optimizer: Callable[[], Any]
    x: Any
    y: Any
    loss: Any = "mse"
    rows: Rows = unequal
    count: Callable[[Any, Any], Any] | None = None
    adapt: tuple[str, ...] = ()
    built: bool = False
    graph: bool = False
    options: dict[str, Any] = dataclasses.field(default_factory=dict)


@contextlib.contextmanager
def policy(name: str) -> Iterator[None]:
    """Sets Keras' dtype policy for a while."""
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(name)
    try:
        yield
    finally:
        keras.config.set_dtype_policy(before)


def mine(values: Any, rows: Rows) -> Any:
    """This rank's rows of the global batches."""
    first = sum(rows(rank) for rank in range(hvd.rank()))

    def part(array: Any) -> Any:
        batches = array.reshape(STEPS, total(rows), *array.shape[1:])
        own = batches[:, first : first + rows(hvd.rank())]
        return own.reshape(-1, *array.shape[1:])

    return tf.nest.map_structure(part, values)


def batches(x: Any, y: Any, rows: int) -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices((x, y)).batch(rows, drop_remainder=True)


def build(case: Case, seed: int, adapt: Callable[[Any, Any], None], x: Any) -> Any:
    keras.utils.set_random_seed(seed)
    model = case.make()
    for name in case.adapt:
        adapt(model.get_layer(name), x)
    return model


def fit(case: Case, model: Any, optimizer: Any, x: Any, y: Any, batch: int, **how: Any) -> Any:
    callbacks = how.pop("callbacks", None)
    if case.built:
        optimizer.build(model.trainable_variables)
    model.compile(optimizer, case.loss, **{"jit_compile": False, **case.options, **how})
    model.fit(batches(x, y, batch), shuffle=False, verbose=0, callbacks=callbacks)
    return model


def alone(case: Case) -> Any:
    """Trains on all data on each rank, as one process does."""
    model = build(case, 1, lambda layer, data: layer.adapt(data), case.x)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # tfring warns of an optimizer that does not reduce
        options = {"run_eagerly": not case.graph}
        return fit(case, model, case.optimizer(), case.x, case.y, total(case.rows), **options)


def by_fit(case: Case, **compile_options: Any) -> Any:
    """Trains on the ranks with `fit`; only the callbacks make their weights equal at the start."""
    x, y = mine(case.x, case.rows), mine(case.y, case.rows)
    model = build(case, 1 + hvd.rank(), hvd.adapt, x)
    optimizer = hvd.DistributedOptimizer(case.optimizer())
    how = {"callbacks": hvd.fit_callbacks(), **compile_options}
    return fit(case, model, optimizer, x, y, case.rows(hvd.rank()), **how)


def by_tape(case: Case) -> Any:
    """Trains on the ranks in a custom loop."""
    x, y = mine(case.x, case.rows), mine(case.y, case.rows)
    model = build(case, 1 + hvd.rank(), hvd.adapt, x)
    optimizer = case.optimizer()
    model.compile(optimizer, case.loss, **case.options)  # for compute_loss
    hvd.broadcast_variables(model.weights, root_rank=0)
    variables = model.trainable_variables

    def step(x: Any, y: Any) -> None:
        with tf.GradientTape() as tape:
            loss = optimizer.scale_loss(model.compute_loss(x, y, model(x, training=True)))
        counted = case.rows(hvd.rank()) if case.count is None else case.count(x, y)
        tape = hvd.DistributedGradientTape(tape, weight_by=counted)
        optimizer.apply(tape.gradient(loss, [v.value for v in variables]), variables)

    run = tf.function(step) if case.graph else step
    for batch in batches(x, y, case.rows(hvd.rank())):
        run(*batch)
    optimizer.finalize_variable_values(variables)
    return model


def values_of(model: Any) -> dict[str, Any]:
    """Weights and the optimizer's variables by position and path."""
    variables = [*model.weights, *model.optimizer.variables]
    return {f"{i} {v.path}": np.asarray(v, np.float64) for i, v in enumerate(variables)}


def difference(ours: dict[str, Any], theirs: dict[str, Any]) -> tuple[float, str]:
    """The largest difference of two trainings by each tensor's largest element, and its place.

    Some gradients are 0 except for rounding, as those of biases before a normalization: so elements
    below NOISE do not count as large.
    """
    assert len(ours) == len(theirs)
    worst = (0.0, "")
    for (name, a), b in zip(ours.items(), theirs.values(), strict=True):
        scale = float(np.abs(b).max(initial=NOISE))
        apart = float(np.abs(a - b).max(initial=0.0)) / scale
        worst = max(worst, (apart if np.isfinite(apart) else np.inf, name))
    return worst
