"""What reductions remember beyond one step: numbers for names, and which variables were reduced."""

from __future__ import annotations

from typing import Any

import keras
import pytest

from tfring import topology, world
from tfring.keras.checks import ReductionWatch
from tfring.training.ordinals import Ordinals
from tfring.training.reduction_record import ReductionRecord, reductions


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
    record.add()
    assert record.any_since(begin)
    assert not record.any_since(record.now())
    record.add_by_tape([mine.value], 3)
    assert record.any_by_tape_since([mine], 3, begin)
    assert not record.any_by_tape_since([mine], 0, begin)
    assert not record.any_by_tape_since([mine], 3, record.now())


class OwnTrainStep(keras.Sequential):
    def train_step(self, data: Any) -> Any:
        return {}


def test_a_watch_wants_a_reduction_in_the_first_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topology, "size", lambda: 2)
    monkeypatch.setattr(topology, "rank", lambda: 0)
    model = OwnTrainStep([keras.layers.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd")
    reductions.add()
    watch = ReductionWatch(model)
    with pytest.raises(RuntimeError, match="no gradient was reduced"):
        watch.after_first_batch()
    reductions.add()  # of anything: Keras does not know all variables that a model may hold
    watch.after_first_batch()
