"""Objects and variables that travel between ranks."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfring as hvd

pytestmark = pytest.mark.any_ranks

OBJECTS = [None, 0, "text", b"", {"a": [1, 2.5, (None,)]}, list(range(10_000))]


@pytest.mark.parametrize("obj", OBJECTS, ids=lambda o: type(o).__name__)
def test_broadcast_object(obj: Any) -> None:
    root = hvd.size() - 1
    received = hvd.broadcast_object(obj if hvd.rank() == root else "not the root's", root)
    assert received == obj


def test_the_root_keeps_its_own_object() -> None:
    mine = {"rank": hvd.rank()}
    received = hvd.broadcast_object(mine, 0, name="own")
    assert received == {"rank": 0}
    assert (received is mine) == (hvd.rank() == 0)


def test_a_function_that_pickle_cannot_send() -> None:
    double = hvd.broadcast_object((lambda x: 2 * x) if hvd.rank() == 0 else None)
    assert double(21) == 42


def test_broadcast_object_fn() -> None:
    broadcast = hvd.broadcast_object_fn(root_rank=0, name="fn")
    assert [broadcast(hvd.rank() * 10 + i) for i in range(3)] == [0, 1, 2]


def test_allgather_object() -> None:
    gathered = hvd.allgather_object({"rank": hvd.rank(), "data": "x" * 1000 * hvd.rank()})
    assert [(g["rank"], len(g["data"])) for g in gathered] == [
        (r, 1000 * r) for r in range(hvd.size())
    ]


class Unpicklable:
    def __reduce__(self) -> Any:
        raise ValueError("this object stays here")


@pytest.mark.parametrize("together", [hvd.broadcast_object, hvd.allgather_object])
def test_an_object_that_cannot_be_sent_keeps_nobody_waiting(together: Any) -> None:
    mine = hvd.rank() == 0
    expected = pytest.raises(ValueError, match="stays here")
    if not mine:
        expected = pytest.raises(RuntimeError, match="rank 0 could not pickle")
    with expected:
        together(Unpicklable() if mine else "fine", name="unpicklable")
    together("fine", name="unpicklable")  # and the next one works


def test_a_session_is_not_needed_and_a_set_must_be_known() -> None:
    session = object()
    assert hvd.broadcast_object(hvd.rank(), session=session) == 0
    assert hvd.broadcast_object_fn(session=session)(hvd.rank()) == 0
    assert hvd.allgather_object(hvd.rank(), session=session) == list(range(hvd.size()))
    with pytest.raises(ValueError, match="not registered"):
        hvd.allgather_object(1, process_set=hvd.ProcessSet([0]))


def make_variables(r: int) -> list[Any]:
    """The variables of rank r, of each kind and dtype."""
    return [
        tf.Variable([1.0 + r, 2.0]),
        keras.Variable(np.full([2, 3], 5 + r, "int32"), dtype="int32"),
        tf.Variable(r == 0),
        tf.Variable(tf.cast([r, 4_000_000_000 - r], tf.uint32)),
        tf.Variable(tf.complex(1.0, float(r))),
        tf.Variable(tf.cast(r + 0.5, tf.bfloat16)),
        keras.Variable(np.float16(r), dtype="float16"),
        tf.Variable(tf.zeros([0, 4])),
        tf.Variable(float(r), dtype=tf.float64),
    ]


@pytest.mark.parametrize("in_function", [False, True])
def test_broadcast_variables(in_function: bool) -> None:
    root = hvd.size() - 1
    variables, expected = make_variables(hvd.rank()), make_variables(root)

    def broadcast() -> None:
        hvd.broadcast_variables(variables, root_rank=root)

    (tf.function(broadcast) if in_function else broadcast)()
    for variable, right in zip(variables, expected, strict=True):
        assert variable.dtype == right.dtype
        np.testing.assert_array_equal(variable.numpy(), right.numpy())


def test_variables_that_differ_are_an_error_on_every_rank() -> None:
    if hvd.size() == 1:
        pytest.skip("needs two ranks")
    variable = tf.Variable(tf.zeros([2 + min(hvd.rank(), 1)]))
    with pytest.raises(tf.errors.FailedPreconditionError, match="shape"):
        hvd.broadcast_variables([variable], root_rank=0)
    hvd.broadcast_variables([tf.Variable([1.0])], root_rank=0)


def test_what_is_no_variable_is_refused() -> None:
    with pytest.raises(TypeError, match="Variable"):
        hvd.broadcast_variables([tf.constant(1.0)], root_rank=0)
    hvd.broadcast_variables([], root_rank=0)
