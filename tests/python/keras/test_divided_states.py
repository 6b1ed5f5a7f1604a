"""Optimizers with sharded states get new variables when the number of ranks changes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfring.keras as hvd
from tfring.elastic.tensorflow_state import TensorFlowKerasState
from tfring.keras import state_shards
from tfring.keras.gradient_hook import find_hook
from tfring.runtime import topology
from tfring.training.shards import EqualShards

KINDS = [
    kind
    for kind in (*state_shards._ELEMENTWISE, *state_shards._BY_VARIABLE)
    if hasattr(keras.optimizers, kind)
]


@pytest.fixture(autouse=True)
def elastic(monkeypatch: pytest.MonkeyPatch) -> Any:
    """An elastic job of one rank."""
    hvd.init()
    monkeypatch.setattr(topology, "slot", lambda: 0)
    yield
    hvd.shutdown()


def built(kind: str, count: int, rank: int, model: Any) -> Any:
    """An optimizer of a rank of several."""
    optimizer = hvd.DistributedOptimizer(getattr(keras.optimizers, kind)(0.1), shard_states=True)
    shards = find_hook(optimizer).shards
    shards._members = SimpleNamespace(size=lambda: count, rank=lambda: rank, ranks=None)
    shards._equal = EqualShards(count, rank)
    optimizer.build(model.trainable_variables)
    return optimizer


@pytest.mark.parametrize("kind", KINDS)
def test_states_are_those_of_the_new_number_of_ranks(kind: str) -> None:
    model = keras.Sequential(
        [keras.Input((5,)), keras.layers.Dense(7), keras.layers.Dense(3, use_bias=False)]
    )
    optimizer = built(kind, 3, 1, model)
    optimizer._iterations.assign(4)
    shards = find_hook(optimizer).shards
    for count, rank in ((2, 0), (2, 1), (1, 0), (4, 3)):
        shards._members = SimpleNamespace(size=lambda: count, rank=lambda: rank, ranks=None)  # noqa: B023
        assert shards.divide() and not shards.divide()
        wanted = built(kind, count, rank, model)
        assert [v.shape for v in optimizer.variables] == [v.shape for v in wanted.variables]
        ours, theirs = shards.states().values(), find_hook(wanted).shards.states().values()
        assert [one.shape for one in ours] == [one.shape for one in theirs]
        for one, other in zip(ours, theirs, strict=True):
            np.testing.assert_array_equal(one.own.numpy(), other.own.numpy())
            assert one.own.shape == one.own.value.shape
        limits = [(last - first) for first, last in (each[rank] for each in shards.ranges(count))]
        assert limits == [
            last - first
            for first, last in (one.shards.ranges(int(np.prod(one.shape)))[rank] for one in ours)
        ]
        assert int(optimizer._iterations.numpy()) == 4
        keys = [shards.key(part) for part in optimizer._trainable_variables]
        assert keys == [shards.key(v) for v in model.trainable_variables]


@pytest.mark.parametrize("kind", KINDS)
def test_states_begin_with_the_present_weights(kind: str) -> None:
    """Weights that have come from another rank count, not those it was built with."""
    model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(7)])
    optimizer = built(kind, 3, 1, model)
    for variable in model.trainable_variables:
        variable.assign(variable + 2.0)
    for state in find_hook(optimizer).shards.states().values():
        state.own.assign(tf.ones_like(state.own.value))
    find_hook(optimizer).shards.begin()
    wanted = find_hook(built(kind, 3, 1, model)).shards.states().values()
    for one, other in zip(find_hook(optimizer).shards.states().values(), wanted, strict=True):
        np.testing.assert_array_equal(one.own.numpy(), other.own.numpy())


def test_a_state_that_would_give_all_ranks_one_part_is_refused() -> None:
    model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(3)])
    state = TensorFlowKerasState(model, built("Adam", 2, 0, model))
    with pytest.raises(NotImplementedError, match=r"Use hvd.elastic.fit or hvd.elastic.KerasState"):
        state.sync()


def test_a_function_of_other_ranks_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step of the program itself was traced before the ranks changed."""
    variable = tf.Variable([1.0, 2.0, 3.0])
    optimizer = hvd.DistributedOptimizer(keras.optimizers.Adam(0.1), shard_states=True)

    def step() -> None:
        optimizer.apply([tf.ones(3)], [variable])

    tf.function(step)()
    step()
    monkeypatch.setattr(state_shards.StateShards, "divided", (2, 0))
    for function in (step, tf.function(step)):
        with pytest.raises((RuntimeError, tf.errors.OpError), match="the states of rank 0 of 2"):
            function()
    assert int(optimizer.iterations.numpy()) == 2
