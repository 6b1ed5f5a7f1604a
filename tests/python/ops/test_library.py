"""The op library and what Python puts around it, with one rank."""

from __future__ import annotations

import json
import os
import pathlib
from collections.abc import Iterator
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import pytest
import tensorflow as tf

import tfring
from tfring.horovod import helpers
from tfring.ops import arguments, channels, library, names, topology_ops
from tfring.runtime import exceptions
from tfring.runtime._native import core


@pytest.fixture(autouse=True)
def job() -> Iterator[None]:
    tfring.init()
    yield
    tfring.shutdown()


def test_another_tensorflow_is_refused_before_loading(tmp_path: pathlib.Path) -> None:
    (tmp_path / library.BUILD_FILE).write_text(json.dumps({"tensorflow": "2.18.1"}))
    with pytest.raises(ImportError) as caught:
        library.check_tensorflow_version(library.built_for(tmp_path), tf.__version__)
    for part in ("it was built for 2.18", tf.__version__, "pip install"):
        assert part in str(caught.value)


def test_another_patch_release_is_accepted() -> None:
    library.check_tensorflow_version("2.21.0", "2.21.3")
    with pytest.raises(ImportError):
        library.check_tensorflow_version("2.21.0", "2.2.1")


def test_an_incomplete_build_is_explained(tmp_path: pathlib.Path) -> None:
    with pytest.raises(ImportError, match="incomplete"):
        library.built_for(tmp_path)
    (tmp_path / library.BUILD_FILE).write_text("{}")
    with pytest.raises(ImportError, match="incomplete"):
        library.built_for(tmp_path)


def test_calls_before_init_say_so() -> None:
    step = tf.function(lambda x: tfring.allreduce(x))
    step(tf.ones(2))
    variable = tf.Variable(1.0)
    tfring.shutdown()
    for call in (
        lambda: tfring.allreduce(1.0),
        lambda: tfring.grouped_allreduce([1.0]),
        lambda: tfring.allgather([1.0]),
        lambda: tfring.broadcast(1.0, 0),
        lambda: tfring.broadcast_([variable], 0),
        lambda: tfring.grouped_allgather([[1.0]]),
        lambda: tfring.alltoall([1.0]),
        lambda: tfring.reducescatter([1.0]),
        lambda: tfring.grouped_reducescatter([[1.0]]),
        lambda: tfring.reduce(1.0, 0),
        lambda: tfring.gather([1.0], 0),
        lambda: tfring.scatter([1.0], 0),
        lambda: tfring.send(1.0, 1),
        lambda: tfring.recv(1, tf.float32),
        lambda: tfring.join(),
        lambda: topology_ops.rank_op(),
        lambda: step(tf.ones(2)),
    ):
        with pytest.raises(tf.errors.FailedPreconditionError, match="init"):
            call()


def test_rank_and_size_are_not_baked_into_a_graph() -> None:
    step = tf.function(lambda: (topology_ops.rank_op(), topology_ops.size_op()))
    assert [int(value) for value in step()] == [0, 1]
    tfring.shutdown()
    with pytest.raises(tf.errors.FailedPreconditionError):
        step()
    tfring.init()
    assert [int(value) for value in step()] == [0, 1]


def test_sparse_tensors_know_sum_and_average_only() -> None:
    slices = tf.IndexedSlices(tf.ones([1, 2]), tf.constant([0]), tf.constant([3, 2]))
    for op in (tfring.Min, tfring.Max, tfring.Product, tfring.Adasum):
        with pytest.raises(NotImplementedError):
            tfring.allreduce(slices, op=op)
    for factor in ({"prescale_factor": 2.0}, {"postscale_factor": 2.0}):
        with pytest.raises(NotImplementedError, match="scale factors"):
            tfring.allreduce(slices, op=tfring.Sum, **factor)


def test_average_is_deprecated_but_works() -> None:
    with pytest.deprecated_call():
        assert float(tfring.allreduce(2.0, average=True)) == 2.0
    with pytest.deprecated_call():
        assert arguments.handle_average_backwards_compatibility(None, False) == tfring.Sum
    with pytest.raises(ValueError, match="not both"):
        tfring.allreduce(2.0, average=True, op=tfring.Sum)
    assert arguments.handle_average_backwards_compatibility(None, None) == tfring.Average


def names_in(function: Any, *args: Any) -> list[str]:
    """Names of the collectives in a new trace of the function, those of inner graphs included."""
    found = []
    graphs = [function.get_concrete_function(*args).graph]
    while graphs:
        graph = graphs.pop()
        for operation in graph.get_operations():
            if operation.type in channels.COLLECTIVES:
                found.append(operation.get_attr("tensor_name").decode())
            for branch in operation.node_def.attr.values():
                inner = graph._get_function(branch.func.name) if branch.func.name else None
                if inner is not None:
                    graphs.append(inner.graph)
    return sorted(found)


