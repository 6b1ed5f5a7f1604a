"""The parameter `gradient` of gathers: the table of tfring.ops.gradients, and what it is for."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfring as hvd
from tfring.collectives import horovod_gradients as of_tensorflow
from tfring.keras import horovod_gradients as of_keras

ROWS = 2

CALLS: dict[str, Callable[..., Any]] = {
    "allgather": lambda x, **how: hvd.allgather(x, **how),
    "grouped_allgather": lambda x, **how: hvd.grouped_allgather([x], **how)[0],
    "broadcast": lambda x, **how: hvd.broadcast(x, 0, **how),
    "alltoall": lambda x, **how: hvd.alltoall(x, **how),
    "reducescatter": lambda x, **how: hvd.reducescatter(x, op=hvd.Sum, **how),
    "grouped_reducescatter": lambda x, **how: hvd.grouped_reducescatter([x], op=hvd.Sum, **how)[0],
}


def factor(collective: str, gradient: str) -> float:
    """The factor of the gradient of the sum of all losses."""
    size = hvd.size()
    horovods = {"alltoall": 1.0, "reducescatter": size, "grouped_reducescatter": size}
    return {"sum": 1.0, "mean": 1 / size, "horovod": horovods.get(collective, 1 / size)}[gradient]


def gradient_of(call: Callable[[Any], Any], x: Any) -> Any:
    """The gradient of (rank + 1) * sum(call(x)), as NumPy has it."""
    with tf.GradientTape() as tape:
        tape.watch(x)
        loss = tf.reduce_sum(call(x)) * tf.cast(hvd.rank() + 1.0, x.dtype)
    return tape.gradient(loss, x).numpy()


def of_all_losses(collective: str) -> Any:
    """The gradient of the sum of all losses with regard to this rank's tensor, (rows, 3)."""
    size = hvd.size()
    everybody = np.arange(size) + 1.0
    if collective.endswith("allgather"):
        rows = np.full(ROWS * size, everybody.sum())
    elif collective == "broadcast":
        rows = np.full(ROWS * size, everybody.sum() if hvd.rank() == 0 else 0.0)
    else:  # the rows go to the ranks in their order
        rows = np.repeat(everybody, ROWS)
    return np.repeat(rows[:, None], 3, axis=1)


@pytest.mark.any_ranks
@pytest.mark.parametrize("gradient", ["sum", "mean", "horovod"])
@pytest.mark.parametrize("dtype", ["float32", "complex64"])
@pytest.mark.parametrize("collective", CALLS)
def test_the_table(collective: str, dtype: str, gradient: str) -> None:
    if dtype == "complex64" and "scatter" in collective:
        pytest.skip("a reduction takes no complex numbers")
    x = tf.ones([ROWS * hvd.size(), 3], dtype)
    got = gradient_of(lambda x: CALLS[collective](x, gradient=gradient), x)
    want = of_all_losses(collective) * factor(collective, gradient)
    np.testing.assert_allclose(got, want, rtol=1e-6)
    if gradient == "sum":
        np.testing.assert_allclose(gradient_of(CALLS[collective], x), want, rtol=1e-6)


def test_another_word_is_refused() -> None:
    with pytest.raises(ValueError, match="gradient='avg' is unknown"):
        hvd.allgather(tf.ones([1]), gradient="avg")


@pytest.mark.any_ranks
@pytest.mark.parametrize("horovod", [of_tensorflow, of_keras])
def test_horovods_stay_under_horovods_names(horovod: Any) -> None:
    """The shim has these; tests/python/shim looks there."""
    x = tf.ones([ROWS * hvd.size(), 3])
    calls = {
        "allgather": lambda x: horovod.allgather(x),
        "broadcast": lambda x: horovod.broadcast(x, 0),
        "reducescatter": lambda x: horovod.reducescatter(x, op=hvd.Sum),
    }
    for collective, call in calls.items():
        want = of_all_losses(collective) * factor(collective, "horovod")
        np.testing.assert_allclose(gradient_of(call, x), want, rtol=1e-6, err_msg=collective)


# What it is for: a loss of all ranks' embeddings, trained as one process trains it.


def of_all(step: int) -> list[tuple[Any, Any]]:
    return [pairs(step, rank) for rank in range(hvd.size())]


def towers() -> list[tf.Variable]:
    rng = np.random.default_rng(3)
    return [tf.Variable(rng.normal(size=(5, 4)).astype("f")) for _ in range(2)]


def pairs(step: int, rank: int) -> tuple[Any, Any]:
    rng = np.random.default_rng([step, rank])
    a, b = rng.normal(size=(2, 4, 5)).astype("f")
    return a, b


def info_nce(anchors: Any, keys: Any, first: Any) -> Any:
    logits = anchors @ tf.transpose(keys)
    labels = first + tf.range(tf.shape(anchors)[0])
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))


def loss_of(form: str, za: Any, zb: Any, **how: Any) -> Any:
    keys = hvd.allgather(zb, **how)
    if form == "all rows":
        return info_nce(hvd.allgather(za, **how), keys, 0)
    return info_nce(za, keys, hvd.rank() * tf.shape(za)[0])


