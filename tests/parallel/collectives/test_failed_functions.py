"""Functions inside a step that TensorFlow runs as executions of their own.

One failure in any of them is one failure of the step, whenever it comes: the ranks go on together
after it. With `_noinline` a function keeps its own rendezvous and step id.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf

import tfring as hvd
from tfring.ops import library
from tfring.runtime._native import core

# A limit against hangs, not a promised time.
LIMIT_SECONDS = 60.0

apart = tf.function(experimental_attributes={"_noinline": True})


def python(function: Callable[[], None], x: Any) -> Any:
    """An op that calls the function, and returns x."""

    def call(value: Any) -> Any:
        function()
        return value

    return tf.ensure_shape(tf.py_function(call, [x], tf.float32), x.shape)


def until(condition: Callable[[], bool]) -> None:
    """Blocks; what comes out of it is checked by the caller."""
    end = time.monotonic() + LIMIT_SECONDS
    while not condition() and time.monotonic() < end:
        time.sleep(0.005)


class Planted:
    """Raises on one rank when it is told to."""

    def __init__(self, on: int) -> None:
        self.here = hvd.rank() == on
        self.armed = False

    @property
    def now(self) -> bool:
        return self.here and self.armed

    def op(self, x: Any) -> Any:
        """An op that may fail."""
        return python(self._call, x)

    def _call(self) -> None:
        if self.now:
            raise ValueError("planted")


def total(x: Any, name: str) -> Any:
    return hvd.allreduce(x, op=hvd.Sum, name=f"apart.{name}")


def fails_once(step: Any, planted: Planted) -> None:
    """The step fails on every rank once, and then works."""
    size = hvd.size()
    x = tf.ones([2])
    works = step(x).numpy().tolist()
    before = core.attempt()
    for number in range(3):
        planted.armed = True
        with pytest.raises(tf.errors.OpError, match="planted"):
            step(x)
            assert not planted.here, "the step did not fail on its own rank"
            step(x)  # it failed after the last collective: the others' next step fails
        planted.armed = False
        # This rank calls nothing: it has to learn by itself that its step has failed.
        until(lambda n=number: core.attempt() >= before + n + 1)
        assert core.attempt() == before + number + 1
        for _ in range(2):
            assert step(x).numpy().tolist() == works
        attempts = [int(a) for a in hvd.allgather(tf.constant([core.attempt()]))]
        assert attempts == [before + number + 1] * size, number
    assert library.steps_in_flight() == 0


def test_a_function_with_the_last_collective(several: int) -> None:
    planted = Planted(several - 1)

    @apart
    def inner(x: Any) -> Any:
        return planted.op(total(x, "last"))

    @tf.function
    def step(x: Any) -> Any:
        return inner(x)

    fails_once(step, planted)


@pytest.mark.skipif(bool(library.xla_trouble()), reason="no compiled collectives here")
def test_a_compiled_function_after_a_failed_step(several: int) -> None:
    """It is part of no step, and so not of the one that has failed."""
    planted = Planted(0)

    @tf.function
    def step(x: Any) -> Any:
        return total(planted.op(total(x, "before")), "after")

    @tf.function(jit_compile=True)
    def compiled(x: Any) -> Any:
        return total(x, "compiled")

    x = tf.ones([2])
    assert compiled(x).numpy().tolist() == [several] * 2
    for _ in range(3):
        planted.armed = True
        with pytest.raises(tf.errors.OpError, match="planted"):
            step(x)
        planted.armed = False
        for _ in range(2):
            assert compiled(x).numpy().tolist() == [several] * 2


def test_a_function_that_begins_after_another_has_failed(several: int) -> None:
    """Two at once: one has failed, but not ended, when the other makes its first call."""
    planted = Planted(0)
    begun = threading.Event()
    attempt = [0]

    def failed() -> None:
        if planted.now:
            until(lambda: core.attempt() > attempt[0])

    def wait_for_second() -> None:
        if planted.now:
            assert begun.wait(LIMIT_SECONDS)

    @apart
    def first(x: Any) -> Any:
        return planted.op(total(x, "first")) + python(wait_for_second, x) * 0.0

    @apart
    def second(x: Any) -> Any:
        return total(python(begun.set, x), "second")

    @tf.function
    def step(x: Any) -> Any:
        return first(x) + second(python(failed, x))

    def counted(x: Any) -> Any:
        begun.clear()
        attempt[0] = core.attempt()
        return step(x)

    fails_once(counted, planted)


def test_the_cause_comes_after_the_cancellation(several: int) -> None:
    """A collective waits when a function beside it fails: TensorFlow cancels it first."""
    planted = Planted(0)

    def while_it_waits() -> None:
        if planted.now:
            time.sleep(0.2)
            raise ValueError("planted")

    @apart
    def inner(x: Any) -> Any:
        return python(while_it_waits, x)

    @tf.function
    def step(x: Any, name: str) -> Any:
        return total(x, name) + inner(x)

    x = tf.ones([2])
    for _ in range(3):
        assert step(x, "same").numpy().tolist() == [several + 1.0] * 2
        planted.armed = True
        with pytest.raises(tf.errors.OpError, match="planted"):
            step(x, f"of.{int(planted.here)}")  # the others do not call it
        planted.armed = False
    assert step(x, "same").numpy().tolist() == [several + 1.0] * 2
