"""Elastic states and elastic.run in a job whose ranks stay, at any number of ranks."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfring as hvd
from tfring.data import DataCursor
from tfring.elastic.state import sync


def broadcast_from_rank_0(value: Any) -> Any:
    return hvd.broadcast_object(value)


def same_everywhere(value: Any) -> bool:
    return all(other == value for other in hvd.allgather_object(value))


@pytest.mark.any_ranks
def test_all_ranks_get_rank_0s_state_first(rank: int) -> None:
    state: Any = hvd.elastic.ObjectState(hvd.broadcast_object, hvd.rank, name=f"of {rank}", n=rank)
    state.sync()
    assert (state.name, state.n) == ("of 0", 0)
    state.n = -1
    state.restore()
    assert state.n == 0  # what came was saved


@pytest.mark.any_ranks
def test_the_state_with_the_most_commits_is_taken(rank: int, size: int) -> None:
    """As after a failure that some ranks have noticed one commit later than others."""
    variable = tf.Variable([float(rank)])
    state: Any = hvd.elastic.TensorFlowState([variable], step=0)
    sync(state)
    assert variable.numpy().tolist() == [0.0]
    last = size - 1
    if rank == last:  # without check_host_updates, which the others do not call
        state.step = 1
        variable.assign([7.0])
        state._commit_here()
    else:
        state.step = 100
        variable.assign([100.0])
        state.restore()
    sync(state)
    assert state.step == 1 and variable.numpy().tolist() == [7.0]
    variable.assign([8.0])
    state.restore()
    assert variable.numpy().tolist() == [7.0]


@pytest.mark.any_ranks
def test_equal_states_are_not_sent(rank: int, size: int) -> None:
    variable = tf.Variable([1.0])
    state: Any = hvd.elastic.TensorFlowState([variable], step=0)
    sync(state)
    state.commit()
    sent: list[int] = []
    state._send = sent.append
    sync(state)
    assert sent == []


@pytest.mark.any_ranks
def test_a_function_that_sends_from_rank_0_only(rank: int, size: int) -> None:
    state: Any = hvd.elastic.ObjectState(broadcast_from_rank_0, hvd.rank, n=rank)
    sync(state)
    if rank == size - 1:
        state.n = 5
        state._commit_here()
    sync(state)
    assert same_everywhere((state.n, state._progress.commit))
    assert state.n == (5 if size == 1 else 0)


def test_an_attribute_that_cannot_be_sent_is_named(rank: int, size: int) -> None:
    """On the rank that was to send it; the others say which rank that is."""
    feed = (number for number in range(3))
    state: Any = hvd.elastic.ObjectState(hvd.broadcast_object, hvd.rank, batch=0, feed=feed)
    wanted = "rank 0: 'feed' is a generator, which cannot be sent to other ranks"
    with pytest.raises(
        TypeError if rank == 0 else RuntimeError,
        match=wanted if rank == 0 else "rank 0 could not pickle",
    ):
        sync(state)


@pytest.mark.any_ranks
def test_a_change_that_one_rank_hears_of_interrupts_all(rank: int, size: int) -> None:
    state: Any = hvd.elastic.ObjectState(hvd.broadcast_object, hvd.rank, batch=0)
    sync(state)
    if rank == size - 1:
        state.on_hosts_updated(1.0, 1)
    if rank == 0:
        state.on_hosts_updated(2.0, 2)
    with pytest.raises(hvd.elastic.HostsUpdatedInterrupt) as caught:
        state.commit()
    assert not caught.value.skip_sync
    state.commit()
    assert same_everywhere(state._progress.commit)


@pytest.mark.any_ranks
def test_cursors_go_to_where_the_farthest_is(rank: int, size: int) -> None:
    cursor = DataCursor(8 * size, size, seed=1)
    state: Any = hvd.elastic.ObjectState(hvd.broadcast_object, hvd.rank, cursor=cursor)
    sync(state)
    cursor.begin()
    cursor.commit(2)
    state.commit()
    sync(state)
    assert state.cursor is cursor
    assert cursor.consumed == 2 * size


def test_states_of_different_parts_are_refused(rank: int, several: int) -> None:
    shape = [2 + (rank == several - 1)]
    state = hvd.elastic.TensorFlowState([tf.Variable(tf.zeros(shape))])
    text = rf"rank {rank}: .* rank 0 has variable 0: float32 \(2,\) where rank {several - 1} has"
    with pytest.raises(ValueError, match=text):
        state.sync()


def test_training_is_that_without_elastic(rank: int, size: int) -> None:
    """Goes back to a commit twice, by exceptions of the program, and ends with the same weights."""
    steps, calls = 6, []

    def model_and_step() -> Any:
        keras.utils.set_random_seed(3 + rank)
        model = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(2)])
        optimizer = keras.optimizers.Adam(0.1)
        optimizer.build(model.trainable_variables)
        model.optimizer = optimizer

        @tf.function
        def train_step(x: Any) -> None:
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(model(x) ** 2)
            tape = hvd.DistributedGradientTape(tape)
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

        return model, train_step

    def batch(step: int) -> Any:
        return tf.constant(np.random.default_rng([step, rank]).normal(size=(4, 3)), tf.float32)

    plain, step_of_plain = model_and_step()
    hvd.broadcast_variables(plain.weights, root_rank=0)
    for step in range(steps):
        step_of_plain(batch(step))

    model, train_step = model_and_step()
    state: Any = hvd.elastic.TensorFlowKerasState(model, step=0)
    failures = [hvd.elastic.HorovodInternalError, hvd.elastic.HostsUpdatedInterrupt]

    @hvd.elastic.run
    def train(given: Any) -> str:
        calls.append(given.step)
        while given.step < steps:
            train_step(batch(given.step))
            given.step += 1
            if given.step == 3 and failures:
                raise failures.pop(0)()
            if given.step % 2 == 0:
                given.commit()
        return "through"

    assert train(state) == "through"
    # Back to the commit after the first failure; after the second it goes on as it is.
    assert calls == [0, 2, 3]
    for mine, theirs in zip(model.weights, plain.weights, strict=True):
        np.testing.assert_allclose(mine.value.numpy(), theirs.value.numpy(), rtol=1e-6)


def test_an_exception_of_the_program_leaves(rank: int) -> None:
    state = hvd.elastic.ObjectState(hvd.broadcast_object, hvd.rank)

    @hvd.elastic.run
    def train(given: Any) -> None:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        train(state)