def test_a_retrace_gives_the_same_names() -> None:
    @tf.function
    def step(x: Any) -> Any:
        y = tfring.allreduce(x)
        for _ in tf.range(2):
            y = tfring.allreduce(y)
        if tf.reduce_sum(y) > 0:
            y = tfring.allreduce(y * 2)
        return tfring.broadcast(y, 0) + tfring.allreduce(y, name="mine")

    first, second = (names_in(step, tf.TensorSpec([n], tf.float32)) for n in (2, 3))
    assert first == second
    assert len(set(first)) == len(first) == 5
    assert "mine" in first and "step.broadcast.0" in first


def test_eager_names_are_bounded() -> None:
    found = [names.collective_name("test", None) for _ in range(2 * names.EAGER_NAMES)]
    assert found[: names.EAGER_NAMES] == found[names.EAGER_NAMES :]
    assert len(set(found)) == names.EAGER_NAMES


def test_name_scopes() -> None:
    with tf.name_scope("outer"):
        assert names.collective_name("allreduce", "x") == "outer/x"
        assert names.collective_name("allreduce", "x", ignore_name_scope=True) == "x"
    assert names.collective_name("allreduce", "x") == "x"
    with tf.Graph().as_default():
        assert names.collective_name("allreduce", None) == "graph.allreduce.0"
        assert names.collective_name("allreduce", None) == "graph.allreduce.1"
        assert names.collective_name("broadcast", None) == "graph.broadcast.0"


def test_process_sets_count_for_themselves() -> None:
    with tf.Graph().as_default():
        assert (
            names.collective_name("allreduce", None, process_set_id=3) == "graph.set3.allreduce.0"
        )
        assert names.collective_name("allreduce", None) == "graph.allreduce.0"
    first = names.collective_name("counted", None)
    assert names.collective_name("counted", None, process_set_id=3) == "eager.set3.counted.0"
    assert names.collective_name("counted", None) != first
    assert names.collective_name("counted", None, process_set_id=4) == "eager.set4.counted.0"
    with pytest.raises(ValueError, match="not registered"):
        tfring.allreduce(1.0, process_set=tfring.ProcessSet([0]))


def test_names_start_again_when_all_have_joined() -> None:
    assert names.collective_name("restarted", None) == "eager.restarted.0"
    assert names.collective_name("restarted", None) == "eager.restarted.1"
    assert tfring.join() == 0
    assert names.collective_name("restarted", None) == "eager.restarted.0"
    step = tf.function(lambda: tfring.join())
    assert int(step()) == 0
    assert names.collective_name("restarted", None) == "eager.restarted.0"


def test_broadcast_in_place_returns_the_variables() -> None:
    variables = [tf.Variable([1.0]), tf.Variable([2]), tf.Variable(3.0)]
    returned = tfring.broadcast_(variables, 0)
    assert all(a is b for a, b in zip(returned, variables, strict=True))
    assert tfring.broadcast_([], 0) == []
    with pytest.raises(TypeError, match="Variable"):
        tfring.broadcast_([tf.constant(1.0)], 0)


def test_splits_are_integers() -> None:
    with pytest.raises(TypeError, match="splits of rows has dtype float32"):
        tfring.alltoall([1.0], [1.0], name="rows")
    received, splits = tfring.alltoall([1.0], np.array([1], np.int64))
    assert splits.dtype == tf.int64 and int(splits[0]) == 1
    received, splits = tfring.alltoall([1.0], [1])
    assert splits.dtype == tf.int32
    np.testing.assert_array_equal(received, [1.0])


def test_horovods_small_functions() -> None:
    assert [n for n in range(10) if helpers.check_num_rank_power_of_2(n)] == [1, 2, 4, 8]
    assert helpers.split_list([1, 2, 3, 4, 5], 3) == [[1, 2], [3, 4], [5]]
    assert helpers.split_list([], 2) == [[], []]
    assert helpers.gpu_available("tensorflow") == bool(tf.config.list_physical_devices("GPU"))
    assert helpers.gpu_available("torch") is False


def test_one_channel_per_name() -> None:
    found: list[Any] = []

    @tf.function
    def trace() -> None:
        found.append(
            (
                channels.channel("a"),
                channels.channel("a"),
                channels.channel("b"),
                channels.channel("a", 1),
            )
        )

    trace()
    trace.get_concrete_function()
    a, again, b = found[0][:3]
    assert a is again and a is not b
    assert found[0][3] is not a  # the same name in a process set
    assert channels.channel("a") is channels.channel("b")  # eager calls share one


def test_errors_of_the_runtime_become_tf_errors() -> None:
    with pytest.raises(tf.errors.InvalidArgumentError, match="root rank 7"), exceptions.tf_errors():
        core.broadcast(np.ones(2), name="root", root=7)
    unknown = core.CoreError("what")
    unknown.code, unknown.message = 99, "what"
    assert isinstance(exceptions.to_tf_error(unknown), tf.errors.UnknownError)
