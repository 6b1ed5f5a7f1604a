"""What a compiled function does when its job changes under it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

from launcher_tools import LIMIT_SECONDS, environment, run_python

# Unbuffered, because a rank kills itself after it has printed.
QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1", "PYTHONUNBUFFERED": "1"}

SCRIPT = """
import os, signal, sys
import tensorflow as tf
import tfring as hvd

rank = int(sys.argv[1])
gather = tf.function(lambda x: hvd.allgather(x, name="rows"), jit_compile=True)
total = tf.function(lambda x: hvd.allreduce(x, op=hvd.Sum, name="total"), jit_compile=True)
hvd.init()
assert gather(tf.ones([2])).shape == (2,)
assert float(total(1.0)) == 1.0
hvd.shutdown()
try:
    total(1.0)
except tf.errors.FailedPreconditionError as error:
    print("ended:", "init()" in str(error))

os.environ.update(RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=sys.argv[2])
os.environ.update(LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE="2")
hvd.init()
assert hvd.size() == 2
assert float(total(1.0)) == 2.0
try:
    gather(tf.ones([2]))
except (tf.errors.InvalidArgumentError, tf.errors.FailedPreconditionError) as error:
    print("resized:", "compiled (jit_compile=True) for 1 ranks" in str(error))
again = tf.function(lambda x: hvd.allgather(x, name="rows"), jit_compile=True)
assert again(tf.ones([2])).shape == (4,)
if rank == 1:
    os.kill(os.getpid(), signal.SIGKILL)
try:
    total(1.0)
except (tf.errors.UnavailableError, tf.errors.InternalError) as error:
    unavailable = isinstance(error, tf.errors.UnavailableError)
    replaced = "originally returned UnavailableError" in str(error)  # by TensorFlow, at times
    print("lost:", "rank 1" in str(error) and (unavailable or replaced))
"""


def free_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def test_another_size_and_a_lost_rank() -> None:
    """After a change of the job's size, and after the death of a rank.

    A function that was compiled with the old size is refused, one that holds no size works, and a
    call that waits for the dead rank fails.
    """
    port = free_port()
    env = environment(**QUIET)
    for name in [name for name in env if name.startswith(("OMPI_", "PMI", "TFRING_X_RANK"))]:
        del env[name]
    jobs = [
        subprocess.Popen(
            [sys.executable, "-c", SCRIPT, str(rank), port],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=env,
            cwd=os.path.dirname(__file__),
        )
        for rank in range(2)
    ]
    said = [job.communicate(timeout=LIMIT_SECONDS) for job in jobs]
    for (printed, errors), job in zip(said, jobs, strict=True):
        assert "ended: True\nresized: True" in printed, (printed, errors)
        assert job.returncode == (-9 if job is jobs[1] else 0), errors
    assert "lost: True" in said[0][0]


CLUSTERED = """
import tensorflow as tf
import tfring as hvd

hvd.init()

@tf.function
def step(x):
    y = tf.tanh(tf.matmul(x, x)) + 1
    return tf.sin(hvd.allreduce(y, name="a")) * 2, hvd.allgather(tf.cos(y), name="b") * 2

first, second = step(tf.ones([4, 4]))
print("shapes", first.shape, second.shape)
"""


def test_automatic_clusters_leave_collectives_alone() -> None:
    flags = "--tf_xla_auto_jit=2 --tf_xla_cpu_global_jit --tf_xla_min_cluster_size=1"
    done = run_python("-c", CLUSTERED, **QUIET, TF_XLA_FLAGS=flags)
    assert "shapes (4, 4) (4, 4)" in done.stdout, done.stderr
