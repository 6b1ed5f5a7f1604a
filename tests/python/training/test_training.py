"""What reductions remember beyond one step: numbers for names, and which variables were reduced."""

from __future__ import annotations

from typing import Any

import keras
import pytest
import tensorflow as tf

from tfring import process_sets, topology
from tfring.keras.checks import ReductionWatch
from tfring.training.ordinals import Ordinals
from tfring.training.reduction_record import ReductionRecord, reductions


def test_ordinals_count_first_uses_by_group_and_generation(monkeypatch: pytest.MonkeyPatch) -> None:
    ordinals = Ordinals()
    assert [ordinals.number(key) for key in "abab"] == [0, 1, 0, 1]
    assert ordinals.number("b", group=1) == 0
    assert ordinals.number("c") == 2
    monkeypatch.setattr(process_sets, "generation", lambda: -1)
    assert [ordinals.number(key) for key in "cb"] == [0, 1]
    assert ordinals.number("c", group=1) == 0


def test_a_record_knows_variables_times_and_process_sets() -> None:
    record = ReductionRecord()
    mine, other, begin = keras.Variable([1.0]), tf.Variable([1.0]), record.now()
    record.add([other, tf.constant([1.0])])
    assert record.any_since([mine, other], begin)
    assert not record.any_since([mine], begin)
    assert not record.any_since([other], record.now())
    record.add_by_tape([mine.value], 3)
    assert record.any_by_tape_since([mine], 3, begin)
    assert not record.any_by_tape_since([mine], 0, begin)
    assert not record.any_by_tape_since([mine], 3, record.now())


class OwnTrainStep(keras.Sequential):
    def train_step(self, data: Any) -> Any:
        return {}


def test_what_another_model_reduces_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topology, "size", lambda: 2)
    monkeypatch.setattr(topology, "rank", lambda: 0)
    model = OwnTrainStep([keras.layers.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd")
    reductions.add(model.trainable_variables)
    watch = ReductionWatch(model)
    reductions.add([tf.Variable([1.0])])
    with pytest.raises(RuntimeError, match="no gradient was reduced"):
        watch.after_first_batch()
    reductions.add(model.trainable_variables[:1])
    watch.after_first_batch()