def train(variables: list[tf.Variable], gradients: Callable[[int], Any]) -> None:
    for step in range(20):
        for variable, gradient in zip(variables, gradients(step), strict=True):
            variable.assign_sub(0.1 * gradient)


@pytest.mark.any_ranks
@pytest.mark.parametrize("form", ["all rows", "own anchors"])
def test_contrastive_training_is_that_of_one_process(form: str) -> None:
    ours, alone = towers(), towers()

    @tf.function
    def of_ranks(a: Any, b: Any) -> Any:
        with hvd.DistributedGradientTape(tf.GradientTape()) as tape:
            loss = loss_of(form, a @ ours[0], b @ ours[1])
        return tape.gradient(loss, ours)

    def of_one(step: int) -> Any:
        a, b = (np.concatenate(x) for x in zip(*of_all(step), strict=True))
        with tf.GradientTape() as tape:
            loss = info_nce(a @ alone[0], b @ alone[1], 0)
        return tape.gradient(loss, alone)

    train(ours, lambda step: of_ranks(*pairs(step, hvd.rank())))
    train(alone, of_one)
    for mine, want in zip(ours, alone, strict=True):
        error = np.abs(mine.numpy() - want.numpy()).max() / np.abs(want.numpy()).max()
        assert error < 1e-5


@pytest.mark.parametrize(("dtype", "form"), [("float32", "all rows"), ("float16", "own anchors")])
def test_contrastive_training_with_unequal_rows(form: str, dtype: str) -> None:
    """Ranks count by their rows, also in the gradients of what they have gathered."""
    rows = [3 + 2 * (rank % 3) for rank in range(hvd.size())]
    first = sum(rows[: hvd.rank()])
    rng = np.random.default_rng(5)
    a, b = rng.normal(size=(2, sum(rows), 5)).astype(dtype)
    mine = slice(first, first + rows[hvd.rank()])
    variables = [tf.Variable(tower.numpy().astype(dtype)) for tower in towers()]

    @tf.function
    def of_ranks() -> Any:
        tape = hvd.DistributedGradientTape(tf.GradientTape(), weight_by=rows[hvd.rank()])
        with tape:
            za, keys = a[mine] @ variables[0], hvd.allgather(b[mine] @ variables[1])
            if form == "all rows":
                loss = info_nce(hvd.allgather(za), keys, 0)
            else:
                loss = info_nce(za, keys, first)
        return tape.gradient(loss, variables)

    with tf.GradientTape() as tape:
        loss = info_nce(a @ variables[0], b @ variables[1], 0)
    tolerance = 2e-3 if dtype == "float16" else 1e-5
    for got, want in zip(of_ranks(), tape.gradient(loss, variables), strict=True):
        np.testing.assert_allclose(got, want, atol=tolerance * np.abs(want).max())


def hints(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if "counts 1/" in r.getMessage()]


def traced(wrap: str, **how: Any) -> None:
    """Traces and runs a step whose loss is of gathered embeddings."""
    variable = tf.Variable(tf.ones([3, 2]))
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1))

    @tf.function
    def step() -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(hvd.allgather(tf.ones([1, 3]) @ variable, **how) ** 2)
        op = {"op": hvd.Sum} if wrap == "Sum" else {}
        if wrap == "optimizer":
            optimizer.apply(tape.gradient(loss, [variable]), [variable])
        else:
            hvd.DistributedGradientTape(tape, **op).gradient(loss, variable)

    step()


@pytest.mark.parametrize(("wrap", "gradient"), [("tape", "mean"), ("optimizer", "horovod")])
def test_an_average_of_an_average_is_named(
    wrap: str, gradient: str, several: int, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "tfring"):
        traced(wrap, gradient=gradient, name=f"embeddings.{wrap}.{gradient}")
    said = hints(caplog)
    assert len(said) == (1 if hvd.rank() == 0 else 0)
    if said:
        assert f"embeddings.{wrap}.{gradient}" in said[0] and 'gradient="sum"' in said[0]


def test_nothing_is_said_where_it_is_right(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "tfring"):
        traced("tape")
        traced("optimizer")
        traced("Sum", gradient="mean")
    assert not hints(caplog)


# replicated


@pytest.mark.any_ranks
@pytest.mark.parametrize("in_graph", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "complex64"])
def test_replicated_averages_the_gradient(dtype: str, in_graph: bool) -> None:
    variable = tf.Variable(tf.constant([1.0, 2.0], dtype))
    rank, size = hvd.rank(), hvd.size()

    def step() -> Any:
        with tf.GradientTape() as tape:
            used = hvd.replicated(variable)
            loss = tf.reduce_sum(used * tf.cast(rank + 1.0, dtype))
        return used, tape.gradient(loss, variable)

    used, gradient = (tf.function(step) if in_graph else step)()
    np.testing.assert_array_equal(used, variable)
    np.testing.assert_allclose(gradient, [(size + 1) / 2] * 2, rtol=1e-6)
