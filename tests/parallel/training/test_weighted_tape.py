"""DistributedGradientTape(weight_by=): a loop of one's own equals one process."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tfring as hvd
from tfring.training import weights

STEPS, WIDTH = 20, 4
CLASS_WEIGHTS = tf.constant([1.0, 5.0, 0.1])


def rows_of(rank: int) -> int:
    return 3 + 4 * (rank % 2)


def data() -> tuple[Any, Any]:
    rng = np.random.default_rng(2)
    count = STEPS * sum(map(rows_of, range(hvd.size())))
    return rng.normal(size=(count, WIDTH)).astype("float32"), rng.integers(0, 3, count)


def batches(values: Any, own: bool) -> Any:
    counts = [rows_of(rank) for rank in range(hvd.size())]
    whole = values.reshape(STEPS, sum(counts), *values.shape[1:])
    first = sum(counts[: hvd.rank()])
    return whole[:, first : first + counts[hvd.rank()]] if own else whole


def train(how: str, *, ours: bool, dtype: Any = tf.float32) -> Any:
    kernel = tf.Variable(tf.cast(tf.reshape(tf.linspace(-0.3, 0.4, WIDTH * 3), [WIDTH, 3]), dtype))

    def step(x: Any, y: Any) -> None:
        with tf.GradientTape() as tape:
            logits = tf.cast(x, dtype) @ kernel
            each = tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits)
            factors = tf.cast(tf.gather(CLASS_WEIGHTS, y), dtype)
            loss = tf.reduce_sum(each * factors) / tf.reduce_sum(factors)
        if ours:
            tape = hvd.DistributedGradientTape(tape, weight_by=tf.reduce_sum(factors))
        kernel.assign_sub(0.5 * tape.gradient(loss, kernel))

    run = step if how == "eager" else tf.function(step, jit_compile=how == "jit")
    x, y = (batches(values, ours) for values in data())
    for number in range(STEPS):
        run(tf.constant(x[number]), tf.constant(y[number]))
    return kernel.numpy()


@pytest.mark.parametrize(
    "how", [pytest.param("graph", marks=pytest.mark.any_ranks), "eager", "jit"]
)
def test_class_weights_in_a_loop(how: str) -> None:
    ours, alone = train(how, ours=True), train("graph", ours=False)
    assert np.abs(ours - alone).max() < 1e-5 * np.abs(alone).max()


@pytest.mark.parametrize("graph", [False, True])
def test_sparse_gradients_and_a_rank_without_rows(graph: bool) -> None:
    """Rank 0's loss is 0/0; the others count 1, 2 and so on, and give 10 times that."""
    table = tf.Variable(tf.zeros([5, 2]))
    rank = float(hvd.rank())

    def gradient() -> Any:
        with tf.GradientTape() as tape:
            found = tf.gather(table, [1, hvd.rank() + 1])
            loss = tf.reduce_sum(found) * 10.0 * rank
            if rank == 0:
                loss /= 0.0
        tape = hvd.DistributedGradientTape(tape, weight_by=rank)
        return tape.gradient(loss, table)

    slices = (tf.function(gradient) if graph else gradient)()
    assert isinstance(slices, tf.IndexedSlices)
    expected = np.zeros((5, 2))
    counts = np.arange(hvd.size())
    for each in counts:
        for row in (1, each + 1):
            expected[row] += 10.0 * each * each / counts.sum()
    np.testing.assert_allclose(tf.convert_to_tensor(slices).numpy(), expected, rtol=1e-6)


def mean_by_rank(*, weight: float, before_reduce: Any = None) -> float:
    """The weighted average of the numbers of the ranks."""
    variable = tf.Variable(0.0)
    with tf.GradientTape() as tape:
        loss = variable * float(hvd.rank())
    options = {"weight_by": weight, "before_reduce": before_reduce}
    return float(hvd.DistributedGradientTape(tape, **options).gradient(loss, variable))


def expected_mean() -> float:
    ranks = np.arange(hvd.size())
    return float(np.average(ranks, weights=ranks + 1))


def test_a_rank_that_has_missed_steps() -> None:
    """After one step all have the same scale again, and the average is right."""
    for scale in weights._scales.values():
        scale.set(2.0 + hvd.rank())
    mean_by_rank(weight=hvd.rank() + 1)
    assert mean_by_rank(weight=hvd.rank() + 1) == pytest.approx(expected_mean(), rel=1e-6)
    mine = [float(scale.get()) for (_, name), scale in weights._scales.items() if ".eager." in name]
    assert mine and hvd.allgather_object(mine) == [mine] * hvd.size()


@pytest.mark.parametrize("factor", [1e-12, 3.9, 1e20])
def test_weights_of_any_size(factor: float) -> None:
    for _ in range(2):
        found = mean_by_rank(weight=factor * (hvd.rank() + 1))
        assert found == pytest.approx(expected_mean(), rel=1e-6)


def test_a_hook_gets_gradients_without_their_weights() -> None:
    seen: list[float] = []

    def hook(gradients: list[Any], variables: list[Any]) -> list[Any]:
        assert len(gradients) == len(variables) == 1
        seen.extend(float(gradient) for gradient in gradients)
        return gradients

    mean_by_rank(weight=7.0, before_reduce=hook)
    assert seen == [hvd.rank()]


def test_after_a_join_all_have_the_same_scale() -> None:
    """Also ranks that had no data before; of some gradients there is no step that is off."""
    hvd.join()  # no rank has a scale
    if hvd.rank() > 0:
        hvd.join()
    else:
        mean_by_rank(weight=500.0)
        hvd.join()
    assert mean_by_rank(weight=hvd.rank() + 1) == pytest.approx(expected_mean(), rel=1e-6)


def test_the_weight_travels_with_the_gradients() -> None:
    """In no collective of its own, and no rank waits for another before it has its gradients."""

    def collectives(**options: Any) -> list[Any]:
        @tf.function
        def step(x: Any) -> Any:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(x @ kernel)
            return hvd.DistributedGradientTape(tape, **options).gradient(loss, kernel)

        kernel = tf.Variable(tf.ones([WIDTH, 3]))
        graph = step.get_concrete_function(tf.TensorSpec([None, WIDTH])).graph
        return [op for op in graph.get_operations() if op.type == "TfringAllreduce"]

    ((weighted,), (plain,)) = collectives(weight_by=tf.constant(3.0)), collectives()
    assert len(weighted.inputs) == len(plain.inputs) + 1


def test_what_a_tape_refuses() -> None:
    with pytest.raises(TypeError, match="does not know the batch"):
        hvd.DistributedGradientTape(tf.GradientTape(), weight_by=lambda x: 1)
    with pytest.raises(ValueError, match="op=Average"):
        hvd.DistributedGradientTape(tf.GradientTape(), weight_by=1, op=hvd.Sum)
