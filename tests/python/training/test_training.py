"""What reductions remember beyond one step: numbers for names, and which variables were reduced."""

from __future__ import annotations

from typing import Any

import keras
import pytest
import tensorflow as tf

import tfring.keras as hvd
from tfring import world
from tfring.ops import builders
from tfring.runtime import topology
from tfring.training import weights
from tfring.training.ordinals import Ordinals
from tfring.training.reduction_record import ReductionRecord


def test_ordinals_count_first_uses_by_group_and_keep_their_numbers() -> None:
    ordinals = Ordinals()
    assert [ordinals.number(key) for key in "abab"] == [0, 1, 0, 1]
    assert ordinals.number("b", group=1) == 0
    world.init()
    world.shutdown()
    assert [ordinals.number(key) for key in "bac"] == [1, 0, 2]  # traced names stay


def test_a_record_knows_variables_times_and_process_sets() -> None:
    record = ReductionRecord()
    mine, begin = keras.Variable([1.0]), record.now()
    record.add([])
    assert not record.covers(mine, begin)
    record.add([mine.value])
    assert record.covers(mine, begin)
    assert not record.covers(mine, record.now())
    record.add_by_tape([mine.value], 3)
    assert record.any_by_tape_since([mine], 3, begin)
    assert not record.any_by_tape_since([mine], 0, begin)
    assert not record.any_by_tape_since([mine], 3, record.now())
    record.forget_tapes()
    assert not record.any_by_tape_since([mine], 3, begin)


@pytest.mark.parametrize("named", [True, False])
def test_what_a_user_says_to_have_reduced_counts_at_any_time(named: bool) -> None:
    record = ReductionRecord()
    mine, other = keras.Variable([1.0]), keras.Variable([[1.0]])
    record.declare([tf.constant([2.0]), None], [mine] if named else None)
    assert record.covers(mine, record.now())
    assert not record.covers(other, 0)
    assert record.covers(keras.Variable([5.0]), 0) is not named  # of the same dtype and shape


def test_where_a_process_was_launched_alone_fit_only_reduces_gradients(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nothing is computed or sent for ranks that differ."""
    sent: list[int] = []
    build = builders.allreduce_op

    def recorded(tensors: Any, **kwargs: Any) -> Any:
        sent.append(len(tensors))
        return build(tensors, **kwargs)

    monkeypatch.setattr(builders, "allreduce_op", recorded)
    monkeypatch.setattr(weights, "of_step", lambda *_, **__: pytest.fail("a weight was computed"))
    world.init()
    try:
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
        model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse")
        model.fit(tf.ones([4, 3]), tf.ones([4, 1]), verbose=0)
    finally:
        world.shutdown()
    assert set(sent) == {2}


def test_a_process_that_leaves_others_out_of_init_is_not_always_alone() -> None:
    world.init(comm=[0])
    try:
        assert (topology.size(), topology.always_alone()) == (1, False)
    finally:
        world.shutdown()
    world.init()
    try:
        assert topology.always_alone()
    finally:
        world.shutdown()
    assert not topology.always_alone()
