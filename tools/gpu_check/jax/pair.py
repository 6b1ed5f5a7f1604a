"""The step `jax_pair` of `make gpu-check`: `python pair.py LIBRARY DRIVER NCCL`.

Two ranks sum buckets in a function that JAX compiles, with tfring's custom calls: a start
and a done per bucket. LIBRARY (handlers.cc) has them without TensorFlow. Prints a line of JSON.

With GPU_CHECK_FAKE=1 DRIVER and NCCL are the fakes, and JAX's kernels compute nothing.
"""

from __future__ import annotations

import ctypes
import importlib.util
import json
import os
import re
import socket
import sys
import traceback
from typing import Any

# The values of ops/runtime/base/types.h.
ALLREDUCE, FLOAT32, SUM = 0, 11, 1
COMPUTES = os.environ.get("GPU_CHECK_FAKE") != "1"
BUCKETS = 4
STEPS = 3


def fork() -> tuple[int, list[int]]:
    """Forks rank 1. Returns this process's rank, and its sockets to the other one."""
    pairs = [socket.socketpair() for _ in range(2)]
    rank = 0 if os.fork() else 1
    for pair in pairs:
        pair[1 - rank].close()
    return rank, [pair[rank].detach() for pair in pairs]


class Library:
    """tfring's runtime and custom calls in this rank."""

    def __init__(self, path: str) -> None:
        self._library = ctypes.CDLL(path)
        self._library.tfring_handler.restype = ctypes.c_void_p
        self._library.tfring_init.restype = ctypes.c_char_p

    def init(self, rank: int, control: int, data: int, **settings: str) -> None:
        """Joins the other rank."""
        texts = [text.encode() for item in settings.items() for text in item]
        values = (ctypes.c_char_p * (len(texts) + 1))(*texts, None)
        said = self._library.tfring_init(rank, control, data, values).decode()
        assert said == "Ok", said

    def register(self, target: str) -> None:
        """Registers the handler of a custom call with JAX."""
        import jax

        handler = self._library.tfring_handler(target.encode(), b"CUDA")
        assert handler, f"there is no {target}"
        capsule = jax.ffi.pycapsule(ctypes.c_void_p(handler))
        jax.ffi.register_ffi_target(target, capsule, platform="CUDA", api_version=1)

    def shutdown(self) -> None:
        """Leaves the job."""
        self._library.tfring_shutdown()


def call(target: str, tensor: Any, chain: Any, attributes: dict[str, Any]) -> Any:
    """One custom call of a tensor and the chain; its results use their buffers."""
    import jax

    shapes = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in (tensor, chain)]
    aliases = {0: 0, 1: 1}
    made = jax.ffi.ffi_call(target, shapes, has_side_effect=True, input_output_aliases=aliases)
    return made(tensor, chain, **attributes)


def attributes_of(bucket: int) -> dict[str, Any]:
    """The attributes of a start, without those of its done."""
    import numpy as np

    numbers = {"kind": ALLREDUCE, "data_type": FLOAT32, "reduce_op": SUM}
    numbers |= {"root": 0, "layout_hash": 0, "group": 0, "size": 0}
    return {name: np.int64(value) for name, value in numbers.items()} | {
        "prescale": np.float64(1.0),
        "postscale": np.float64(1.0),
        "call_site": f"pair.py:{bucket}",
    }


def step(gradients: list[Any], chain: Any) -> list[Any]:
    """The sums of all gradients over the ranks: starts all before it waits for the first."""
    import numpy as np

    started, sums = [], []
    for bucket, gradient in enumerate(gradients):
        names = {"tensor_name": f"bucket{bucket}", "process_set": np.int64(0)}
        tensor = gradient * 2.0 + 1.0 if COMPUTES else gradient
        tensor, chain = call("tfring_start", tensor, chain, names | attributes_of(bucket))
        started.append((tensor, names))
    for tensor, names in started:
        total, chain = call("tfring_done", tensor, chain, names)
        sums.append(total / 2.0 if COMPUTES else total)
    return sums


def check(rank: int) -> dict[str, Any]:
    """Checks values, the order of the calls, and that a wrong call only causes an error."""
    import jax
    import numpy as np

    gpus = jax.devices("cuda")
    device = gpus[rank % len(gpus)]
    compiled = jax.jit(step)
    chain = jax.device_put(np.zeros(2, np.int32), device)
    values = [np.arange(1000 * (i + 1), dtype=np.float32) for i in range(BUCKETS)]
    gradients = [jax.device_put(value + rank, device) for value in values]

    def check_values() -> None:
        for value, got in zip(values, compiled(gradients, chain), strict=True):
            np.testing.assert_allclose(got, 2 * value + 1 + COMPUTES, rtol=1e-6)

    for _ in range(STEPS):
        check_values()
    text = compiled.lower(gradients, chain).compile().as_text()
    calls = re.findall(r'custom_call_target="tfring_(\w+)"', text)
    assert calls == ["start"] * BUCKETS + ["done"] * BUCKETS, calls
    try:
        wrong = jax.device_put(np.zeros(2 + rank, np.float32), device)
        jax.block_until_ready(compiled([wrong], chain))
    except jax.errors.JaxRuntimeError as error:
        refusal = str(error)
    else:
        raise AssertionError("ranks with different shapes had no error")
    assert "[2] on rank 0" in refusal and "[3] on rank 1" in refusal, refusal
    check_values()
    return {"jax": jax.__version__, "buckets": BUCKETS, "refusal": refusal}


def run(library: str, driver: str, nccl: str, rank: int, sockets: list[int]) -> dict[str, Any]:
    """Runs the checks; returns the line of this rank."""
    os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"  # so that both ranks can share the GPU
    os.environ["JAX_PLATFORMS"] = "cuda"
    try:
        if not COMPUTES:  # JAX looks for the files of a real driver
            from jax._src import hardware_utils

            hardware_utils.has_visible_nvidia_gpu = lambda: True
        runtime = Library(library)
        settings = {"CUDA_DRIVER": driver}
        runtime.init(rank, *sockets, **settings, **({"NCCL_LIBRARY": nccl} if nccl else {}))
        for target in ("tfring_start", "tfring_done"):
            runtime.register(target)
        line = check(rank) | {"ok": True}
        runtime.shutdown()
        return line
    except Exception as error:
        traceback.print_exc()
        return {"ok": False, "error": f"rank {rank}: {type(error).__name__}: {error}"[:1500]}


def main(library: str, driver: str, nccl: str) -> None:
    if importlib.util.find_spec("jax_plugins") is None:
        print(json.dumps({"ok": True, "skipped": "there is no JAX for GPUs"}))
        return
    rank, sockets = fork()
    line = run(library, driver, nccl, rank, sockets)
    if rank == 0:
        if line["ok"] and os.wait()[1] != 0:
            line = {"ok": False, "error": "rank 1 failed"}
        print(json.dumps(line), flush=True)
    sys.stderr.flush()
    # At once: the other rank sees that this one is gone.
    os._exit(0 if line["ok"] else 1)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
