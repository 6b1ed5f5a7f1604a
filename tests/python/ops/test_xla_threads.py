"""Threads that run compiled functions with collectives at a time. Whole jobs."""

from __future__ import annotations

import pytest
from launcher_tools import run, write_script

from tfring.ops import library

pytestmark = pytest.mark.skipif(
    bool(library.xla_trouble()), reason=f"no XLA: {library.xla_trouble()}"
)

QUIET = {"CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "3"}

# Each rank begins its own function first, and the other one when the first runs: on rank 0 the
# first function waits for rank 1, on rank 1 the second for rank 0. That a function runs is told by
# its collective in a process set of this rank alone.
SCRIPT = """
import os, sys, threading, time

import tensorflow as tf

tf.config.threading.set_inter_op_parallelism_threads(2)
tf.config.threading.set_intra_op_parallelism_threads(1)

import tfring as hvd
from tfring.runtime._native import core

alone = [hvd.ProcessSet([number]) for number in range(2)]
hvd.init(process_sets=alone)
rank, size = hvd.rank(), hvd.size()
weights = tf.Variable([1.0, 2.0])


@tf.function
def helper(x, name):  # traced once, and used by both
    return hvd.allreduce(x, op=hvd.Sum, name=name)


def make(number):
    @tf.function(jit_compile=True)
    def function(x):
        y = hvd.allreduce(x * weights, name=f"begin.{number}", process_set=alone[rank])
        for _ in tf.range(2):
            y = hvd.allreduce(y, op=hvd.Average, name=f"loop.{number}")
        return helper(y, f"f.{number}")

    return function


def in_thread(function, x, results):
    def call():
        results.append(function(x).numpy().tolist())

    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    return thread


functions = [make(number) for number in range(2)]
for function in functions:
    function(tf.ones(2))
for k in range(20):
    x = tf.fill([2], float(k + rank))
    first, second = [], []
    hvd.barrier()
    before = core.counters()["collectives"]
    threads = [in_thread(functions[rank], x, first)]
    while core.counters()["collectives"] == before:
        time.sleep(0.001)
    threads.append(in_thread(functions[1 - rank], x, second))
    for thread in threads:
        thread.join(20)
    if any(thread.is_alive() for thread in threads):
        print(f"rank {rank} hangs in round {k}", flush=True)
        os._exit(3)
    mean = k + (size - 1) / 2
    assert first == second == [[mean * size, 2 * mean * size]], (k, first, second)
print("ended", flush=True)
"""


def test_two_threads_with_compiled_functions_begin_them_in_another_order(tmp_path) -> None:
    job = run("-np", 2, write_script(tmp_path, SCRIPT), **QUIET)
    assert job.returncode == 0 and job.stdout.count("ended") == 2, job.stdout + job.stderr


# Training and evaluation of one model, and two functions around compiled ones in a pool of one
# thread. Each rank begins with another one.
