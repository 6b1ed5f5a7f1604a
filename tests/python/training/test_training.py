"""What reductions remember beyond one step: numbers for names, and which variables were reduced."""

from __future__ import annotations

from typing import Any

import keras
import pytest
import tensorflow as tf

import tfring as hvd
from tfring import world
from tfring.training import graph_search
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


def test_a_search_visits_what_many_outputs_of_a_function_share_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The gradients of a large model all depend on the whole forward pass."""
    visited = []
    at_node = graph_search._at_node
    monkeypatch.setattr(
        graph_search, "_at_node", lambda *args: visited.append(args[1].name) or at_node(*args)
    )
    found: list[Any] = []

    @tf.function
    def inner(x: Any) -> Any:
        for _ in range(50):
            x = x + 1.0
        return [x * float(i) for i in range(50)]

    @tf.function
    def outer(x: Any) -> Any:
        outputs = inner(x)
        found.extend(graph_search.collectives_behind(outputs))
        return outputs

    outer.get_concrete_function(tf.constant(1.0))
    assert not found
    assert 100 <= len(visited) < 500


def test_where_a_rank_is_alone_its_gradients_are_only_reduced() -> None:
    """No weight is computed, and nothing but gradients is sent."""
    world.init()
    try:
        variable = tf.Variable([1.0, 2.0])

        @tf.function
        def step(rows: Any) -> Any:
            with hvd.DistributedGradientTape(tf.GradientTape(), weight_by=rows) as tape:
                loss = tf.reduce_sum(variable * variable)
            return tape.gradient(loss, variable)

        graph = step.get_concrete_function(tf.constant(3)).graph
        types = [op.type for op in graph.get_operations()]
        assert types.count("TfringAllreduce") == 1
        assert not {"MulNoNan", "LookupTableFindV2", "LookupTableInsertV2"} & set(types)
        [call] = [op for op in graph.get_operations() if op.type == "TfringAllreduce"]
        assert [value.shape for value in call.outputs] == [variable.shape]
        assert step(tf.constant(3)).numpy().tolist() == [2.0, 4.0]
    finally:
        world.shutdown()
