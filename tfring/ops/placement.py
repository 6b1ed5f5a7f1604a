"""The device of an eager collective, and how many GPUs a rank should see.

An eager collective runs where its tensors are. TensorFlow runs an op on a GPU if there is a kernel
for it, and would copy host tensors to the GPU and the result back. In graphs TensorFlow chooses,
mostly before it knows where a tensor will be.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
from collections.abc import Iterable
from typing import Any

import tensorflow as tf
from tensorflow.python.eager import context as eager_context

from tfring.ops import library
from tfring.runtime import topology
from tfring.runtime.settings.environment import read_settings

_log = logging.getLogger("tfring")

HOST = "CPU:0"


def beside(tensors: Iterable[Any]) -> Any:
    """Returns a context in which an eager op runs where its tensors are.

    It has no effect inside a tf.device, without tensors, and for tensors on several devices.

    Args:
        tensors: those of a collective.
    """
    if eager_context.context().device_name:
        return contextlib.nullcontext()
    devices = {_memory_of(tensor) for tensor in tensors}
    return tf.device(devices.pop()) if len(devices) == 1 else contextlib.nullcontext()


def always_early() -> bool:
    """Returns whether every op of a graph is done early (see builders.allreduce_op).

    Eager ops always are.
    """
    return library.on_gpus() and _async_completion()


def check_gpus() -> None:
    """Warns once if this rank sees GPUs of other ranks on its host.

    Called for every collective: by then a program has chosen its GPU, if it ever does.
    """
    if topology.is_initialized():
        _warn_of_gpus_of_others()


@functools.cache
def _warn_of_gpus_of_others() -> None:
    seen = len(tf.config.get_visible_devices("GPU"))
    ranks = topology.local_size()
    if seen < 2 or ranks < 2:
        return
    _log.warning(
        "rank %d sees %d GPUs and uses one of them, and %d ranks are on this host. TensorFlow "
        "takes memory on every GPU that it sees, so these ranks compete for it. After init, and "
        "before anything uses a GPU, call "
        "tf.config.set_visible_devices(tf.config.list_physical_devices('GPU')[hvd.local_rank()], "
        "'GPU')",
        topology.rank(),
        seen,
        ranks,
    )


@functools.cache
def _async_completion() -> bool:
    return read_settings(os.environ).enable_async_completion


def _memory_of(tensor: Any) -> str:
    """Returns the device whose memory holds a tensor; int32 tensors of a GPU are on the host."""
    device: str | None = getattr(tensor, "backing_device", None)
    return HOST if device is None else device
