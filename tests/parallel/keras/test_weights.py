"""Ranks whose losses are means over different numbers train as one process on all data does."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfring.keras as hvd

STEPS, ROWS, FEATURES, CLASSES, TOKENS = 6, 4, 5, 3, 6
eager = pytest.mark.usefixtures("eager_functions")  # tracing takes most of the time
SGD = keras.optimizers.SGD
losses = keras.losses


def rows_of(rank: int) -> int:
    """How many rows a rank has in each step: ranks differ."""
    return ROWS * (1 + 2 * (rank % 2))


def mine(values: Any, rows: Callable[[int], int] = rows_of) -> Any:
    """This rank's rows of batches of all ranks."""
    counts = [rows(rank) for rank in range(hvd.size())]
    first = sum(counts[: hvd.rank()])
    batches = values.reshape(-1, sum(counts), *values.shape[1:])
    own = batches[:, first : first + counts[hvd.rank()]]
    return own.reshape(-1, *values.shape[1:])


def total(rows: Callable[[int], int] = rows_of) -> int:
    return sum(rows(rank) for rank in range(hvd.size()))


def equal(rank: int) -> int:
    return ROWS


def data(steps: int = STEPS, rows: Callable[[int], int] = rows_of) -> tuple[Any, Any, Any]:
    """Inputs, targets and classes of all ranks."""
    rng = np.random.default_rng(7)
    x = rng.normal(size=(steps * total(rows), FEATURES)).astype("float32")
    y = x @ rng.normal(size=(FEATURES, CLASSES)).astype("float32")
    return x, y, rng.integers(0, CLASSES, len(x))


def dense(regularizer: Any = None) -> Any:
    keras.utils.set_random_seed(3)
    return keras.Sequential(
        [
            keras.Input((FEATURES,)),
            keras.layers.Dense(7, activation="tanh", kernel_regularizer=regularizer),
            keras.layers.Dense(CLASSES),
        ]
    )


def check(model: Any, alone: Any, tolerance: float = 1e-5) -> None:
    """Compares weights, by each tensor's largest element."""
    pairs = zip(model.get_weights(), alone.get_weights(), strict=True)
    worst = max(np.abs(a - b).max() / np.abs(b).max() for a, b in pairs)
    assert worst < tolerance, f"rank {hvd.rank()}: differs by {worst:.3g}"


def fit(model: Any, optimizer: Any, loss: Any, *arrays: Any, batch: int, **options: Any) -> Any:
    """Trains; options of fit, and `compile`."""
    model.compile(optimizer, loss, **options.pop("compile", {}))
    if len(arrays) == 3:
        options["sample_weight"] = arrays[2]
    model.fit(*arrays[:2], batch_size=batch, shuffle=False, verbose=0, **options)
    return model


def compare(make: Any, loss: Any, *arrays: Any, rows: Any = rows_of, **options: Any) -> None:
    """Trains on all ranks and alone, with plain Keras and the batches of all ranks."""
    tolerance = options.pop("tolerance", 1e-5)
    wrap = options.pop("wrap", {})
    rate = options.pop("rate", 0.1)
    own = [mine(values, rows) for values in arrays]
    ours = fit(
        make(),
        hvd.DistributedOptimizer(SGD(rate), **wrap),
        loss,
        *own,
        batch=rows(hvd.rank()),
        **dict(options),
    )
    check(ours, fit(make(), SGD(rate), loss, *arrays, batch=total(rows), **options), tolerance)


def language_model() -> Any:
    keras.utils.set_random_seed(1)
    tokens = keras.Input((TOKENS,), dtype="int32")
    hidden = keras.layers.Embedding(20, 4, mask_zero=True)(tokens)
    # cuDNN takes no sentence that is all padding.
    hidden = keras.layers.LSTM(5, return_sequences=True, use_cudnn=False)(hidden)
    return keras.Model(tokens, keras.layers.Dense(CLASSES)(hidden))


def sentences(rows: Callable[[int], int]) -> tuple[Any, Any]:
    """Padded by zeros; the last rank has none but padding in the third step."""
    rng = np.random.default_rng(5)
    count = STEPS * total(rows)
    ids = rng.integers(1, 20, (count, TOKENS))
    lengths = rng.integers(1, TOKENS + 1, count)
    last = rows(hvd.size() - 1)
    lengths[3 * total(rows) - last : 3 * total(rows)] = 0
    ids[np.arange(TOKENS)[None] >= lengths[:, None]] = 0
    return ids, rng.integers(0, CLASSES, (count, TOKENS))


