"""Steps about the devices of tensors and the results of collectives."""

from __future__ import annotations

from typing import Any

import fake_cuda
import gpu_cells
import matrix_cells
import numpy as np
import tensorflow as tf
from matrix_rows import COLLECTIVES

import tfring
from tfring.ops import library


def tf_import() -> dict[str, Any]:
    """Puts a value on GPU:0, and reports what TensorFlow was built for."""
    built = tf.sysconfig.get_build_info()
    gpus = tf.config.list_physical_devices("GPU")
    details = tf.config.experimental.get_device_details(gpus[0])
    library.load()
    tensor = gpu_cells.on_gpu(np.arange(1000, dtype=np.float32))
    assert tensor.backing_device.endswith("GPU:0"), tensor.backing_device
    np.testing.assert_array_equal(tensor.numpy(), np.arange(1000))
    if not fake_cuda.is_driver():  # on the fake, TensorFlow's kernels compute nothing
        np.testing.assert_array_equal((tensor * 2.0 + 1.0).numpy(), np.arange(1000) * 2.0 + 1.0)
    return {
        "tensorflow": tf.__version__,
        "cuda": str(built.get("cuda_version")),
        "gpus": len(gpus),
        "name": str(details.get("device_name")),
        "nccl_built": int(tfring.nccl_built()),
        "gpu_available": bool(tf.config.get_visible_devices("GPU")),
    }


def tf_values() -> dict[str, Any]:
    """Checks each row of the table of collectives on tensors on GPU:0, eager and in functions."""
    compared = 0
    with matrix_cells.teams() as teams:
        for collective in COLLECTIVES:
            for mode in sorted(gpu_cells.MODES):
                cells = gpu_cells.cells_of(collective, teams["all"], everything=True)
                compared += gpu_cells.check_cells(cells, mode)
    return {"compared": compared}


def tf_forwarding() -> dict[str, Any]:
    """Checks that a gradient without other readers is reduced in place: no new memory, no copy."""
    count = 20

    @tf.function
    def step(xs: Any) -> Any:
        with tf.device("GPU:0"):
            own = [tf.identity(x) for x in xs]
            if not fake_cuda.is_driver():
                own = [y * 3.0 for y in own]
        return [tfring.allreduce(y, op=tfring.Sum, name=f"own.{i}") for i, y in enumerate(own)]

    with tf.device("CPU:0"):
        xs = [tf.fill([1000 + i], float(i + 1)) for i in range(count)]
    step(xs)
    before = library.output_counters()
    results = step(xs)
    factor = tfring.size() * (1.0 if fake_cuda.is_driver() else 3.0)
    for i, result in enumerate(results):
        assert result.backing_device.endswith("GPU:0"), result.backing_device
        np.testing.assert_array_equal(result.numpy(), np.full(1000 + i, (i + 1) * factor))
    after = library.output_counters()
    forwarded = after["forwarded"] - before["forwarded"]
    # TensorFlow may hold a copy from another device for a moment longer.
    assert forwarded >= 0.9 * count, f"{forwarded} of {count} were reduced in place"
    return {"forwarded": forwarded, "of": count}
