"""Steps of `make gpu-check` with TensorFlow: `python steps.py MODE:STEP...` on both ranks of a job.

Rank 0 prints a line of JSON per step when all ranks have finished it. A rank that fails a step
prints a line with the error, and ends. tools/gpu_check.py starts the job and selects the steps.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import traceback
from typing import Any

# The module of each function; names of steps begin with those of functions.
MODULES = {
    "tf_import": "values",
    "tf_values": "values",
    "tf_forwarding": "values",
    "tf_done": "timing",
    "tf_speed": "timing",
    "tf_keras_fit": "training",
    "tf_xla_pair": "training",
    "tf_keras_default": "training",
    "tf_equivalence": "training",
}
# The variables that a mode sets before `init`.
SETTINGS = {
    "nccl": {"TFRING_GPU_OPERATIONS": "nccl", "TFRING_ENABLE_ASYNC_COMPLETION": "0"},
    "early": {"TFRING_GPU_OPERATIONS": "nccl", "TFRING_ENABLE_ASYNC_COMPLETION": "1"},
    "host": {"TFRING_GPU_OPERATIONS": "host", "TFRING_ENABLE_ASYNC_COMPLETION": "0"},
}


def find_gpus() -> None:
    """Takes one GPU per rank if there are enough."""
    import tensorflow as tf

    gpus = tf.config.list_physical_devices("GPU")
    if not gpus:
        raise RuntimeError(
            f"TensorFlow {tf.__version__} sees no GPU; run `python -c 'import tensorflow as tf; "
            'tf.config.list_physical_devices("GPU")\'` to see why'
        )
    local_rank = int(os.environ.get("TFRING_X_LOCAL_RANK", "0"))
    tf.config.set_visible_devices(gpus[local_rank % len(gpus)], "GPU")
    # Full precision of float32 products, so that results can be compared.
    tf.config.experimental.enable_tensor_float_32_execution(False)


def join(mode: str) -> None:
    """Joins the job anew, with the settings of this mode."""
    import tfring

    if tfring.is_initialized():
        tfring.shutdown()
    os.environ.update(SETTINGS[mode])
    tfring.init()


def run(step: str) -> dict[str, Any]:
    """Runs one step. Returns its line when all ranks have finished it."""
    import tfring

    function = next(name for name in MODULES if step.startswith(name))
    result = getattr(importlib.import_module(MODULES[function]), function)()
    tfring.barrier()
    return {"ranks": tfring.size(), **result}


def main(steps: list[str]) -> int:
    rank = int(os.environ.get("TFRING_X_RANK", "0"))
    now = ""
    for item in steps:
        mode, _, step = item.partition(":")
        line: dict[str, Any] = {"step": step, "ok": False, "mode": mode}
        try:
            if not now:
                find_gpus()
            if mode != now:
                join(mode)
            now = mode
            line |= {**run(step), "ok": True}
        except Exception as error:
            # An error while a function is traced comes with the lines that led there.
            text = str(error).strip().rpartition(f"\n    {type(error).__name__}: ")[2]
            line["error"] = f"rank {rank}: {type(error).__name__}: {text}"[:1500]
            traceback.print_exc()
        # A failed rank reports its own error: rank 0 may only know that its peer was lost.
        if rank == 0 or not line["ok"]:
            print(json.dumps(line), flush=True)
        if not line["ok"]:
            return 1
    importlib.import_module("tfring").shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
