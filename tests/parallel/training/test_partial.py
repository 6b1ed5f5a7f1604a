"""Local variables, process sets, hooks and the choice of sparse or dense: on tape and optimizer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras_cases import mean_over_ranks, mine

import tfring as hvd
import tfring.keras as hvd_keras
from tfring.ops import builders


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the allreduces that are built."""
    built: list[str] = []
    original = builders.allreduce_op

    def record(tensors: Any, **kwargs: Any) -> Any:
        built.append(kwargs["name"])
        return original(tensors, **kwargs)

    monkeypatch.setattr(builders, "allreduce_op", record)
    return built


@pytest.mark.any_ranks
@pytest.mark.parametrize(("scale", "in_function"), [(False, True), (True, False)])
def test_local_sources_keep_their_gradients(scale: bool, in_function: bool) -> None:
    shared, local = tf.Variable([1.0, 1.0]), keras.Variable([1.0])
    table = tf.Variable(tf.zeros([3, 1]))

    def step() -> Any:
        with tf.GradientTape() as tape:
            parts = [shared, local.value, tf.gather(table, [2])]
            target = mine() * tf.add_n([tf.reduce_sum(p) for p in parts])
        tape = hvd.DistributedGradientTape(tape, scale_local_gradients=scale)
        tape.register_local_source(local)
        tape.register_local_source(table)
        return tape.gradient(target, [shared, local, table])

    first, second, third = (tf.function(step) if in_function else step)()
    np.testing.assert_allclose(first, [mean_over_ranks()] * 2, rtol=1e-6)
    expected = mine() / (hvd.size() if scale else 1)
    np.testing.assert_allclose(second, [expected], rtol=1e-6)
    assert isinstance(third, tf.IndexedSlices)
    np.testing.assert_allclose(tf.convert_to_tensor(third), [[0], [0], [expected]], rtol=1e-6)


def test_gradients_are_sorted_into_local_and_global() -> None:
    """Takes what `gradient` takes, as Horovod's, and reduces nothing."""
    a, b = tf.Variable(1.0), tf.Variable(1.0)
    layer = tf.Module()
    layer.b = b
    tape = hvd.PartialDistributedGradientTape(tf.GradientTape(persistent=True), local_layers=layer)
    with tape:
        loss = mine() * (a + 2.0 * b)
    for weight in (1.0, 3.0):
        given = {} if weight == 1.0 else {"output_gradients": tf.constant(weight)}
        local, shared = tape.get_local_and_global_gradients(loss, [a, b], **given)
        ((local_gradient, local_source),) = local
        ((shared_gradient, shared_source),) = shared
        assert local_source is b and shared_source is a
        np.testing.assert_allclose(local_gradient, 2.0 * weight * mine())
        np.testing.assert_allclose(shared_gradient, weight * mine())


def test_a_partial_tape_takes_layers_that_are_not_built() -> None:
    shared, local = keras.layers.Dense(1), keras.layers.Dense(1)
    x = tf.ones([1, 2])
    with tf.GradientTape() as tape:
        tape = hvd.PartialDistributedGradientTape(tape, local_layers=local)
        target = mine() * tf.reduce_sum(shared(x) + local(x))
    weights = [shared.bias, local.bias]
    first, second = tape.gradient(target, weights)
    np.testing.assert_allclose(first, [mean_over_ranks()], rtol=1e-6)
    np.testing.assert_allclose(second, [mine() / hvd.size()], rtol=1e-6)
    with pytest.raises(TypeError, match="local_layers"):
        hvd.PartialDistributedGradientTape(tf.GradientTape(), local_layers=[1])


def test_a_partial_optimizer_in_fit() -> None:
    passes = 2
    inputs = keras.layers.Input((2,))
    shared = keras.layers.Dense(1, kernel_initializer="zeros", name="shared")
    local = keras.layers.Dense(1, kernel_initializer="zeros", name="local")
    model = keras.Model(inputs, [shared(inputs), local(inputs)])
    optimizer = hvd_keras.PartialDistributedOptimizer(
        keras.optimizers.SGD(1.0), backward_passes_per_step=passes, local_layers=[local]
    )
    model.compile(optimizer, loss=lambda y, p: tf.reduce_mean(y * p))
    x, y = np.ones((2 * passes, 2), "float32"), np.full((2 * passes, 1), mine(), "float32")
    model.fit(x, [y, y], batch_size=2, verbose=0)
    np.testing.assert_allclose(shared.bias, [-passes * mean_over_ranks()], rtol=1e-6)
    np.testing.assert_allclose(local.bias, [-passes * mine() / hvd.size()], rtol=1e-6)


def test_an_overflow_in_a_local_gradient_makes_all_skip() -> None:
    shared, local = keras.Variable([1.0]), keras.Variable([1.0])
    scaling = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1), initial_scale=4.0)
    optimizer = hvd.DistributedOptimizer(scaling)
    optimizer.register_local_var(local)
    bad = float("inf") if hvd.rank() == hvd.size() - 1 else 4.0
    optimizer.apply([tf.constant([4.0]), tf.constant([bad])], [shared, local])
    np.testing.assert_array_equal([shared.numpy(), local.numpy()], [[1.0], [1.0]])
    assert float(scaling.dynamic_scale) == 2.0
    optimizer.apply([tf.constant([2.0]), tf.constant([2.0])], [shared, local])
    np.testing.assert_allclose(shared, [0.9], rtol=1e-6)
    np.testing.assert_allclose(local, [1.0 - 0.1 / hvd.size()], rtol=1e-6)