@eager
def test_masked_language_model() -> None:
    loss = losses.SparseCategoricalCrossentropy(from_logits=True)
    compare(language_model, loss, *sentences(rows_of), rate=0.5)


@pytest.mark.parametrize("jit", [False, True])
def test_unequal_batches(jit: bool) -> None:
    """And a regularizer, which no rank divides by rows."""
    x, y, _ = data()
    compare(lambda: dense(keras.regularizers.L2(0.1)), "mse", x, y, compile={"jit_compile": jit})


@eager
@pytest.mark.any_ranks
def test_class_weights() -> None:
    x, _, classes = data()
    loss = losses.SparseCategoricalCrossentropy(from_logits=True)
    compare(dense, loss, x, classes, class_weight={0: 1.0, 1: 5.0, 2: 0.1})


@eager
@pytest.mark.parametrize("reduction", ["sum_over_batch_size", "mean_with_sample_weight"])
def test_sample_weights(reduction: str) -> None:
    x, y, _ = data()
    weights = np.random.default_rng(1).uniform(0, 3, len(x)).astype("float32")
    compare(dense, losses.MeanSquaredError(reduction=reduction), x, y, weights)


@eager
def test_ignored_class_is_a_mask_of_the_loss() -> None:
    x, _, classes = data()
    loss = losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=0)
    compare(dense, loss, x, classes)


@eager
def test_compression() -> None:
    """Within its rounding."""
    x, y, _ = data()
    compare(dense, "mse", x, y, tolerance=1e-2, wrap={"compression": hvd.Compression.fp16})


@eager
def test_last_partial_batch_of_shard() -> None:
    """Each epoch's last step has one row more on some ranks."""
    count = ROWS * hvd.size() * 3 + hvd.size() + 1
    x, y, _ = (values[:count] for values in data())
    alone = dense()
    fit(alone, SGD(0.1), "mse", x, y, batch=ROWS * hvd.size(), epochs=2)
    ours = dense()
    ours.compile(hvd.DistributedOptimizer(SGD(0.1)), "mse")
    ours.fit(hvd.shard((x, y), ROWS, seed=None), epochs=2, verbose=0)
    check(ours, alone)


@pytest.mark.parametrize("how", ["mean", "sum, built"])
def test_accumulation_with_unequal_passes(how: str) -> None:
    """Two passes of different numbers of rows, on each rank others, are parts of one batch."""
    passes = [(4, 9, 2, 3)[: hvd.size()], (2, 1, 5, 6)[: hvd.size()]]
    starts = np.cumsum([0, *(count for each in passes for count in each)])
    batch = int(starts[-1])
    x, y, _ = (values[: STEPS * batch] for values in data(steps=3 * STEPS))
    own = []
    for step in range(STEPS):
        for number in range(2):
            at = number * hvd.size() + hvd.rank()
            rows = slice(step * batch + starts[at], step * batch + starts[at + 1])
            own.append((x[rows], y[rows]))
    average = "mean" in how
    model, optimizer = dense(), SGD(0.1)
    if "built" in how:
        optimizer.build(model.trainable_variables)
    wrap = {"backward_passes_per_step": 2, "average_aggregated_gradients": average}
    model.compile(hvd.DistributedOptimizer(optimizer, **wrap), "mse")
    signature = tuple(tf.TensorSpec([None, width]) for width in (FEATURES, CLASSES))
    model.fit(
        tf.data.Dataset.from_generator(lambda: iter(own), output_signature=signature), verbose=0
    )
    rate = 0.1 if average else 0.2
    check(model, fit(dense(), SGD(rate), "mse", x, y, batch=batch))


def masked_mean(y: Any, p: Any) -> Any:
    """Divides by 0 where no row counts."""
    counts = tf.cast(y[:, :1] > 0, tf.float32)
    return tf.reduce_sum(counts * (y - p) ** 2) / tf.reduce_sum(counts)


def counted(x: Any, y: Any, sample_weight: Any) -> Any:
    return tf.reduce_sum(tf.cast(y[:, 0] > 0, tf.float32))


def sparse_targets() -> tuple[Any, Any]:
    """In each step rank 0 has a row that counts; the last rank has none in half of the steps."""
    x, y, _ = data()
    steps = y.reshape(STEPS, total(), CLASSES)
    steps[:, 0, 0] = 1.0
    steps[::2, total() - rows_of(hvd.size() - 1) :, 0] = -1.0
    return x, steps.reshape(-1, CLASSES)


def test_a_function_of_the_batch_and_a_rank_of_which_nothing_counts() -> None:
    """The gradient is NaN on that rank, of 0/0."""
    x, y = sparse_targets()
    wrap = {"weight_by": counted}
    compare(dense, masked_mean, x, y, rate=0.01, wrap=wrap, compile={"jit_compile": True})


