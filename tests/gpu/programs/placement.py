"""What holds for tensors on the GPU of the fake driver; prints what it found as JSON."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import threading
from typing import Any

import fake_cuda
import numpy as np
import tensorflow as tf


def address(tensor: Any) -> int:
    """Where the data of an eager tensor is: the first field of its DLManagedTensor."""
    capsule = tf.experimental.dlpack.to_dlpack(tensor)
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    pointer = get(capsule, b"dltensor")
    return int(ctypes.cast(pointer, ctypes.POINTER(ctypes.c_uint64))[0])


def signal_of_reading(where: int) -> int:
    """The signal that kills a process which reads memory; 0 if it can."""
    child = os.fork()
    if child == 0:
        ctypes.string_at(where, 4)
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    return os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0


def held_read(tensor: Any) -> dict[str, Any]:
    """Reads a tensor while the streams start nothing, and after that."""
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(tensor.numpy().tolist()))
    fake_cuda.set_value("hold", 1)
    thread.start()
    thread.join(timeout=0.5)
    early = list(found)
    fake_cuda.set_value("hold", 0)
    thread.join()
    return {"early": early, "late": found}


@tf.function(jit_compile=True)
def compiled(tensor: Any) -> Any:
    """Runs as a program of XLA for the GPU."""
    return tf.reduce_sum(tensor * 2.0)


def main() -> None:
    result: dict[str, Any] = {"gpus": len(tf.config.list_physical_devices("GPU"))}
    with tf.device("GPU:0"):
        constant = tf.constant([1.0, 2.0, 3.0])
        variable = tf.Variable([5.0, 6.0])
        variable.assign([7.0, 8.0])
        large = tf.constant(np.arange(100_000, dtype=np.int64))
        result["devices"] = [constant.device, tf.identity(constant).device, variable.device]
        before = fake_cuda.count("d2h_bytes")
        result["values"] = [constant.numpy().tolist(), variable.numpy().tolist()]
        result["sum"] = int(large.numpy().sum())
        result["d2h_bytes"] = fake_cuda.count("d2h_bytes") - before
        launches = fake_cuda.count("launches")
        product = tf.linalg.matmul(tf.ones([4, 4]), tf.ones([4, 4])) + 1.0
        result["product"] = product.device
        result["launches"] = fake_cuda.count("launches") > launches
        launches = fake_cuda.count("launches")
        result["compiled"] = compiled(constant).device
        result["compiled_launches"] = fake_cuda.count("launches") > launches
        # TensorFlow keeps what it has read once: this one was not read yet.
        result["held"] = held_read(tf.constant([4.0, 5.0]))
        result["signal"] = signal_of_reading(address(constant))
    with tf.device("CPU:0"):
        result["cpu_signal"] = signal_of_reading(address(tf.constant([1.0, 2.0])))
        moved = tf.identity(constant)
        result["moved"] = [moved.device, moved.numpy().tolist()]
    print(json.dumps(result))


if __name__ == "__main__":
    assert signal.getsignal(signal.SIGSEGV) == signal.SIG_DFL
    main()
