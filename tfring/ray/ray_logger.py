"""Messages from workers of an elastic job to the program that started it: Horovod's module."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from typing import Any

import tfring

__all__ = ["log"]


class _Process:
    """The queue of this process, for `log`."""

    queue: Any = None  # a ray.util.queue.Queue; None: no callbacks
    warned = False


def use_queue(queue: Any) -> None:
    """Makes `log` write into a queue.

    Args:
        queue: a ray.util.queue.Queue.
    """
    _Process.queue = queue


def log(info_dict: Mapping[str, Any], chief_only: bool = True) -> None:
    """Sends something to the callbacks of the executor's `run`.

    Without callbacks it does nothing, and warns once.

    Args:
        info_dict: what to send; must be picklable.
        chief_only: only rank 0 sends it; calls of other ranks do nothing.
    """
    if chief_only and _rank() != 0:
        return
    if _Process.queue is not None:
        _Process.queue.put(info_dict)
    elif not _Process.warned:
        _Process.warned = True
        warnings.warn(
            "ray_logger.log sends nothing: pass callbacks=[...] to run() of an elastic executor",
            stacklevel=2,
        )


def _rank() -> int:
    """Returns this worker's rank; outside of init and shutdown, its first rank."""
    if tfring.is_initialized():
        return tfring.rank()
    return int(os.environ.get("HOROVOD_RANK", "0"))  # a process without a job is its own rank 0
