"""Where a collective says that it was called, and which threads may call without a name."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import pytest
import tensorflow as tf

import tfring
from tfring.ops import names
from tfring.runtime import _native

THIS = Path(__file__).name


@pytest.fixture(autouse=True)
def job() -> Iterator[None]:
    tfring.init()
    yield
    tfring.shutdown()


def line_of(mark: str) -> str:
    """The line of this file that ends with a comment of this text."""
    lines = Path(__file__).read_text().splitlines()
    return f"{THIS}:{next(i for i, line in enumerate(lines, 1) if line.endswith(f'# {mark}'))}"


def sites(graph: Any) -> list[str]:
    """The call sites of the collectives of a graph and of the functions that it calls."""
    definition = graph.as_graph_def()
    nodes = [*definition.node, *(n for f in definition.library.function for n in f.node_def)]
    return sorted(n.attr["call_site"].s.decode() for n in nodes if "call_site" in n.attr)


@pytest.mark.parametrize("jit", [False, True])
def test_a_traced_op_knows_its_line_also_where_autograph_wrote_it_anew(jit: bool) -> None:
    @tf.function(jit_compile=jit)
    def step(x: Any) -> Any:
        if tf.reduce_sum(x) > 0.0:
            x = tfring.allreduce(x)  # in a condition
        return tfring.allreduce(x)  # after it

    graph = step.get_concrete_function(tf.TensorSpec([2])).graph
    assert sites(graph) == sorted([line_of("in a condition"), line_of("after it")])


def test_an_eager_call_knows_its_line_also_where_autograph_wrote_it_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[str] = []
    told = _native.core.set_call_site

    def record(site: str, unnamed: bool) -> None:
        seen.append(site)
        told(site, unnamed)

    monkeypatch.setattr(_native.core, "set_call_site", record)

    def squared(x: Any) -> Any:
        return tfring.allreduce(x * x)  # in a map

    tf.map_fn(squared, tf.ones([2]))
    assert seen == [line_of("in a map")] * 2


def test_a_gradient_has_the_line_that_asked_for_it() -> None:
    @tf.function(autograph=False)
    def step(x: Any) -> Any:
        with tfring.DistributedGradientTape(tf.GradientTape()) as tape:
            tape.watch(x)
            y = x * x
        return tape.gradient(y, x)  # the gradient

    graph = step.get_concrete_function(tf.TensorSpec([2])).graph
    assert set(sites(graph)) == {line_of("the gradient")}


def test_an_eager_op_leaves_its_line_with_the_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """An attribute would make TensorFlow keep a kernel for each line."""
    left: list[tuple[str, bool]] = []
    with monkeypatch.context() as patch:
        patch.setattr(
            _native.core, "set_call_site", lambda line, unnamed: left.append((line, unnamed))
        )
        tfring.allreduce(2.0)  # an eager op
        tfring.allreduce(2.0, name="mine")  # with a name
    assert left == [(line_of("an eager op"), True), (line_of("with a name"), False)]
    assert float(tfring.allreduce(2.0)) == 2.0


@pytest.mark.parametrize(
    "name,expected",
    [
        ("eager.allreduce.3", True),
        ("eager.set2.grouped_allreduce.15.float64", True),
        ("eager.loss", False),
        ("step.allreduce.0", False),
        ("loss", False),
    ],
)
def test_default_names_of_eager_mode(name: str, expected: bool) -> None:
    assert names.is_default(name) == expected


def in_thread(call: Callable[[], Any], name: str) -> Any:
    """Runs the call in a thread of this name to its end; returns its result or its error."""
    result: list[Any] = []

    def body() -> None:
        try:
            result.append(call())
        except Exception as error:
            result.append(error)

    thread = threading.Thread(target=body, name=name)
    thread.start()
    thread.join(60)
    return result[0]


def test_calls_without_a_name_come_from_one_thread() -> None:
    calls: list[Callable[[], Any]] = [
        lambda: tfring.allreduce(1.0),
        lambda: tfring.grouped_allreduce([1.0]),
        lambda: tfring.allgather([1.0]),
        lambda: tfring.broadcast_object("x"),
        lambda: tfring.allgather_object("x"),
    ]
    for call in calls:
        assert not isinstance(in_thread(call, "first"), Exception)  # and has ended
    tfring.allreduce(1.0)
    for call in calls:
        error = in_thread(call, "second")
        assert isinstance(error, tf.errors.FailedPreconditionError)
        for part in ("'second'", "'MainThread'", "name='...'"):
            assert part in str(error)
    assert float(in_thread(lambda: tfring.allreduce(2.0, name="mine"), "second")) == 2.0
    assert in_thread(lambda: tfring.broadcast_object("x", name="mine"), "second") == "x"
    step = tf.function(lambda: tfring.allreduce(2.0))  # names of its own
    assert float(in_thread(step, "second")) == 2.0
    tfring.shutdown()
    tfring.init()
    assert float(in_thread(lambda: tfring.allreduce(2.0), "second")) == 2.0


def test_functions_that_tensorflow_runs_on_its_own_threads_may_call_without_a_name() -> None:
    @tf.function
    def step(x: Any) -> Any:
        return tf.py_function(lambda y: tfring.allreduce(y), [x], tf.float32)

    for _ in range(8):
        tfring.allreduce(1.0)
        assert float(step(tf.constant(3.0))) == 3.0