@pytest.fixture
def first_and_last() -> Iterator[Any]:
    """A process set; with three ranks or more, somebody is outside of it."""
    if hvd.size() < 2:
        pytest.skip("needs two ranks")
    if hvd.size() == 2:
        yield hvd.global_process_set
        return
    members = hvd.add_process_set([0, hvd.size() - 1])
    yield members
    hvd.remove_process_set(members)


@pytest.mark.any_ranks
def test_a_process_set_reduces_and_the_others_keep_theirs(first_and_last: Any) -> None:
    inside = first_and_last.included()
    shared, local = tf.Variable([1.0]), tf.Variable([1.0])
    with tf.GradientTape() as tape:
        target = mine() * tf.reduce_sum(shared + local)
    tape = hvd.DistributedGradientTape(tape, process_set=first_and_last)
    tape.register_local_source(local)
    first, second = tape.gradient(target, [shared, local])
    np.testing.assert_allclose(first, [mean_over_ranks() if inside else mine()], rtol=1e-6)
    np.testing.assert_allclose(second, [mine() / 2 if inside else mine()], rtol=1e-6)


@pytest.mark.any_ranks
@pytest.mark.parametrize(("in_function", "passes"), [(False, 1), (True, 2)])
@pytest.mark.parametrize("kind", ["Keras 3", "Keras 2", "legacy", "TF1"])
def test_the_optimizer_of_a_process_set_reduces_among_its_members(
    kind: str, passes: int, in_function: bool, first_and_last: Any
) -> None:
    options = {"process_set": first_and_last, "backward_passes_per_step": passes}
    variable = tf.Variable([0.0])
    gradient = tf.constant([mine()])
    if kind == "TF1":
        tf1 = hvd.DistributedOptimizer(tf.compat.v1.train.GradientDescentOptimizer(1.0), **options)

        def step() -> None:
            tf1.minimize(lambda: tf.reduce_sum(variable * gradient), var_list=[variable])
    else:
        if kind == "Keras 3":
            variable = keras.Variable([0.0])
            plain = keras.optimizers.SGD(1.0)
        else:
            tfk = pytest.importorskip("tf_keras").optimizers
            plain = (tfk.legacy if kind == "legacy" else tfk).SGD(1.0)
        optimizer = hvd.DistributedOptimizer(plain, **options)
        if kind == "Keras 3":
            optimizer.build([variable])

        def step() -> None:
            optimizer.apply_gradients([(gradient, variable)])

    run = tf.function(step) if in_function else step
    for _ in range(2):
        run()
    expected = -2 * (mean_over_ranks() if first_and_last.included() else mine())
    np.testing.assert_allclose(variable.numpy(), [expected], rtol=1e-6)


@pytest.mark.any_ranks
def test_what_members_did_among_themselves_moves_no_names(first_and_last: Any) -> None:
    """Tapes and optimizers of a process set, made by its members only; then those of all ranks."""

    def step(**options: Any) -> Any:
        variables = [tf.Variable([1.0]), tf.Variable([[2.0]])]
        with tf.GradientTape() as tape:
            target = mine() * tf.add_n([tf.reduce_sum(v) for v in variables])
        weight = keras.Variable([0.0])
        optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), **options)
        optimizer.apply([tf.constant([mine()])], [weight])
        gradients = hvd.DistributedGradientTape(tape, **options).gradient(target, variables)
        return [weight.numpy()[0], float(gradients[0][0]), float(gradients[1][0, 0])]

    if first_and_last.included():
        step(process_set=first_and_last)
    expected = mean_over_ranks()
    np.testing.assert_allclose(step(), [-expected, expected, expected], rtol=1e-6)


@pytest.mark.any_ranks
@pytest.mark.parametrize("in_function", [False, True])
def test_hooks_come_before_and_after_the_reduction(in_function: bool) -> None:
    variable = tf.Variable([1.0])

    def clip(gradients: list[Any], variables: list[Any]) -> list[Any]:
        assert variables[0] is variable
        return [tf.minimum(g, 2.0) for g in gradients]

    def add(gradients: list[Any], variables: list[Any]) -> list[Any]:
        return [g + 10.0 for g in gradients]

    def step() -> Any:
        with tf.GradientTape() as tape:
            target = tf.reduce_sum(variable) * mine()
        tape = hvd.DistributedGradientTape(tape, before_reduce=clip, after_reduce=add)
        return tape.gradient(target, variable)

    expected = np.mean([min(r + 1.0, 2.0) for r in range(hvd.size())]) + 10.0
    np.testing.assert_allclose((tf.function(step) if in_function else step)(), [expected])


