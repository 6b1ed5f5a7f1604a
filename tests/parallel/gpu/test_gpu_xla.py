"""Collectives in functions that XLA compiles for the GPU: values, places, order, errors, training.

On the fake the kernels of XLA compute nothing, so tensors come from the host, through functions
that only pass them on.
"""

from __future__ import annotations

import os
import re
import time
from concurrent import futures
from typing import Any

import fake_cuda
import keras
import numpy as np
import pytest
import tensorflow as tf

import tfring
import tfring.keras as hvd
from tfring.ops import builders
from tfring.runtime._native import core
from tfring.training.accumulation import LocalGradientAggregationHelper
from tfring.training.options import ReduceOptions
from tfring.training.reducer import GradientReducer

GPUS = tf.config.list_physical_devices("GPU")
pytestmark = pytest.mark.skipif(not GPUS, reason="TensorFlow sees no GPU; see tests/gpu")
NCCL = os.environ.get("TFRING_GPU_OPERATIONS") == "nccl"
ON_FAKE = "FAKE_CUDA_UUID" in os.environ


def on_gpu(array: Any) -> Any:
    with tf.device("CPU:0"):
        host = tf.constant(array)
    with tf.device("GPU:0"):
        return tf.identity(host)


def compiled(function: Any) -> Any:
    return tf.function(function, jit_compile=True)


def counted(name: str) -> int:
    """What the fake driver counts."""
    return fake_cuda.count(name) if ON_FAKE else 0


def copies() -> int:
    return counted("d2h_copies") + counted("h2d_copies")


def test_values_stay_on_the_gpu(rank: int, size: int) -> None:
    @compiled
    def step(x: Any) -> Any:
        total = hvd.allreduce(x, op=hvd.Sum, name="gpu.xla.sum")
        rows = hvd.allgather(x, name="gpu.xla.rows")
        return total, rows, hvd.broadcast(x, size - 1, name="gpu.xla.last")

    x = np.arange(1000, dtype="float32") + rank
    everybody = [np.arange(1000, dtype="float32") + r for r in range(size)]
    for _ in range(3):
        total, rows, last = step(on_gpu(x))
        assert total.backing_device.endswith("GPU:0")
        np.testing.assert_array_equal(total.numpy(), sum(everybody))
        np.testing.assert_array_equal(rows.numpy(), np.concatenate(everybody))
        np.testing.assert_array_equal(last.numpy(), everybody[-1])


def test_integers_scalars_and_rank_and_size(rank: int, size: int) -> None:
    @compiled
    def step(x: Any, scalar: Any) -> Any:
        group = hvd.grouped_allreduce([x, scalar], op=hvd.Sum, name="gpu.xla.odd")
        return *group, tfring.rank_op(), tfring.size_op()

    x, scalar = on_gpu(np.array([1, 2], "int32")), on_gpu(np.float32(rank))
    total, ranks, its_rank, its_size = step(x, scalar)
    np.testing.assert_array_equal(total.numpy(), [size, 2 * size])
    assert float(ranks) == size * (size - 1) / 2
    assert (int(its_rank), int(its_size)) == (rank, size)


def test_compiled_for_the_cpu_on_a_machine_with_a_gpu(size: int) -> None:
    @compiled
    def step(x: Any) -> Any:
        return hvd.allreduce(x, op=hvd.Sum, name="gpu.xla.cpu")

    with tf.device("CPU:0"):
        result = step(tf.ones(3) * 2)
    assert result.backing_device.endswith("CPU:0")
    np.testing.assert_array_equal(result.numpy(), np.full(3, 2.0 * size))


def reduced_in_buckets(count: int, name: str) -> Any:
    """A compiled function that reduces tensors as gradients, each in a bucket of its own."""
    reducer = GradientReducer(ReduceOptions(op=hvd.Sum, groups=count))

    @compiled
    def step(*xs: Any) -> Any:
        return reducer.reduce(list(xs), list(xs), name=name)

    return step


