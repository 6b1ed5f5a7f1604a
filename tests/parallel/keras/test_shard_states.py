"""shard_states=True: each rank has a part of the optimizer's states; the weights are the same."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras_cases import (
    assert_same_on_all_ranks,
    assert_same_weights,
    build_model,
    fit,
    loss,
)
from shard_cases import BY_VARIABLE, KINDS, LOOPS, WAYS, states, trained
from tiers import slow

import tfring.keras as hvd
from tfring.training.shards import EqualShards, owners

pytestmark = [
    pytest.mark.any_ranks,
    pytest.mark.usefixtures("eager_functions"),
    pytest.mark.skipif("hvd.size() < 2", reason="one rank has the plain optimizer"),
]

optimizers = keras.optimizers


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """One folder for all ranks."""
    return Path(hvd.broadcast_object(str(tmp_path)))


@contextlib.contextmanager
def policy(way: str) -> Iterator[None]:
    """The policy of Keras for a way of WAYS."""
    keras.config.set_dtype_policy(way if way == "mixed_float16" else "float32")
    try:
        yield
    finally:
        keras.config.set_dtype_policy("float32")


IN_TABLE = ("float32", "mixed_float16", "accumulation", "clipping")
TABLE = [(kind, loop, way) for kind in KINDS for loop in LOOPS for way in IN_TABLE]
# Each loop and way once, with every second optimizer.
QUICK = [TABLE[8 * (2 * i % len(KINDS)) + i] for i in range(8)]
QUICK += [("Adam", "fit", way) for way in WAYS if way not in IN_TABLE]
SLOW = [slow(*case) for case in TABLE if case not in QUICK]
SLOW += [slow("Lamb", "fit", way) for way in WAYS if way not in IN_TABLE]


@pytest.mark.parametrize(("kind", "loop", "way"), [*QUICK, *SLOW])
def test_weights_are_those_of_the_unsharded_optimizer(kind: str, loop: str, way: str) -> None:
    train = LOOPS[loop]
    with policy(way):
        plain, sharded = (train(KINDS[kind](**WAYS[way]), shard) for shard in (False, True))
    assert_same_weights(sharded, plain.get_weights(), 1e-6)
    assert_same_on_all_ranks(sharded)
    numbers = sum(v.shape == () for v in plain.optimizer.variables)
    if kind in BY_VARIABLE:
        each = hvd.allgather_object(states(sharded))
        assert sum(each) == states(plain) + (hvd.size() - 1) * numbers
    else:
        parts = sum(EqualShards(hvd.size(), 0).part_size(w.size) for w in plain.get_weights())
        slots = (states(plain) - numbers) // plain.count_params()
        assert states(sharded) == slots * parts + numbers


@pytest.mark.parametrize("way", ["clipnorm", "clipping"])
def test_a_weight_that_is_one_number(way: str) -> None:
    found = []
    for shard in (False, True):
        weights = [tf.Variable(1.0), tf.Variable([[2.0, 1.0], [0.5, 3.0]]), tf.Variable([1.0, 4.0])]
        optimizer = hvd.DistributedOptimizer(BY_VARIABLE["Lamb"](**WAYS[way]), shard_states=shard)
        for _ in range(3):
            optimizer.apply_gradients([(weight * (hvd.rank() + 1), weight) for weight in weights])
        found.append([weight.numpy() for weight in weights])
    for plain, sharded in zip(*found, strict=True):
        np.testing.assert_allclose(sharded, plain, rtol=1e-6)


def test_owners_have_about_as_much() -> None:
    assert owners([1, 8, 2, 4, 1], 2) == [1, 0, 1, 1, 1]
    assert owners([], 2) == []


@pytest.mark.parametrize(
    ("jit", "kind"),
    [(True, "Adam"), slow(False, "Lamb"), slow(False, "Adam"), slow(True, "Lamb")],
)
def test_compiled_steps_and_mixed_precision(jit: bool, kind: str) -> None:
    make = KINDS[kind]
    tf.config.run_functions_eagerly(False)
    keras.config.set_dtype_policy("mixed_float16")
    found = []
    try:
        for shard in (False, True):
            model = build_model(1)
            optimizer = hvd.DistributedOptimizer(make(), shard_states=shard)
            model.compile(optimizer, loss(), jit_compile=jit)
            fit(model, steps=4)
            found.append(model)
    finally:
        keras.config.set_dtype_policy("float32")
    assert type(found[1].optimizer).__name__ == "LossScaleOptimizer"
    assert_same_weights(found[1], found[0].get_weights(), 1e-6)


def test_assigned_weights_are_taken() -> None:
    model = trained(optimizers.SGD(0.0), True)
    model.set_weights([np.full_like(w, 3.0) for w in model.get_weights()])
    fit(model, steps=1)
    assert all((w == 3.0).all() for w in model.get_weights())


@pytest.mark.parametrize("way", ["clipnorm", "clipping"])
def test_optimizers_may_have_other_names_on_other_ranks(way: str) -> None:
    if hvd.rank() == 0:
        optimizers.Adam()  # Keras counts it
    model = trained(KINDS["Adam"](**WAYS[way]), True)
    assert_same_on_all_ranks(model)


def test_different_weights_at_the_start_are_an_error() -> None:
    tf.config.run_functions_eagerly(False)
    model = build_model(1 + hvd.rank())
    model.compile(hvd.DistributedOptimizer(optimizers.SGD(0.1), shard_states=True), loss())
    with pytest.raises(Exception, match="the ranks train different weights"):
        fit(model, steps=1)


def test_a_model_without_input_whose_weights_have_constraints_and_sparse_gradients() -> None:
    tf.config.run_functions_eagerly(False)
    found = []
    for shard in (False, True):
        keras.utils.set_random_seed(1)
        within = keras.constraints.MaxNorm(0.1)
        table = keras.layers.Embedding(7, 3, embeddings_constraint=within)
        model = keras.Sequential([table, keras.layers.Flatten(), keras.layers.Dense(1)])
        optimizer = hvd.DistributedOptimizer(optimizers.Adam(0.1), shard_states=shard)
        model.compile(optimizer, "mse")
        rows = np.random.default_rng(hvd.rank()).integers(0, 7, (8, 2))
        model.fit(rows, rows[:, :1], batch_size=4, verbose=0)
        found.append(model)
    assert_same_weights(found[1], found[0].get_weights(), 1e-6)


@pytest.mark.parametrize("options", [{}, {"sparse_as_dense": True}])
def test_gradients_of_a_few_rows_some_of_them_twice(options: dict[str, Any]) -> None:
    found = []
    for shard in (False, True):
        keras.utils.set_random_seed(1)
        layers = keras.layers.Embedding(11, 3), keras.layers.Flatten(), keras.layers.Dense(1)
        model = keras.Sequential([keras.Input((4,), dtype="int32"), *layers])
        optimizer = hvd.DistributedOptimizer(optimizers.Adam(0.1), shard_states=shard, **options)
        model.compile(optimizer, "mse", jit_compile=False)
        rows = np.random.default_rng(hvd.rank()).integers(0, 5, (8, 4))
        model.fit(rows, rows[:, :1], batch_size=4, epochs=2, verbose=0)
        found.append(model)
    assert_same_weights(found[1], found[0].get_weights(), 1e-6)


def test_a_broadcast_leaves_parts_alone() -> None:
    model = trained(optimizers.SGD(0.1, momentum=0.9), True)
    before = [v.numpy() for v in model.optimizer.variables]
    hvd.broadcast_variables(model.optimizer.variables, root_rank=0)
    for value, variable in zip(before, model.optimizer.variables, strict=True):
        np.testing.assert_array_equal(value, variable.numpy())


def test_variables_of_tensorflow() -> None:
    variable = tf.Variable(np.ones((3, 2), "float32"), name="a/b")
    optimizer = hvd.DistributedOptimizer(optimizers.SGD(0.5), shard_states=True)
    optimizer.apply_gradients([(tf.ones((3, 2)), variable)])
    np.testing.assert_array_equal(variable.numpy(), np.full((3, 2), 0.5))


@pytest.mark.parametrize(
    ("load", "kind"),
    [
        (keras.saving.load_model, "Adam"),
        (hvd.load_model, "Adam"),
        (keras.saving.load_model, "Nadam"),
    ],
)
def test_a_model_with_loss_scaling_is_saved_whole(folder: Path, load: Any, kind: str) -> None:
    keras.config.set_dtype_policy("mixed_float16")
    try:
        model = trained(KINDS[kind](), True)
        hvd.save_model(model, folder / "model.keras")
        loaded = load(folder / "model.keras")
    finally:
        keras.config.set_dtype_policy("float32")
    assert type(loaded.optimizer).__name__ == "LossScaleOptimizer"
    assert int(loaded.optimizer.step_counter.numpy()) == 4
    assert int(loaded.optimizer.iterations.numpy()) == 4
    with pytest.raises(NotImplementedError, match="an HDF5 file"):
        hvd.save_model(model, folder / "model.h5")


def test_a_process_set_of_one_rank_has_the_plain_optimizer() -> None:
    one = hvd.add_process_set([0])
    model = build_model(1)
    optimizer = optimizers.SGD(0.1, global_clipnorm=0.1)
    model.compile(hvd.DistributedOptimizer(optimizer, shard_states=True, process_set=one), loss())
    fit(model, steps=1)
    hvd.remove_process_set(one)


def test_ranks_with_different_numbers_of_model_checkpoints_are_told(folder: Path) -> None:
    saves = [keras.callbacks.ModelCheckpoint(folder / "model.keras")] if hvd.rank() == 0 else []
    with pytest.raises(RuntimeError, match="the same ModelCheckpoints on every rank"):
        trained(optimizers.Adam(0.02), True, *hvd.fit_callbacks(*saves))


def test_local_variables_stay_whole() -> None:
    model = build_model(1)
    optimizer = hvd.DistributedOptimizer(
        optimizers.Adam(0.02), shard_states=True, local_layers=[model.layers[-1]]
    )
    model.compile(optimizer, loss())
    fit(model, steps=1)
    own = model.layers[-1].kernel
    assert own.shape in [v.shape for v in optimizer.variables]


PLAIN = """
import sys, keras, numpy as np
model = keras.saving.load_model(sys.argv[1])
np.savez(sys.argv[2], *[np.asarray(v) for v in model.optimizer.variables])
"""


@pytest.mark.parametrize("kind", ["Adam", slow("Adafactor")])
def test_a_saved_model_is_whole(folder: Path, kind: str) -> None:
    make = KINDS[kind]
    file, found = folder / "model.keras", folder / "states.npz"
    sharded, plain = trained(make(), True), trained(make(), False)
    with pytest.raises(RuntimeError, match=r"Call hvd.save_model\(model, path\) on all ranks"):
        sharded.save(folder / f"{hvd.rank()}.keras")
    hvd.save_model(sharded, file)
    if hvd.rank() == 0:
        subprocess.run([sys.executable, "-c", PLAIN, file, found], check=True)
        for ours, theirs in zip(np.load(found).values(), plain.optimizer.variables, strict=True):
            np.testing.assert_allclose(ours, theirs.numpy(), rtol=0, atol=1e-6)
    again = hvd.load_model(file)
    assert states(again) == states(sharded)
    for model in (again, plain, sharded):
        fit(model, steps=2)
    assert_same_weights(again, plain.get_weights(), 1e-6)
    assert_same_weights(sharded, plain.get_weights(), 1e-6)


def test_a_model_checkpoint_of_fit_callbacks(folder: Path) -> None:
    file = folder / "best.keras"
    saves = keras.callbacks.ModelCheckpoint(file, monitor="loss", save_best_only=True)
    model = trained(optimizers.Adam(0.02), True, *hvd.fit_callbacks(saves))
    hvd.barrier()
    loaded = keras.saving.load_model(file)
    assert_same_weights(loaded, model.get_weights(), 0)
    assert loaded.optimizer.variables[2].shape == loaded.trainable_variables[0].shape


@pytest.mark.parametrize("kind", ["Adam", slow("Adafactor")])
@pytest.mark.parametrize(("before", "after"), [(True, False), (False, True), slow(True, True)])
def test_checkpoints_go_on_sharded_or_not(
    folder: Path, before: bool, after: bool, kind: str
) -> None:
    make = KINDS[kind]
    whole = trained(make(), False, *hvd.fit_callbacks(), epochs=2)
    checkpoint = {"checkpoint": folder}
    trained(make(), before, *hvd.fit_callbacks(**checkpoint))
    again = trained(make(), after, *hvd.fit_callbacks(**checkpoint), epochs=2)
    assert_same_weights(again, whole.get_weights(), 1e-6)


class Own(optimizers.Adam):
    """An optimizer of the program."""


@pytest.mark.parametrize(
    ("optimizer", "options", "why"),
    [
        (Own, {}, "tfring does not know what Own needs"),
        (optimizers.Adam, {"backward_passes_per_step": 2}, "use gradient_accumulation_steps"),
        (optimizers.Adam, {"op": hvd.Max}, "use op=Average or op=Sum"),
        (optimizers.Adam, {"after_reduce": lambda g, v: g}, "a part of the gradients"),
    ],
)
def test_what_cannot_be_sharded_is_refused(optimizer: Any, options: Any, why: str) -> None:
    with pytest.raises(NotImplementedError, match=why):
        hvd.DistributedOptimizer(optimizer(), shard_states=True, **options)
