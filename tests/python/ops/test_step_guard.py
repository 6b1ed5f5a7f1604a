"""Where guards are put, and that healthy steps leave nothing behind and log nothing."""

from __future__ import annotations

import pytest
from launcher_tools import run_python, write_script

pytest.importorskip("tfring.runtime._native")

SCRIPT = """
    import tensorflow as tf
    import tfring as hvd
    from tfring.ops import library

    hvd.init()

    def guards(function, *args):
        graph = function.get_concrete_function(*args).graph
        return [op.type for op in graph.get_operations()].count("TfringStepGuard")

    def total(x, name):
        return hvd.allreduce(x, op=hvd.Sum, name=name)

    @tf.function
    def several(x):
        return total(total(x, "a"), "b")

    @tf.function
    def in_loop(x):
        for _ in tf.range(3):
            x = total(x, "loop")
        return x

    @tf.function(jit_compile=True)
    def compiled(x):
        return total(x, "compiled")

    @tf.function(jit_compile=True)
    def compiled_part(x):
        return total(x, "compiled.part")

    @tf.function
    def around(x):
        return compiled_part(x)

    @tf.function
    def without(x):
        return x + 1.0

    @tf.function
    def around_traced(x):
        x = tf.ensure_shape(tf.py_function(lambda x: x, [x], tf.float32), [2])
        return compiled(x) + several(x)

    @tf.function
    def loop_around_traced(x):
        for _ in tf.range(3):
            if x[0] > 0.0:
                x = several(x)
        return x

    def starts_at_once(function, *args):
        operations = function.get_concrete_function(*args).graph.get_operations()
        return [not op.control_inputs for op in operations if op.type == "TfringStepGuard"]

    @tf.function
    def around_new(x):
        return tf.function(lambda v: total(v, "new"))(x)

    def guards_come_first(function, *args):
        operations = function.get_concrete_function(*args).graph.get_operations()
        calls = [op for op in operations if "Call" in op.type or "While" in op.type]
        return [
            "TfringStepGuard" in [before.type for before in op.control_inputs] for op in calls
        ]

    x = tf.ones([2])
    assert [guards(f, x) for f in (several, in_loop, compiled, around, without)] == [1, 1, 0, 1, 0]

    for _ in range(2000):
        several(x)
    for step in (in_loop, compiled, around):
        step(x)
    # Traced before, and called by others now.
    assert [starts_at_once(f, x) for f in (around_traced, loop_around_traced)] == [[True], [True]]
    # A function cannot fail before the step around it has begun.
    assert guards_come_first(around_traced, x) == [True, True]
    assert guards_come_first(around_new, x) == guards_come_first(loop_around_traced, x) == [True]
    for step in (around_traced, loop_around_traced):
        assert step(x)[0] >= 1.0
    assert total(x, "eager")[0] == 1.0
    data = tf.data.Dataset.range(3).map(lambda i: total(tf.cast(i, tf.float32), "mapped"))
    assert [float(i) for i in data] == [0.0, 1.0, 2.0]
    with tf.Graph().as_default():
        reduced = total(tf.ones([2]), "session")
        with tf.compat.v1.Session() as session:
            assert session.run(reduced).tolist() == [1.0, 1.0]
    assert library.steps_in_flight() == 0
"""


def test_guards_are_where_they_are_needed_and_leave_nothing(tmp_path):
    """One per function that is not compiled; TensorFlow logs no abort for steps that end well."""
    job = run_python(write_script(tmp_path, SCRIPT), TF_CPP_MIN_LOG_LEVEL="0")
    assert job.returncode == 0, job.stderr
    # TensorFlow itself says so at the end of a dataset.
    logged = [line for line in job.stderr.splitlines() if "endezvous" in line]
    assert [line for line in logged if "End of sequence" not in line] == []
