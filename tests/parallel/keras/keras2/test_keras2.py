"""Keras 2 (tf_keras): N ranks train as one process does on the whole batch, or raise an error."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tiers import slow

import tfring
import tfring.keras as hvd
from tfring.keras.gradient_hook import find_hook

tfk = pytest.importorskip("tf_keras")

from tfring import keras2  # noqa: E402

# They hold for any number of ranks; one number is enough, and saves time.
pytestmark = pytest.mark.skipif(tfring.size() != 2, reason="run with two ranks")

eager = pytest.mark.usefixtures("eager_functions")  # tracing takes most of the time

PER_RANK, STEPS = 4, 3

OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "sgd": lambda: tfk.optimizers.SGD(0.1, momentum=0.9, clipnorm=0.5),
    "adam": lambda: tfk.optimizers.Adam(0.01, use_ema=True, ema_overwrite_frequency=2),
    "legacy_sgd": lambda: tfk.optimizers.legacy.SGD(0.1, momentum=0.9, clipvalue=0.05),
    "legacy_adam": lambda: tfk.optimizers.legacy.Adam(0.01, decay=0.1),
}


def build_model(seed: int, norm: Any = None) -> Any:
    tfk.utils.set_random_seed(seed)
    middle = [] if norm is None else [norm()]
    return tfk.Sequential([tfk.Input((6,)), tfk.layers.Dense(5), *middle, tfk.layers.Dense(1)])


def whole_data(size: int) -> tuple[Any, Any]:
    """Rows such that the k-th batch of every rank together is the k-th of one process."""
    rng = np.random.default_rng(7)
    x = rng.normal(size=[STEPS, size, PER_RANK, 6]).astype("float32")
    return x, x.sum(-1, keepdims=True) ** 2


def train_alone(
    make: Callable[[], Any], size: int, norm: Any = None, update_every: int = 1, mean: bool = True
) -> list[Any]:
    """The weights that one process has after the steps; with plain Keras 2."""
    model, optimizer = build_model(0, norm), make()
    x, y = (part.reshape([STEPS, -1, part.shape[-1]]) for part in whole_data(size))
    sums: list[Any] = []
    for step in range(STEPS):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(x[step], training=True) - y[step]))
        gradients = tape.gradient(loss, model.trainable_variables)
        sums = [s + g for s, g in zip(sums, gradients, strict=True)] if sums else gradients
        if (step + 1) % update_every == 0:
            factor = 1.0 / update_every if mean else 1.0
            pairs = zip([s * factor for s in sums], model.trainable_variables, strict=True)
            optimizer.apply_gradients(pairs)
            sums = []
    return [np.array(w) for w in model.get_weights()]


def fit(model: Any, rank: int, size: int, callbacks: list[Any], **more: Any) -> Any:
    x, y = (part[:, rank].reshape([STEPS * PER_RANK, -1]) for part in whole_data(size))
    return model.fit(
        x, y, batch_size=PER_RANK, shuffle=False, verbose=0, callbacks=callbacks, **more
    )


def begin() -> Any:
    return hvd.callbacks.BroadcastGlobalVariablesCallback(0)


def assert_close(model: Any, expected: list[Any], tolerance: float = 1e-5) -> None:
    for ours, theirs in zip(model.get_weights(), expected, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=tolerance, rtol=tolerance)


def assert_same_everywhere(model: Any) -> None:
    mine = np.concatenate([np.ravel(v) for v in model.get_weights()])
    for other in np.split(tfring.allgather(tf.constant(mine)).numpy(), tfring.size()):
        np.testing.assert_array_equal(mine, other)


@pytest.mark.parametrize(
    ("name", "how"),
    [
        ("adam", {}),
        ("sgd", {"run_eagerly": True}),
        ("legacy_sgd", {"steps_per_execution": 3}),
    ],
)
def test_fit_equals_one_process(name: str, how: Any, rank: int, size: int) -> None:
    model = build_model(0 if rank == 0 else 3)
    optimizer = OPTIMIZERS[name]()
    assert hvd.DistributedOptimizer(optimizer) is optimizer
    model.compile(optimizer, "mse", **how)
    metrics = hvd.callbacks.MetricAverageCallback()
    history = fit(model, rank, size, [begin(), metrics])
    # The EMA is written into the weights at the end of fit.
    if name != "adam":
        assert_close(model, train_alone(OPTIMIZERS[name], size))
    assert_same_everywhere(model)
    losses = tfring.allgather_object(history.history["loss"])
    assert all(other == losses[0] for other in losses)


@eager
def test_fit_reports_the_auc_of_all_data(rank: int, size: int) -> None:
    model = build_model(0)
    optimizer = hvd.DistributedOptimizer(OPTIMIZERS["sgd"]())
    model.compile(optimizer, "mse", metrics=[tfk.metrics.AUC(name="auc")])
    parts = []
    for r in range(size):
        rng = np.random.default_rng(r)
        x = rng.normal(size=(30 if r == 0 else 3, 6)).astype("f")
        parts.append((x, (x[:, :1] + r > 0.5).astype("f")))
    callbacks = [begin(), hvd.callbacks.MetricAverageCallback()]
    history = fit(model, rank, size, callbacks, validation_data=parts[rank]).history
    whole = [np.concatenate(values) for values in zip(*parts, strict=True)]
    want = model.evaluate(*whole, batch_size=33, verbose=0, return_dict=True)
    last = {name: history[f"val_{name}"][-1] for name in want}
    assert last == pytest.approx(want, rel=1e-5)
    got = hvd.evaluate(model, *parts[rank])
    assert got == pytest.approx(want, rel=1e-5)


@pytest.mark.parametrize(("name", "in_function"), [slow("adam", False), ("legacy_sgd", True)])
def test_own_loop_in_three_ways(name: str, in_function: bool, rank: int, size: int) -> None:
    """By apply_gradients, by gradients that were aggregated before, by minimize."""
    expected = train_alone(OPTIMIZERS[name], size)
    x, y = (part[:, rank] for part in whole_data(size))
    for way in ("apply", "aggregated", "minimize", "tape"):
        model = build_model(0)
        optimizer = OPTIMIZERS[name]()
        if way != "tape":
            optimizer = tfring.DistributedOptimizer(optimizer)

        def step(x: Any, y: Any, way: str = way, model: Any = model, opt: Any = optimizer) -> None:
            def loss_of() -> Any:
                return tf.reduce_mean(tf.square(model(x, training=True) - y))

            if way == "minimize":
                opt.minimize(loss_of, model.trainable_variables)
                return
            with tf.GradientTape() as tape:
                loss = loss_of()
            if way == "tape":
                tape = tfring.DistributedGradientTape(tape)
            pairs = zip(
                tape.gradient(loss, model.trainable_variables),
                model.trainable_variables,
                strict=True,
            )
            if way == "aggregated":
                reduced = opt._aggregate_gradients(list(pairs))
                changed = [(g * 1.0, v) for g, v in reduced]
                opt.apply_gradients(changed, experimental_aggregate_gradients=False)
            else:
                opt.apply_gradients(pairs)

        run = tf.function(step) if in_function else step
        for k in range(STEPS):
            run(tf.constant(x[k]), tf.constant(y[k]))
        assert_close(model, expected)


def test_accumulation(rank: int, size: int) -> None:
    for mean, name in ((True, "sgd"), (False, "legacy_sgd")):
        model = build_model(0)
        optimizer = hvd.DistributedOptimizer(
            OPTIMIZERS[name](), backward_passes_per_step=3, average_aggregated_gradients=mean
        )
        model.compile(optimizer, "mse")
        fit(model, rank, size, [begin()])
        assert int(optimizer.iterations) == 1
        assert_close(model, train_alone(OPTIMIZERS[name], size, update_every=3, mean=mean))


@eager
def test_loss_scale_optimizer_skips_on_all_ranks(rank: int, size: int) -> None:
    name = "legacy_sgd"
    model = build_model(0)
    scaled = tfk.mixed_precision.LossScaleOptimizer(OPTIMIZERS[name]())
    hvd.DistributedOptimizer(scaled)
    model.compile(scaled, "mse")
    # A state that only the root has loaded: gradients are unscaled before they are averaged.
    if rank == 0:
        scaled._loss_scale._current_loss_scale.assign(256.0)
    fit(model, rank, size, [])
    assert_close(model, train_alone(OPTIMIZERS[name], size), 1e-4)
    before = model.get_weights()
    x = np.ones([PER_RANK, 6], "float32") * (np.inf if rank == size - 1 else 1.0)
    model.fit(x, np.ones([PER_RANK, 1]), batch_size=PER_RANK, verbose=0, callbacks=[begin()])
    assert_close(model, before, 0.0)
    assert_same_everywhere(model)


def test_loss_scale_with_accumulation_is_refused() -> None:
    scaled = tfk.mixed_precision.LossScaleOptimizer(OPTIMIZERS["sgd"]())
    hvd.DistributedOptimizer(scaled, backward_passes_per_step=2)
    variable = tf.Variable([1.0])
    with pytest.raises(NotImplementedError, match="LossScaleOptimizer of Keras 2"):
        scaled.apply_gradients([(tf.constant([1.0]), variable)])


@eager
def test_sync_batch_normalization(rank: int, size: int) -> None:
    model = build_model(0, keras2.SyncBatchNormalization)
    model.compile(hvd.DistributedOptimizer(OPTIMIZERS["sgd"]()), "mse")
    fit(model, rank, size, [begin()])
    assert_close(model, train_alone(OPTIMIZERS["sgd"], size, tfk.layers.BatchNormalization), 1e-4)
    with pytest.raises(ValueError, match="renorm=True"):
        keras2.SyncBatchNormalization(renorm=True)


@pytest.mark.parametrize(("name", "suffix"), [("adam", "keras"), slow("legacy_sgd", "folder")])
def test_load_model_goes_on(name: str, suffix: str, rank: int, size: int, tmp_path: Path) -> None:
    model = build_model(0, None if suffix == "folder" else keras2.SyncBatchNormalization)
    model.compile(hvd.DistributedOptimizer(OPTIMIZERS[name]()), "mse")
    fit(model, rank, size, [begin()])
    path = tmp_path / ("model" if suffix == "folder" else f"model.{suffix}")
    model.save(path)
    plain = tfk.models.load_model(path)
    assert find_hook(plain.optimizer) is None
    loaded = keras2.load_model(path)
    assert find_hook(loaded.optimizer) is not None
    bare = getattr(keras2.load_model(path, compile=False), "optimizer", None)
    # tf_keras gives a model from a SavedModel an optimizer even then; it is not wrapped.
    assert bare is None or (suffix == "folder" and find_hook(bare) is None)
    # tf_keras itself loads an optimizer from a SavedModel without its state.
    assert int(loaded.optimizer.iterations) == (0 if suffix == "folder" else STEPS)
    if suffix == "folder":
        model.compile(hvd.DistributedOptimizer(OPTIMIZERS[name]()), "mse")
    fit(model, rank, size, [])
    fit(loaded, rank, size, [])
    assert_close(loaded, model.get_weights())
    assert_same_everywhere(loaded)


@eager
def test_load_model_keeps_options(rank: int, size: int, tmp_path: Path) -> None:
    model = build_model(0)
    options = {"op": hvd.Sum, "backward_passes_per_step": STEPS}
    model.compile(hvd.DistributedOptimizer(tfk.optimizers.SGD(0.01), **options), "mse")
    fit(model, rank, size, [begin()])
    model.save(tmp_path / "model.keras")
    loaded = keras2.load_model(tmp_path / "model.keras")
    averaged = keras2.load_model(tmp_path / "model.keras", op=hvd.Average)
    for each in (model, loaded, averaged):
        fit(each, rank, size, [])
        assert int(each.optimizer.iterations) == 2
    assert_close(loaded, model.get_weights())
    with pytest.raises(AssertionError):
        assert_close(averaged, model.get_weights())


@eager
def test_learning_rate_callbacks(rank: int, size: int) -> None:
    for name in ("sgd", "legacy_sgd"):
        model = build_model(0)
        model.compile(hvd.DistributedOptimizer(OPTIMIZERS[name]()), "mse")
        warm_up = hvd.callbacks.LearningRateWarmupCallback(initial_lr=0.01, warmup_epochs=2)
        later = hvd.callbacks.LearningRateScheduleCallback(0.01, lambda epoch: 0.1, start_epoch=2)
        history = fit(model, rank, size, [begin(), warm_up, later], epochs=3)
        np.testing.assert_allclose(history.history["lr"][1:], [0.01, 0.001], rtol=1e-6)
        assert_same_everywhere(model)
        rates = tfk.optimizers.schedules.ExponentialDecay(0.1, 10, 0.5)
        kind = tfk.optimizers if name == "sgd" else tfk.optimizers.legacy
        model.compile(hvd.DistributedOptimizer(kind.SGD(rates)), "mse")
        with pytest.raises(TypeError, match="learning rate schedule"):
            fit(model, rank, size, [warm_up])


@eager
def test_the_roots_state_and_rate_are_broadcast(rank: int, size: int) -> None:
    for name in ("adam", "legacy_adam"):
        model = build_model(rank)
        model.compile(hvd.DistributedOptimizer(OPTIMIZERS[name]()), "mse")
        if rank == 0:
            model.optimizer.learning_rate = 0.25
        fit(model, rank, size, [begin()])
        assert float(model.optimizer.learning_rate) == 0.25
        assert_same_everywhere(model)


def test_local_variables_stay(rank: int, size: int) -> None:
    model = build_model(0)
    local = model.layers[0]
    optimizer = hvd.PartialDistributedOptimizer(OPTIMIZERS["sgd"](), local_layers=[local])
    model.compile(optimizer, "mse")
    fit(model, rank, size, [])
    values = tfring.allgather(tf.reshape(local.kernel, [1, -1])).numpy()
    assert size == 1 or np.abs(values - values[:1])[1:].max() > 1e-4
    shared = tfring.allgather(tf.reshape(model.layers[-1].kernel, [1, -1])).numpy()
    np.testing.assert_array_equal(shared, np.repeat(shared[:1], size, axis=0))
    with pytest.raises(RuntimeError, match="before the first training step"):
        optimizer.register_local_var(model.layers[-1].kernel)


@eager
def test_copies_reduce_too(rank: int, size: int) -> None:
    """Only legacy ones: tf_keras itself cannot deepcopy the others."""
    optimizer = hvd.DistributedOptimizer(OPTIMIZERS["legacy_sgd"]())
    copied = copy.deepcopy(optimizer)
    assert find_hook(copied) is not None and find_hook(copied) is not find_hook(optimizer)
    model = build_model(0)
    model.compile(copied, "mse")
    fit(model, rank, size, [begin()])
    assert_close(model, train_alone(OPTIMIZERS["legacy_sgd"], size))
    for name in ("sgd", "legacy_sgd"):
        optimizer = hvd.DistributedOptimizer(OPTIMIZERS[name]())
        assert find_hook(type(optimizer).from_config(optimizer.get_config())) is None


@eager
def test_a_model_without_trainable_weights_trains_nothing(rank: int, size: int) -> None:
    """Its optimizer need not reduce anything; the weights are broadcast all the same."""
    expected = build_model(0).get_weights()
    for name, wrapped in (("sgd", False), ("legacy_sgd", True)):
        model, optimizer = build_model(rank), OPTIMIZERS[name]()
        model.trainable = False
        model.compile(hvd.DistributedOptimizer(optimizer) if wrapped else optimizer, "mse")
        fit(model, rank, size, hvd.fit_callbacks(), epochs=2)
        assert_close(model, expected, 0.0)


@eager
def test_an_unbuilt_model_is_refused_too(rank: int, several: int) -> None:
    """Keras 2 builds it in the first step: until then it has no trainable weights."""
    model = tfk.Sequential([tfk.layers.Dense(1)])
    model.compile("sgd", "mse")
    with pytest.raises(RuntimeError, match="does not reduce gradients"):
        fit(model, rank, several, [begin()])


def test_never_skipped(rank: int, several: int) -> None:
    class OwnStep(tfk.Sequential):  # type: ignore[misc]
        def train_step(self, data: Any) -> Any:
            x, y = data
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(self(x) - y))
            gradients = tape.gradient(loss, self.trainable_variables)
            self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
            return {"loss": loss}

    variable = tf.Variable([1.0])
    pairs = [(tf.constant([1.0]), variable)]
    for name in ("sgd", "legacy_sgd"):
        model = build_model(0)
        model.compile(OPTIMIZERS[name](), "mse")
        with pytest.raises(RuntimeError, match="does not reduce gradients"):
            fit(model, rank, several, [begin()])
        own = OwnStep([tfk.Input((6,)), tfk.layers.Dense(1)])
        own.compile(OPTIMIZERS[name]())
        with pytest.raises(RuntimeError, match=r"reduced"):
            fit(own, rank, several, [begin()])
        optimizer = hvd.DistributedOptimizer(OPTIMIZERS[name]())
        with pytest.raises(RuntimeError, match="were not reduced over the ranks"):
            optimizer.apply_gradients(pairs, experimental_aggregate_gradients=False)
        with pytest.raises(RuntimeError, match="were not reduced over the ranks"):
            tf.function(
                lambda opt=optimizer: opt.apply_gradients(
                    [(variable * 2.0, variable)], experimental_aggregate_gradients=False
                )
            )()
        with pytest.raises(RuntimeError, match="not reduced over the ranks"):
            type(optimizer).apply_gradients(
                optimizer, pairs, experimental_aggregate_gradients=False
            )
        with pytest.raises(ValueError, match="wrap it once"):
            hvd.DistributedOptimizer(optimizer)
        optimizer.apply_gradients(pairs)
        used = OPTIMIZERS[name]()
        used.apply_gradients(pairs)
        with pytest.raises(ValueError, match="has taken 1 steps"):
            hvd.DistributedOptimizer(used)
        tape = tfring.DistributedGradientTape(tf.GradientTape())
        with tape:
            loss = tf.reduce_sum(variable * variable)
        with pytest.raises(ValueError, match="wrap the tape or the optimizer, not both"):
            optimizer.apply_gradients([(tape.gradient(loss, variable), variable)])


@eager
def test_ranks_that_stop_or_differ_get_an_error(rank: int, size: int) -> None:
    class StopsOnRank0(tfk.callbacks.Callback):  # type: ignore[misc]
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            self.model.stop_training = rank == 0

    for name in ("sgd", "legacy_sgd"):
        model = build_model(0)
        model.compile(hvd.DistributedOptimizer(OPTIMIZERS[name]()), "mse")
        with pytest.raises((RuntimeError, tf.errors.FailedPreconditionError)):
            fit(model, rank, size, [begin(), StopsOnRank0()])
        model.stop_training = False
        with pytest.raises(RuntimeError, match="the epoch that they begin"):
            fit(model, rank, size, [begin()], initial_epoch=rank, epochs=3)


def test_data_that_end_before_those_of_others(rank: int, size: int) -> None:
    x, y = np.ones((4, 6), "float32"), np.ones((4, 1), "float32")
    for name in ("sgd", "legacy_sgd"):
        model = build_model(0)
        model.compile(hvd.DistributedOptimizer(OPTIMIZERS[name]()), "mse")
        with warnings.catch_warnings():
            warnings.simplefilter("error", UserWarning)
            model.fit(iter([(x, y)] * 2), verbose=0, callbacks=[begin()])
        error = RuntimeError if rank == 0 else tf.errors.FailedPreconditionError
        with pytest.raises(error, match="after batch 2, and other" if rank == 0 else "optimizer"):
            model.fit(iter([(x, y)] * (2 + rank)), verbose=0, callbacks=[begin()])


def test_get_gradients_in_a_graph(rank: int, size: int) -> None:
    tf1 = tf.compat.v1
    for update in ("get_updates", "changed"):
        with tf.Graph().as_default(), tf1.Session() as session:
            weight = tf.Variable([1.0, 2.0], name="weight")
            optimizer = hvd.DistributedOptimizer(tfk.optimizers.legacy.SGD(0.5))
            loss = tf.reduce_sum(weight * float(rank + 1))
            if update == "get_updates":
                updates = optimizer.get_updates(loss, [weight])
            else:
                (gradient,) = optimizer.get_gradients(loss, [weight])
                updates = [optimizer.apply_gradients([(gradient * 1.0, weight)])]
            session.run(tf1.global_variables_initializer())
            session.run(updates)
            mean = (size + 1) / 2
            np.testing.assert_allclose(session.run(weight), [1 - 0.5 * mean, 2 - 0.5 * mean])
