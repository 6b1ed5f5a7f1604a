"""Steps with collectives that fail where a test wants it, and what each rank then gets."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import tensorflow as tf

import tfring as hvd

BUCKETS = 4
NEVER = -1
KINDS = ("not a number", "exception", "no memory", "Ctrl-C")
MODES = ("eager", "function", "jit")
# TensorFlow waits this long for memory before an op fails; its allocator without oneDNN does not.
MEMORY_SECONDS = 0.0 if os.environ.get("TF_ENABLE_ONEDNN_OPTS") == "0" else 10.0

# Times of the failures on this rank, by time.monotonic(), which the processes of a host share.
happened: list[float] = []


def now_fails(x: Any) -> Any:
    """Notes the time when the graph gets here."""

    def note(value: Any) -> Any:
        happened.append(time.monotonic())
        return value

    return tf.ensure_shape(tf.numpy_function(note, [x], tf.float32), x.shape)


def fail_numerics(x: Any) -> Any:
    """An op finds a NaN."""
    return tf.debugging.check_numerics(now_fails(x) / 0.0, "planted")


def fail_python(x: Any) -> Any:
    """A tf.py_function raises."""

    def planted(_: Any) -> Any:
        raise ValueError("planted")

    return tf.ensure_shape(tf.py_function(planted, [now_fails(x)], tf.float32), x.shape)


def fail_memory(x: Any) -> Any:
    """An op cannot allocate its output."""
    rows = tf.cast(tf.minimum(tf.reduce_sum(now_fails(x)), 0.0), tf.int64) + (1 << 45)
    return x + tf.reduce_max(tf.random.uniform([rows]))


def interrupt(x: Any) -> Any:
    """Ctrl-C arrives while the op runs; the op goes on."""

    def press(value: Any) -> Any:
        happened.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGINT)
        return value

    if tf.executing_eagerly():
        return press(x)  # in an op, TensorFlow would make another error of KeyboardInterrupt
    return tf.ensure_shape(tf.numpy_function(press, [x], tf.float32), x.shape)


FAILURES = (fail_numerics, fail_python, fail_memory, interrupt)


def maybe_fail(x: Any, here: int, at: Any, kind: Any) -> Any:
    """Fails as `kind` says if `at` is this point of the step."""
    return tf.cond(
        tf.equal(at, here),
        lambda: tf.switch_case(kind, [lambda f=f: f(x) for f in FAILURES]),
        lambda: x,
    )


def busy(x: Any, amount: Any) -> Any:
    """Takes time that no graph optimizer removes, and adds nothing."""
    matrix = tf.fill([32, 32], tf.reduce_sum(x) * 0.0)
    for _ in tf.range(amount):
        matrix = tf.linalg.matmul(matrix, matrix)
    return x + matrix[0, 0]


@tf.function
def function_step(x: Any, at: Any, kind: Any, amounts: Any) -> Any:
    """Buckets that get ready in a different order on each rank."""
    sums = [
        hvd.allreduce(
            maybe_fail(busy(x * (i + 1.0), amounts[i]), i, at, kind), op=hvd.Sum, name=f"fs.{i}"
        )
        for i in range(BUCKETS)
    ]
    return maybe_fail(tf.add_n(sums), BUCKETS, at, kind)


@tf.function(jit_compile=True)
def compiled_pair(x: Any, name: str) -> Any:
    """Two collectives in one program."""
    first = hvd.allreduce(x, op=hvd.Sum, name=f"fs.{name}.0")
    return first + hvd.allreduce(x * 2.0, op=hvd.Sum, name=f"fs.{name}.1")


@tf.function
def jit_step(x: Any, at: Any, kind: Any, amounts: Any) -> Any:
    """Compiled parts, and ops around and beside them that can fail."""
    first = compiled_pair(maybe_fail(busy(x, amounts[0]), 0, at, kind), "first")
    beside = maybe_fail(busy(x, amounts[1]), 1, at, kind)
    second = compiled_pair(maybe_fail(busy(x, amounts[2]), 2, at, kind), "second")
    total = tf.where(tf.reduce_sum(first) < 0.0, first, second)
    total = maybe_fail(total, 3, at, kind) + tf.reduce_sum(tf.minimum(beside, 0.0))
    return maybe_fail(total, BUCKETS, at, kind)


def eager_step(x: Any, at: int, kind: int, _: Any) -> Any:
    """The same in eager mode, where a block marks the step."""
    total = tf.zeros_like(x)
    with hvd.step():
        for i in range(BUCKETS + 1):
            if at == i:
                FAILURES[kind](x)
            if i < BUCKETS:
                total += hvd.allreduce(x * (i + 1.0), op=hvd.Sum, name=f"fs.eager.{i}")
    return total


def run_step(mode: str, x: Any, at: int, kind: int, amounts: list[int]) -> Any:
    """Runs one step; returns its result."""
    if mode == "eager":
        return eager_step(x, at, kind, amounts)
    made = {"function": function_step, "jit": jit_step}[mode]
    return made(x, tf.constant(at), tf.constant(kind), tf.constant(amounts))


def expected(mode: str, values: list[float]) -> float:
    """The result of a step, from the inputs of all ranks."""
    return sum(values) * (3.0 if mode == "jit" else 10.0)
