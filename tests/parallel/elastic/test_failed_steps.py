"""Tells the rank whose step failed from the ranks that only got its error, for recovery."""

from __future__ import annotations

import pytest
import tensorflow as tf

import tfring as hvd
from tfring.elastic.recovery import _failed_steps
from tfring.runtime._native import core


def counted(before: tuple[int, int]) -> tuple[int, int]:
    here, elsewhere = _failed_steps()
    return here - before[0], elsewhere - before[1]


@tf.function
def train_step(fails: tf.Tensor) -> tf.Tensor:
    with tf.control_dependencies([tf.debugging.Assert(not fails, ["asked to fail"])]):
        return hvd.allreduce(tf.ones([2]), op=hvd.Sum, name="of a step")


def test_a_step_that_fails_on_one_rank(rank: int, several: int) -> None:
    before = _failed_steps()
    failing = several - 1
    with pytest.raises(tf.errors.OpError):
        train_step(tf.constant(rank == failing))
    assert counted(before) == ((1, 0) if rank == failing else (0, 1))
    # The next step works, and counts nothing.
    assert train_step(tf.constant(False)).numpy().tolist() == [several, several]
    assert counted(before) == ((1, 0) if rank == failing else (0, 1))
    assert core.generation_state().phase.name == "up"


def test_a_block_of_python_that_fails_on_one_rank(rank: int, several: int) -> None:
    before = _failed_steps()
    expected = ValueError if rank == 0 else tf.errors.AbortedError
    with pytest.raises(expected), hvd.step():
        if rank == 0:
            raise ValueError("mine")
        hvd.allreduce(tf.ones([2]), name="of a block")
    assert counted(before) == ((1, 0) if rank == 0 else (0, 1))


def test_ranks_that_disagree(rank: int, several: int) -> None:
    """No rank is to blame: all have the error of rank 0's answer."""
    before = _failed_steps()

    @tf.function
    def disagree(value: tf.Tensor) -> tf.Tensor:
        return hvd.allreduce(value, name="of no agreement")

    with pytest.raises(tf.errors.OpError):
        disagree(tf.ones([2 + rank]))
    here, elsewhere = counted(before)
    assert here == 0 and elsewhere <= 1
