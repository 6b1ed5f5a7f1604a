"""What waits for what on a GPU, with two ranks on the fakes.

    python -m benchmarks.gpu_waits --json out.json

With GPU operations of 20 ms: how long an eager allreduce blocks the program, and how
long a step of four buckets takes compared with one bucket. With operations of 2 ms on rank 0's
GPU and rank 1 50 ms late in each step: how long a step compiled by XLA takes,
compared with the same step without the exchange. On the fakes of the CUDA driver and NCCL
(tests/fakes) an operation takes exactly that time, so the ratios show what waits for what; no
number here is the speed of a GPU. It needs TensorFlow's GPU wheel: `make gpu-fake`.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks import common

ROOT = Path(__file__).resolve().parents[1]
DELAY_US = 20_000
IN_JOB = "TFRING_TEST_GPU_WAITS"
LIMIT_EAGER_MS = 2.0
# Each bucket is one kernel of the fake NCCL, and kernels of one stream follow one another.
LIMIT_FOUR_BUCKETS = 4.2
# The step with a late peer, over the longer of its own computing and the wait with the exchange.
LIMIT_LATE_PEER = 1.1
LAYERS, WIDTH, BATCH, BUCKETS = 30, 64, 512, 6  # XLA computes each weight's gradient in its turn
STEP_DELAY_US, LATE_SECONDS, STEPS = 2000, 0.05, 20


def job(path: str | None) -> int:
    import numpy as np
    import tensorflow as tf

    import tfring as hvd

    hvd.init()
    with tf.device("CPU:0"):
        host = tf.constant(np.ones(1024, np.float32))
    with tf.device("GPU:0"):
        tensors = [tf.identity(host) for _ in range(4)]

    def reduction(count: int) -> Callable[[], object]:
        @tf.function
        def step() -> tf.Tensor:
            names = [f"bucket.{count}.{i}" for i in range(count)]
            results = [
                hvd.allreduce(t, op=hvd.Sum, name=n) for t, n in zip(tensors, names, strict=False)
            ]
            with tf.control_dependencies(results):
                return tf.constant(0)

        return step

    def timed(call: Callable[[], object]) -> float:
        hvd.barrier()
        started = time.perf_counter()
        call()
        return (time.perf_counter() - started) * 1e3

    eager: list[float] = []
    steps: dict[int, list[float]] = {1: [], 4: []}
    hvd.allreduce(tensors[0], op=hvd.Sum, name="warm").numpy()
    for _ in range(10):
        eager.append(timed(lambda: hvd.allreduce(tensors[0], op=hvd.Sum, name="eager")))
        time.sleep(0.3)
    for count in steps:
        step = reduction(count)
        step()
        for _ in range(5):
            time.sleep(0.2)
            steps[count].append(timed(step))
    late = with_late_peer()
    row = {
        **late,
        "delay_ms": DELAY_US / 1e3,
        "eager_ms": statistics.median(eager),
        "step_of_1_bucket_ms": statistics.median(steps[1]),
        "step_of_4_buckets_ms": statistics.median(steps[4]),
    }
    ratio = row["step_of_4_buckets_ms"] / row["step_of_1_bucket_ms"]
    if hvd.rank() != 0:
        return 0
    report = common.Report("gpu_waits", hvd.size(), rows=[row])
    report.goals.append(common.Goal("ms of an eager call", row["eager_ms"], LIMIT_EAGER_MS))
    report.goals.append(common.Goal("four buckets over one", ratio, LIMIT_FOUR_BUCKETS))
    least = max(late["computing_ms"], 1e3 * LATE_SECONDS + late["exchange_ms"])
    ratio = late["step_with_a_late_peer_ms"] / least
    report.goals.append(common.Goal("step with a late peer", ratio, LIMIT_LATE_PEER))
    return report.finish(path)


def with_late_peer() -> dict[str, float]:
    """Milliseconds of compiled steps on rank 0; operations on rank 1's GPU take no time."""
    import fake_cuda
    import numpy as np
    import tensorflow as tf

    import tfring as hvd
    from tfring.training.options import ReduceOptions
    from tfring.training.reducer import GradientReducer

    with tf.device("CPU:0"):
        host, small = np.ones((WIDTH, WIDTH), np.float32), np.ones((BATCH, WIDTH), np.float32)
        host, small = tf.constant(host), tf.constant(small)
    with tf.device("GPU:0"):
        weights = [tf.Variable(host) for _ in range(LAYERS)]
        x = tf.identity(small)
    reducer = GradientReducer(ReduceOptions(op=hvd.Sum, groups=BUCKETS))

    def gradients() -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            y = x
            for weight in weights:
                y = tf.nn.relu(tf.matmul(y, weight))
            loss = tf.reduce_sum(y * y)
        return list(tape.gradient(loss, weights))

    def compiled(computes: bool, reduces: bool) -> Callable[[], object]:
        @tf.function(jit_compile=True, autograph=False)
        def step() -> tf.Tensor:
            found = gradients() if computes else [tf.identity(weight) for weight in weights]
            if reduces:
                found = reducer.reduce(found, weights, name=f"late.{computes}")
            for weight, gradient in zip(weights, found, strict=True):
                weight.assign_sub(0.1 * gradient)
            return tf.reduce_sum(weights[0])

        return step

    def median_ms(step: Callable[[], tf.Tensor], late: float = 0.0) -> float:
        fake_cuda.set_value("delay_us", 0)
        step().numpy()  # compiles it
        fake_cuda.set_value("delay_us", STEP_DELAY_US if hvd.rank() == 0 else 0)
        seconds = []
        for _ in range(STEPS):
            hvd.barrier()
            started = time.perf_counter()
            if hvd.rank() == 1:
                time.sleep(late)
            step().numpy()
            seconds.append(time.perf_counter() - started)
        return 1e3 * statistics.median(seconds)

    return {
        "computing_ms": median_ms(compiled(True, False)),
        "exchange_ms": median_ms(compiled(False, True)),
        "step_with_a_late_peer_ms": median_ms(compiled(True, True), LATE_SECONDS),
    }


def main() -> int:
    arguments = common.parser(__doc__).parse_args()
    if os.environ.get(IN_JOB):
        return job(arguments.json)
    sys.path.insert(0, str(ROOT / "tests" / "helpers"))
    import gpu_fake

    env = gpu_fake.environment(delay_us=DELAY_US)
    env.update(
        {
            IN_JOB: "1",
            "TFRING_GPU_OPERATIONS": "nccl",
            "TFRING_NCCL_LIBRARY": str(gpu_fake.fakes() / "libnccl.so.2"),
        }
    )
    own_gpu = 'export FAKE_CUDA_UUID=$((OMPI_COMM_WORLD_RANK + 1)); exec "$@"'
    python = [sys.executable, "-m", "benchmarks.gpu_waits"]
    python += ["--json", arguments.json] if arguments.json else []
    command = [str(ROOT / "tools" / "mpi_run.sh"), "2", "bash", "-c", own_gpu, "_", *python]
    return subprocess.run(command, env=env, cwd=ROOT, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