@pytest.mark.skipif(not ON_FAKE, reason="counts what the fake driver counts")
def test_buckets_are_begun_before_the_first_is_waited_for(rank: int, size: int) -> None:
    step = reduced_in_buckets(4, "gpu.xla.pairs")
    xs = [on_gpu(np.full(100 * (i + 1), rank + i, "float32")) for i in range(4)]
    results = step(*xs)
    before = copies()
    for _ in range(3):
        results = step(*xs)
    hvd.barrier()
    made = copies() - before
    assert made == 0 if NCCL else made >= 12
    for i, result in enumerate(results):
        expected = sum(r + i for r in range(size))
        np.testing.assert_array_equal(result.numpy(), np.full(100 * (i + 1), expected, "float32"))
    ir = step.experimental_get_compiler_ir(*xs)(stage="optimized_hlo", platform_name="GPU")
    calls = re.findall(r'custom_call_target="tfring_(\w+)"', ir)
    assert calls == ["start"] * 4 + ["done"] * 4


@pytest.mark.skipif(not (NCCL and ON_FAKE), reason="holds the streams of the fake driver")
def test_the_host_does_not_wait_for_the_gpu(several: int) -> None:
    """While the streams start nothing, two steps are put on them; the results are right."""
    step = reduced_in_buckets(2, "gpu.xla.held")
    x, y = (on_gpu(np.full(100, value, "float32")) for value in (1, 2))
    step(x, y)  # compiles, and makes the communicator
    fake_cuda.set_value("hold", 1)
    try:
        results = [step(x, y), step(y, x)]
    finally:
        fake_cuda.set_value("hold", 0)
    for first, second in (results[0], results[1][::-1]):
        np.testing.assert_array_equal(first.numpy(), np.full(100, several, "float32"))
        np.testing.assert_array_equal(second.numpy(), np.full(100, 2 * several, "float32"))


def places_of_waits(log: str) -> tuple[list[int], int]:
    """Before which of a stream's kernels it waits, and how many it has: of the one with most."""
    work = re.findall(r"(launch|cuStreamWaitEvent)\b.* on stream (\w+)", log)
    launches = [stream for what, stream in work if what == "launch"]
    busiest = max(set(launches), key=launches.count)
    places, kernels = [], 0
    for what, stream in work:
        if stream == busiest and what == "launch":
            kernels += 1
        elif stream == busiest:
            places.append(kernels)
    return places, kernels


@pytest.mark.skipif(not ON_FAKE, reason="reads the log of the fake driver")
def test_the_backward_pass_runs_beside_the_collectives(several: int, capfd: Any) -> None:
    """XLA's stream waits for a bucket where its weights are updated, not where it was started."""
    layers, width, buckets = 24, 64, 3
    with tf.device("GPU:0"):
        weights = [tf.Variable(np.ones((width, width), "float32")) for _ in range(layers)]
    reducer = GradientReducer(ReduceOptions(op=hvd.Sum, groups=buckets))

    @compiled
    def step(x: Any) -> None:
        with tf.GradientTape() as tape:
            y = x
            for weight in weights:
                y = tf.nn.relu(tf.matmul(y, weight))
            loss = tf.reduce_sum(y * y)
        gradients = tape.gradient(loss, weights)
        reduced = reducer.reduce(gradients, weights, name="gpu.xla.deep")
        for weight, d in zip(weights, reduced, strict=True):
            weight.assign_sub(0.1 * d)

    x = on_gpu(np.ones((512, width), "float32"))
    step(x)
    hvd.barrier()
    capfd.readouterr()
    fake_cuda.set_value("log", 1)
    step(x)
    fake_cuda.set_value("log", 0)
    waits, kernels = places_of_waits(capfd.readouterr().err)
    assert len(waits) == buckets
    assert min(waits) >= kernels - layers, f"of {kernels} kernels, {layers} of them updates"


