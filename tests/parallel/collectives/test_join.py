"""Ranks that run out of data: join, and what the others can do meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tfring

pytestmark = pytest.mark.any_ranks

BATCHES = (7, 5, 3, 4)

both = pytest.mark.parametrize("in_graph", [False, True])


def run(call: Callable[..., Any], in_graph: bool) -> Callable[..., Any]:
    return tf.function(call) if in_graph else call


def taking_part(batch: int, size: int) -> list[int]:
    return [rank for rank in range(size) if BATCHES[rank % 4] > batch]


@both
def test_an_epoch_of_unequal_lengths(in_graph: bool, rank: int, size: int) -> None:
    """The average, dense or sparse, counts only the ranks that have a batch."""

    def step(x: Any) -> Any:
        slices = tf.IndexedSlices(tf.expand_dims(x, 0), tf.constant([0]), tf.constant([1, 2]))
        return [
            tfring.allreduce(x),
            tfring.allreduce(x, op=tfring.Max),
            tfring.allgather(x[:1]),
            tf.convert_to_tensor(tfring.allreduce(slices))[0],
            tfring.grouped_allreduce([x, x * 2], op=tfring.Sum)[1],
        ]

    call = run(step, in_graph)
    for batch in range(BATCHES[rank % 4]):
        present = taking_part(batch, size)
        mean, most, gathered, sparse, double = call(tf.fill([2], float(rank)))
        np.testing.assert_allclose(mean, np.mean(present), rtol=1e-6)
        np.testing.assert_array_equal(most, max(present))
        np.testing.assert_array_equal(gathered, present)
        np.testing.assert_allclose(sparse, np.mean(present), rtol=1e-6)
        np.testing.assert_array_equal(double, 2 * sum(present))
    last = int(run(tfring.join, in_graph)())
    assert 0 <= last < size
    assert tfring.allgather([last]).numpy().tolist() == [last] * size
    # Default names count from zero again, on all ranks.
    np.testing.assert_array_equal(tfring.allgather([rank]), np.arange(size))


@both
def test_rooted_collectives_among_those_who_are_left(
    in_graph: bool, rank: int, several: int
) -> None:
    """Reduce, gather, broadcast and barrier work as long as the root has not joined."""

    def step(x: Any) -> Any:
        return [
            tfring.reduce(x, 0, op=tfring.Average),
            tfring.gather(x, 0),
            tfring.broadcast(x, 0),
        ]

    if rank != several - 1:
        reduced, gathered, value = run(step, in_graph)(tf.constant([float(rank)]))
        others = list(range(several - 1))
        np.testing.assert_allclose(reduced, np.mean(others) if rank == 0 else 0.0, rtol=1e-6)
        np.testing.assert_array_equal(gathered, others if rank == 0 else [])
        np.testing.assert_array_equal(value, 0.0)
        tfring.barrier()
    tfring.join()
    np.testing.assert_array_equal(tfring.allgather([rank]), np.arange(several))


NEED_EVERYBODY: dict[str, Callable[[int], Any]] = {
    "alltoall": lambda size: tfring.alltoall(tf.ones(size)),
    "reducescatter": lambda size: tfring.reducescatter(tf.ones(size)),
    "grouped_reducescatter": lambda size: tfring.grouped_reducescatter([tf.ones(size)]),
    "scatter": lambda size: tfring.scatter(tf.ones(size), 0),
    "send": lambda size: tfring.send(1.0, size - 1),
    "recv": lambda size: tfring.recv(size - 1, tf.float32),
    "broadcast": lambda size: tfring.broadcast(1.0, size - 1),
    "reduce": lambda size: tfring.reduce(1.0, size - 1),
    "gather": lambda size: tfring.gather([1.0], size - 1),
}


@pytest.mark.parametrize("case", NEED_EVERYBODY)
def test_what_needs_a_rank_that_has_joined(case: str, rank: int, several: int) -> None:
    if rank != several - 1:
        with pytest.raises(tf.errors.FailedPreconditionError, match="joined"):
            NEED_EVERYBODY[case](several)
    tfring.join()
    np.testing.assert_array_equal(tfring.alltoall(tf.range(several)), [rank] * several)


def test_joining_a_process_set(rank: int, several: int) -> None:
    """A join in a set changes nothing for the global set and for ranks outside the set."""
    members = tfring.add_process_set([0, several - 1]) if several > 2 else tfring.global_process_set
    if rank in (0, several - 1):
        if rank == 0:
            got = tfring.allreduce(3.0, process_set=members)
            np.testing.assert_array_equal(got, 3.0)
        last = tfring.join(members)
        assert last in (0, several - 1)
        got = tfring.allreduce(float(rank), op=tfring.Max, process_set=members)
        np.testing.assert_array_equal(got, several - 1)
    np.testing.assert_array_equal(tfring.allgather([rank]), np.arange(several))
    if several > 2:
        tfring.remove_process_set(members)
