"""shard_states=True with a process set: its ranks share the states, others have whole ones."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras_cases import assert_same_on_all_ranks, assert_same_weights, build_model, fit, loss
from shard_cases import KINDS, LOOPS, WAYS, states, trained

import tfring.keras as hvd

pytestmark = [
    pytest.mark.any_ranks,
    pytest.mark.usefixtures("eager_functions"),
    pytest.mark.skipif("hvd.size() < 3", reason="two ranks have no smaller set of two"),
]
CASES = [
    ("Adam", "fit", "float32"),
    ("Adam", "tape", "clipping"),
    ("Adam", "fit", "clipnorm"),
    ("AdamW", "fit", "accumulation"),
    ("SGD", "fit", "ema"),
    ("Lamb", "tape", "float32"),
    ("Lamb", "fit", "clipping"),
    ("Adafactor", "fit", "accumulation"),
]


@pytest.fixture
def members() -> Iterator[Any]:
    """With three ranks, ranks 1 and 2; with four, the even or the odd ones: the set of this rank.

    Rank 0 of three ranks is outside.
    """
    several = [[1, 2]] if hvd.size() == 3 else [list(range(i, hvd.size(), 2)) for i in range(2)]
    sets = [hvd.add_process_set(ranks) for ranks in several]
    yield next((each for each in sets if each.included()), sets[0])
    for each in sets:
        hvd.remove_process_set(each)


@pytest.mark.parametrize(("kind", "loop", "way"), CASES)
def test_weights_are_those_of_the_unsharded_optimizer(
    members: Any, kind: str, loop: str, way: str
) -> None:
    plain, sharded = (
        LOOPS[loop](KINDS[kind](**WAYS[way]), shard, process_set=members) for shard in (False, True)
    )
    assert_same_weights(sharded, plain.get_weights(), 1e-6)
    if not members.included():
        assert states(sharded) == states(plain)
    elif kind in ("Adam", "AdamW", "SGD"):
        numbers = 2
        parts = [-(-weight.size // members.size()) for weight in plain.get_weights()]
        slots = (states(plain) - numbers) // plain.count_params()
        assert states(sharded) == slots * sum(parts) + numbers
    else:
        each = hvd.allgather_object(states(sharded), process_set=members)
        assert max(each) < states(plain)


@pytest.mark.parametrize("kind", ["Adam", "Lamb"])
def test_compiled_steps_and_mixed_precision(members: Any, kind: str) -> None:
    tf.config.run_functions_eagerly(False)
    keras.config.set_dtype_policy("mixed_float16")
    try:
        plain, sharded = (
            trained(KINDS[kind](), shard, process_set=members) for shard in (False, True)
        )
    finally:
        keras.config.set_dtype_policy("float32")
    assert_same_weights(sharded, plain.get_weights(), 1e-6)


def test_different_weights_within_the_set_are_an_error(members: Any) -> None:
    model = build_model(1 + hvd.rank())
    optimizer = keras.optimizers.SGD(0.1)
    model.compile(
        hvd.DistributedOptimizer(optimizer, shard_states=True, process_set=members), loss()
    )
    if members.included():
        with pytest.raises(Exception, match="the ranks train different weights"):
            fit(model, steps=1)
        hvd.broadcast_variables(model.weights, members.ranks[0], process_set=members)
    fit(model, steps=1)


@pytest.mark.parametrize("kind", ["Adam", "Adafactor"])
def test_each_set_saves_its_model_whole(members: Any, kind: str, tmp_path: Path) -> None:
    plain, sharded = (trained(KINDS[kind](), s, process_set=members) for s in (False, True))
    folder = Path(hvd.broadcast_object(str(tmp_path)))
    if members.included():
        file = folder / f"{members.ranks[0]}.keras"
        with pytest.raises(ValueError, match=r"divided among ranks \["):
            hvd.save_model(sharded, file)
        hvd.save_model(sharded, file, process_set=members)
        hvd.barrier(process_set=members)
        saved = keras.saving.load_model(file).optimizer.variables
        for ours, theirs in zip(saved, plain.optimizer.variables, strict=True):
            np.testing.assert_allclose(ours.numpy(), theirs.numpy(), rtol=0, atol=1e-6)
        again = hvd.load_model(file)
        assert states(again) == states(sharded)
        for model in (again, plain):
            fit(model, steps=2)
        assert_same_weights(again, plain.get_weights(), 1e-6)
    hvd.barrier()
    # All ranks go on together from the file of one set.
    first = hvd.broadcast_object(members.ranks[0])
    model = hvd.load_model(folder / f"{first}.keras", process_set=None)
    fit(model, steps=1)
    assert_same_on_all_ranks(model)


@pytest.mark.parametrize(
    "what", ["BroadcastGlobalVariablesCallback", "a ModelCheckpoint", "a checkpoint"]
)
def test_what_needs_equal_states_on_all_ranks_is_refused(
    members: Any, what: str, tmp_path: Path
) -> None:
    model = build_model(1)
    optimizer = keras.optimizers.Adam(0.02)
    model.compile(
        hvd.DistributedOptimizer(optimizer, shard_states=True, process_set=members), loss()
    )
    callbacks = hvd.fit_callbacks()
    if what == "a ModelCheckpoint":
        callbacks = hvd.fit_callbacks(keras.callbacks.ModelCheckpoint(tmp_path / "x.keras"))[1:]
    if what == "a checkpoint":
        callbacks = hvd.fit_callbacks(checkpoint=tmp_path)[-1:]
    with pytest.raises(NotImplementedError, match=f"{what} needs the same states on all ranks"):
        fit(model, *callbacks, steps=1)
