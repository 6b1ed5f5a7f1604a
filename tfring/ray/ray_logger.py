"""What workers of an elastic job tell the program that started it: Horovod's module, on tfring."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from typing import Any

import tfring

__all__ = ["log"]


class _Process:
    """What `log` of this process uses."""

    queue: Any = None  # a ray.util.queue.Queue; None: nobody listens
    warned = False


def use_queue(queue: Any) -> None:
    """Has `log` write into a queue.

    Args:
        queue: A ray.util.queue.Queue.
    """
    _Process.queue = queue


def log(info_dict: Mapping[str, Any], chief_only: bool = True) -> None:
    """Sends something to the callbacks that `run` of the executor was given.

    Without callbacks it does nothing, and warns of that once.

    Args:
        info_dict: What to send, something that can be pickled.
        chief_only: Whether only rank 0 sends it; the calls of other ranks do nothing then.
    """
    if chief_only and _rank() != 0:
        return
    if _Process.queue is not None:
        _Process.queue.put(info_dict)
    elif not _Process.warned:
        _Process.warned = True
        warnings.warn(
            "ray_logger.log sends nothing: give run() of an elastic executor callbacks=[...]",
            stacklevel=2,
        )


def _rank() -> int:
    """Returns this worker's rank, or, outside of init and shutdown, the one that it began with."""
    if tfring.is_initialized():
        return tfring.rank()
    return int(os.environ.get("HOROVOD_RANK", "0"))  # a process without a job is its own rank 0