class ErrorFeedback(hvd.Compressor):
    """Sends whole numbers, and next time what it did not send: state for every variable."""

    def __init__(self) -> None:
        self.rests: dict[int, Any] = {}

    def for_variable(self, variable: Any) -> Any:
        if id(variable) not in self.rests:
            with tf.init_scope():
                self.rests[id(variable)] = tf.Variable(tf.zeros(variable.shape))
        return _Feedback(self.rests[id(variable)])


class _Feedback(hvd.Compressor):
    def __init__(self, rest: Any) -> None:
        self.rest = rest

    def compress(self, tensor: Any) -> tuple[Any, Any]:
        wanted = tensor + self.rest
        sent = tf.round(wanted)
        self.rest.assign(wanted - sent)
        return tf.cast(sent, tf.float16), tensor.dtype

    def decompress(self, tensor: Any, ctx: Any) -> Any:
        return tf.cast(tensor, ctx)


def test_a_compression_of_ones_own_with_state() -> None:
    a, b = tf.Variable([0.0]), tf.Variable([0.0, 0.0])
    compression = ErrorFeedback()

    @tf.function
    def step() -> Any:
        with tf.GradientTape() as tape:
            target = 0.75 * tf.reduce_sum(a) + 1.25 * tf.reduce_sum(b)
        return hvd.DistributedGradientTape(tape, compression=compression).gradient(target, [a, b])

    totals = np.sum([[g.numpy()[0] for g in step()] for _ in range(4)], axis=0)
    np.testing.assert_allclose(totals, [3.0, 5.0])


@pytest.mark.any_ranks
@pytest.mark.parametrize(("op", "in_function"), [("Average", True), ("Sum", False)])
def test_ranks_choose_sparse_or_dense_together(
    op: str, in_function: bool, names: list[str]
) -> None:
    table = tf.Variable(tf.zeros([8, 16]))

    def step(rows: Any) -> Any:
        with tf.GradientTape() as tape:
            target = tf.reduce_sum(tf.gather(table, rows)) * mine()
        tape = hvd.DistributedGradientTape(
            tape, sparse_as_dense="auto", op=getattr(hvd, op), gradient_predivide_factor=1.0
        )
        return tape.gradient(target, table)

    run = tf.function(step, input_signature=[tf.TensorSpec([None], tf.int32)])
    run = run if in_function else step
    # One row of one rank alone; then all rows of one rank and few of the others; then all of all.
    for count in (1, 8 if hvd.rank() == 0 else 1, 8):
        rows = tf.range(count)
        reduced = run(tf.concat([rows, rows], 0))
        assert isinstance(reduced, tf.IndexedSlices)
        counts = hvd.allgather_object(count)
        expected = np.zeros([8, 16], "float32")
        for other, own in enumerate(counts):
            expected[:own] += 2.0 * (other + 1)
        if op == "Average":
            expected /= hvd.size()
        np.testing.assert_allclose(tf.convert_to_tensor(reduced), expected, rtol=1e-6)
    if in_function:
        assert sum(name.endswith(".dense") for name in names) == 1  # traced once, both branches
    elif hvd.size() >= 3:  # gathering 8 rows of each rank moves more than twice the table
        assert [name.endswith(".dense") for name in names].count(True) == 1


@pytest.mark.parametrize("sparse_as_dense", [False, "auto"])
def test_sparse_gradients_are_divided_and_compressed(sparse_as_dense: Any) -> None:
    table, weight = tf.Variable(tf.zeros([4, 2])), tf.Variable([1.0])
    with tf.GradientTape() as tape:
        target = tf.reduce_sum(tf.gather(table, [0, 3, 0])) * mine() + tf.reduce_sum(weight)
    tape = hvd.DistributedGradientTape(
        tape,
        sparse_as_dense=sparse_as_dense,
        compression=hvd.Compression.bf16,
        gradient_predivide_factor=2.0,
    )
    sparse, dense = tape.gradient(target, [table, weight])
    assert sparse.dtype == tf.float32
    expected = np.outer([2, 0, 0, 1], [mean_over_ranks()] * 2)
    np.testing.assert_allclose(tf.convert_to_tensor(sparse), expected, rtol=1e-2)
    np.testing.assert_allclose(dense, [1.0])


def test_a_global_norm_clips_shared_gradients_alike_on_all_ranks(several: int) -> None:
    """The norm of a rank's local gradients is no part of it: 100 times as large on rank 1."""
    keras.utils.set_random_seed(5)
    shared, head = keras.layers.Dense(3), keras.layers.Dense(1)
    model = keras.Sequential([keras.Input((4,)), shared, head])
    optimizer = hvd_keras.PartialDistributedOptimizer(
        keras.optimizers.SGD(0.1, global_clipnorm=0.01),
        local_layers=head,
        backward_passes_per_step=2,
    )
    variables = model.trainable_variables
    for _ in range(4):
        gradients = [tf.ones(v.shape) for v in shared.trainable_variables]
        gradients += [tf.ones(v.shape) * 100.0 ** hvd.rank() for v in head.trainable_variables]
        optimizer.apply(gradients, variables)
    hvd_keras.assert_equal(shared.trainable_variables)