def test_an_error_is_that_of_the_collective(rank: int, several: int) -> None:
    step = compiled(lambda x: hvd.allreduce(x, op=hvd.Sum, name="gpu.xla.disagree"))
    pair = reduced_in_buckets(2, "gpu.xla.disagree.pair")
    wrong = on_gpu(np.ones(rank + 1, "float32"))
    right = on_gpu(np.ones(3, "float32"))
    with pytest.raises(tf.errors.FailedPreconditionError, match=r"gpu\.xla\.disagree.*rank 0"):
        step(wrong)
    np.testing.assert_array_equal(step(right).numpy(), np.full(3, several))
    with pytest.raises(tf.errors.FailedPreconditionError, match=r"gpu\.xla\.disagree.*rank 0"):
        pair(wrong, right)
    for result in pair(right, right):
        np.testing.assert_array_equal(result.numpy(), np.full(3, several))


@pytest.mark.skipif(not ON_FAKE, reason="reads the log of the fake driver")
def test_what_was_started_is_waited_for_when_something_else_fails(several: int, capfd: Any) -> None:
    """The size of a process set that is gone, between a start and its done.

    Its branch is chosen by a sum, so that the start has been launched by then.
    """
    gone = tfring.add_process_set([0])
    number = gone.process_set_id

    @compiled
    def program(x: Any, one: Any) -> Any:
        finish = builders.start_allreduce([x], name="gpu.xla.left", op=hvd.Sum)
        ranks = hvd.allreduce(one, op=hvd.Sum, name="gpu.xla.ranks")
        branches = [lambda: one, lambda: tfring.size_op(number)]
        size = tf.switch_case(ranks, branches)
        last = hvd.allreduce(size, op=hvd.Sum, name="gpu.xla.after")
        return *finish(), last

    step = tf.function(lambda x, one: program(x, one))
    x, one = on_gpu(np.ones(1000, "float32")), on_gpu(np.int32(1))
    np.testing.assert_array_equal(step(x, one)[0].numpy(), np.full(1000, several, "float32"))
    tfring.remove_process_set(gone)
    capfd.readouterr()
    fake_cuda.set_value("log", 1)
    with pytest.raises(tf.errors.InvalidArgumentError, match="process set"):
        step(x, one)
    fake_cuda.set_value("log", 0)
    waits, _ = places_of_waits(capfd.readouterr().err)
    assert len(waits) == 2, "for the sum that was asked for, and for what was left"


def test_two_threads_with_a_program_each(rank: int, several: int) -> None:
    """One fails on all ranks while the other waits on rank 0 for the other ranks, and then ends.

    That a program runs is told by its collective in a process set of this rank alone.
    """
    alone = [tfring.add_process_set([number]) for number in range(several)][rank]
    counts = {"ok": 3, "bad": 4 + rank}
    reducer = GradientReducer(ReduceOptions(op=hvd.Sum, groups=2))

    def program(name: str) -> Any:
        def step(x: Any) -> Any:
            begun = tfring.allreduce(x, op=hvd.Sum, name=f"gpu.xla.begin.{name}", process_set=alone)
            return reducer.reduce([begun, begun], [x, x], name=f"gpu.xla.two.{name}")

        return compiled(step)

    programs = {name: program(name) for name in counts}
    xs = {name: on_gpu(np.ones(count, "float32")) for name, count in counts.items()}
    same = on_gpu(np.ones(3, "float32"))
    for each in programs.values():
        each(same)
    with pytest.raises(tf.errors.FailedPreconditionError):
        programs["bad"](xs["bad"])
    with futures.ThreadPoolExecutor(2) as pool:
        for _ in range(4):
            hvd.barrier()
            before = core.counters()["collectives"]
            if rank == 0:
                good = pool.submit(programs["ok"], xs["ok"])
                while core.counters()["collectives"] == before:
                    time.sleep(0.001)
            bad = pool.submit(programs["bad"], xs["bad"])
            assert isinstance(bad.exception(60), tf.errors.FailedPreconditionError)
            if rank != 0:
                good = pool.submit(programs["ok"], xs["ok"])
            for result in good.result(60):
                np.testing.assert_array_equal(result.numpy(), np.full(3, several, "float32"))