@eager
def test_a_number() -> None:
    """Also for a loss that is a number itself."""
    x, y, _ = data()
    number = tf.Variable(float(rows_of(hvd.rank())))
    compare(dense, lambda y, p: keras.ops.mean((y - p) ** 2), x, y, wrap={"weight_by": number})


@eager
def test_without_weights_ranks_count_alike() -> None:
    x, y, _ = data()
    with pytest.raises(AssertionError, match=r"differs by \d"):
        compare(dense, "mse", x, y, wrap={"weight_by": None})


@eager
def test_no_rank_counts_anything() -> None:
    """No gradient is NaN, and no weight changes."""
    x, y, _ = data()
    y[:, 0] = -1.0
    model = dense()
    before = model.get_weights()
    optimizer = hvd.DistributedOptimizer(SGD(0.1), weight_by=counted)
    fit(model, optimizer, masked_mean, mine(x), mine(y), batch=rows_of(hvd.rank()))
    for was, now in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(was, now)


def said(loss: Any, *, op: Any = hvd.Average, make: Any = dense, targets: Any = None) -> list[str]:
    """What a first step warns of."""
    x, y, _ = data(1)
    model = make()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        optimizer = hvd.DistributedOptimizer(SGD(0.001), op=op)
        given = y if targets is None else targets
        fit(model, optimizer, loss, x, given, batch=len(x))
    return [str(w.message) for w in caught if "tfring" in str(w.message)]


@eager
def test_sums_and_op_sum() -> None:
    """A loss that is a sum needs op=Sum; what is added to the loss does not go with that."""
    from tfring.keras import loss_weights

    loss_weights._say.cache_clear()
    total_loss = losses.MeanSquaredError(reduction="sum")
    first = hvd.rank() == 0
    assert any("op=hvd.Sum" in text for text in said(total_loss)) == first
    assert said(total_loss, op=hvd.Sum) == []
    assert said("mse") == []
    decayed = said(total_loss, op=hvd.Sum, make=lambda: dense(keras.regularizers.L2(0.1)))
    assert any("hvd.size()" in text for text in decayed) == first
    x, y, _ = data()
    compare(dense, total_loss, x, y, wrap={"op": hvd.Sum}, rate=0.001)
    regular = keras.regularizers.L2
    alone = fit(dense(regular(0.1)), SGD(0.001), total_loss, x, y, batch=total())
    ours = dense(regular(0.1 / hvd.size()))
    optimizer = hvd.DistributedOptimizer(SGD(0.001), op=hvd.Sum)
    fit(ours, optimizer, total_loss, mine(x), mine(y), batch=rows_of(hvd.rank()))
    check(ours, alone)


@eager
def test_losses_with_different_divisors() -> None:
    from tfring.keras import loss_weights

    loss_weights._say.cache_clear()

    def two_outputs() -> Any:
        tokens = keras.Input((TOKENS,), dtype="int32")
        hidden = keras.layers.Embedding(20, 4, mask_zero=True)(tokens)
        pooled = keras.layers.GlobalAveragePooling1D()(hidden)
        return keras.Model(
            tokens, [keras.layers.Dense(CLASSES)(hidden), keras.layers.Dense(1)(pooled)]
        )

    ids, targets = sentences(equal)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = two_outputs()
        model.compile(
            hvd.DistributedOptimizer(SGD(0.1)),
            [losses.SparseCategoricalCrossentropy(from_logits=True), "mse"],
        )
        for _ in range(2):
            model.fit(ids, [targets, np.zeros((len(ids), 1))], verbose=0)
    found = [w for w in caught if "weight_by=f" in str(w.message)]
    assert len(found) == (1 if hvd.rank() == 0 else 0)


def test_a_function_needs_keras_own_step() -> None:
    optimizer = hvd.DistributedOptimizer(SGD(0.1), weight_by=counted)
    variable = keras.Variable(np.zeros(2, "float32"))
    with pytest.raises(RuntimeError, match="gives it the batch"):
        optimizer.apply([tf.ones(2)], [variable])


def test_weights_need_the_average() -> None:
    with pytest.raises(ValueError, match="op=Average"):
        hvd.DistributedOptimizer(SGD(0.1), op=hvd.Sum, weight_by=3)
    with pytest.raises(ValueError, match="weight_by"):
        hvd.DistributedOptimizer(SGD(0.1), weight_by="rows")
    with pytest.raises(ValueError, match="one number"):
        hvd.DistributedOptimizer(SGD(0.1), weight_by=tf.ones(3))
