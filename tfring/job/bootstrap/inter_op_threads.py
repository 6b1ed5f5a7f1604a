"""Gives TensorFlow two inter-op threads, so that collectives can overlap the backward pass.

With one thread TensorFlow computes the weight gradients last, after which no computation is left to
overlap with. mpirun binds a rank to one core by default, and TensorFlow then takes one thread.
"""

from __future__ import annotations

import logging
import os
import sys

_log = logging.getLogger("tfring")

_VARIABLE = "TF_NUM_INTEROP_THREADS"
WANTED = 2


def inter_op_threads() -> int:
    """Returns the number of inter-op threads that TensorFlow has or is going to have."""
    if "tensorflow" in sys.modules:
        tf = sys.modules["tensorflow"]
        chosen = int(tf.config.threading.get_inter_op_parallelism_threads())
        if chosen > 0:
            return chosen
    text = os.environ.get(_VARIABLE, "")
    if text.isdigit() and int(text) > 0:
        return int(text)
    return len(os.sched_getaffinity(0))


def ensure_inter_op_threads() -> None:
    """Raises the number to two if TensorFlow has no threads yet, else warns. Imports no TensorFlow.

    A number that the user set is not changed.
    """
    if inter_op_threads() >= WANTED:
        return
    if _VARIABLE not in os.environ and "tensorflow" not in sys.modules:
        os.environ[_VARIABLE] = str(WANTED)
        return
    if _VARIABLE not in os.environ:
        tf = sys.modules["tensorflow"]
        if tf.config.threading.get_inter_op_parallelism_threads() == 0:
            try:
                tf.config.threading.set_inter_op_parallelism_threads(WANTED)
                return
            except RuntimeError:
                pass  # TensorFlow has made its threads already
    _log.warning(
        "TensorFlow has a single inter-op thread here. Collectives cannot overlap the backward "
        "pass, and two threads that call compiled functions with collectives block each other "
        "forever. Call tfring.init() before the first TensorFlow operation, or set %s=%d",
        _VARIABLE,
        WANTED,
    )