def test_a_failed_step_ends_on_all_ranks(rank: int, several: int) -> None:
    part = reduced_in_buckets(2, "gpu.xla.failing")

    @tf.function
    def step(x: Any, good: Any) -> Any:
        with tf.device("CPU:0"):
            check = tf.debugging.Assert(good, ["this rank fails"])
        with tf.control_dependencies([check]):
            return part(x, x)

    x = on_gpu(np.ones(3, "float32"))
    expected: Any = tf.errors.InvalidArgumentError if rank == 0 else tf.errors.AbortedError
    with pytest.raises(expected, match="this rank fails"):
        step(x, tf.constant(rank != 0))
    for result in step(x, tf.constant(True)):
        np.testing.assert_array_equal(result.numpy(), np.full(3, several, "float32"))


def test_a_rank_joins_while_another_goes_on(rank: int, several: int) -> None:
    """With a call that has repeated for long enough to be locked, were it in host memory."""

    @compiled
    def step(x: Any) -> Any:
        return hvd.allreduce(x, op=hvd.Sum, name="gpu.xla.join")

    x = np.arange(1000, dtype="float32") + rank
    everybody = sum(np.arange(1000, dtype="float32") + r for r in range(several))
    for _ in range(8):
        np.testing.assert_array_equal(step(on_gpu(x)).numpy(), everybody)
    if rank == 0:
        np.testing.assert_array_equal(step(on_gpu(x)).numpy(), x)
    else:
        time.sleep(0.2)  # rank 0 has made its call
    hvd.join()
    np.testing.assert_array_equal(step(on_gpu(x)).numpy(), everybody)


def test_fit_with_the_default_jit_compile(several: int) -> None:
    """Which is True on a GPU. Gradients do not leave it, but in the staged way."""
    layers = [keras.layers.Input((8,)), keras.layers.Dense(16384), keras.layers.Dense(1)]
    model = keras.Sequential(layers)
    # The fake leaves the new optimizer's count of steps as it finds the memory.
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1), resumed=True)
    model.compile(optimizer=optimizer, loss="mse")
    x, y = np.ones((64, 8), "float32"), np.ones((64, 1), "float32")
    callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0)]
    model.fit(x, y, batch_size=16, verbose=0, callbacks=callbacks)
    before, made = core.counters()["tensors"], counted("d2h_bytes")
    model.fit(x, y, batch_size=16, verbose=0)
    made = counted("d2h_bytes") - made
    assert model.jit_compile
    steps, gradients = 4, model.trainable_variables
    assert core.counters()["tensors"] - before >= steps * len(gradients)
    if ON_FAKE:
        sent = steps * sum(4 * int(np.prod(v.shape)) for v in gradients)
        assert made < sent / 10 if NCCL else made >= sent


def test_passes_are_counted_where_xla_finds_the_number(several: int) -> None:
    """On the fake XLA has no constants, so there the function is only traced."""
    variable = tf.Variable(np.ones(3, "float32"))
    helper = LocalGradientAggregationHelper(2, name="gpu.xla.passes")

    @compiled
    def step(x: Any) -> Any:
        return helper.compute_gradients([x], [variable])[0]

    x = on_gpu(np.full(3, 2, "float32"))
    step.get_concrete_function(x)
    assert all(v.device.endswith("GPU:0") for v in helper.variables)
    if not ON_FAKE:
        step(x)
        np.testing.assert_allclose(step(x).numpy(), np.full(3, 4, "float32"))
