"""One step of `make gpu-check` with TensorFlow: `python steps.py STEP` on every rank of a job.

Rank 0 prints a line of JSON. tools/gpu_check.py runs the steps and says what each is to use.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
import traceback
from typing import Any

# By step, the module of this folder that has the function of the same name.
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


def start() -> Any:
    """Joins the job, one GPU per rank where there are as many. Returns tfring."""
    # On the double every rank shall have a GPU of its own, as on a machine with several.
    if "FAKE_CUDA_MEMORY_MIB" in os.environ:
        os.environ["FAKE_CUDA_UUID"] = str(int(os.environ.get("TFRING_RANK", "0")) + 1)
    import tensorflow as tf

    import tfring

    tfring.init()
    gpus = tf.config.list_physical_devices("GPU")
    if not gpus:
        raise RuntimeError(
            f"TensorFlow {tf.__version__} sees no GPU; run `python -c 'import tensorflow as tf; "
            'tf.config.list_physical_devices("GPU")\'` to see why'
        )
    tf.config.set_visible_devices(gpus[tfring.local_rank() % len(gpus)], "GPU")
    # Products of float32 in full precision, so that results can be compared.
    tf.config.experimental.enable_tensor_float_32_execution(False)
    return tfring


def main(step: str) -> int:
    began = time.monotonic()
    line: dict[str, Any] = {"ok": False}
    rank = int(os.environ.get("TFRING_RANK", "0"))
    try:
        tfring = start()
        rank = tfring.rank()
        line["ranks"] = tfring.size()
        line |= getattr(importlib.import_module(MODULES[step]), step)()
        tfring.shutdown()
        line["ok"] = True
    except Exception as error:
        # What fails while a function is traced comes with the lines that led there.
        text = str(error).strip().rpartition(f"\n    {type(error).__name__}: ")[2]
        line["error"] = f"rank {rank}: {type(error).__name__}: {text}"[:1500]
        traceback.print_exc()
    line["seconds"] = round(time.monotonic() - began, 3)
    # A rank that fails speaks for itself: rank 0 may only know that its peer was lost.
    if rank == 0 or not line["ok"]:
        print(json.dumps(line), flush=True)
    return 0 if line["ok"] else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
