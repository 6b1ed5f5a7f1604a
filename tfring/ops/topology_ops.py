"""Rank and size as tensors: read when a graph runs, so no graph contains old values."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfring.ops import library
from tfring.runtime import topology

for _kind in ("Rank", "Size", "LocalRank", "LocalSize", "CrossRank", "CrossSize"):
    tf.no_gradient(f"Tfring{_kind}")
tf.no_gradient("TfringProcessSetIncluded")


@library.outside_autograph
def size_op(process_set_id: int = 0, name: str | None = None) -> Any:
    """Returns the number of ranks as an int32 scalar, read when the op runs."""
    return library.load().tfring_size(process_set_id=process_set_id, name=name)


@library.outside_autograph
def rank_op(name: str | None = None) -> Any:
    """Returns this process's rank as an int32 scalar, read when the op runs."""
    return library.load().tfring_rank(name=name)


@library.outside_autograph
def local_size_op(name: str | None = None) -> Any:
    """Returns the number of ranks on this host as an int32 scalar, read when the op runs."""
    return library.load().tfring_local_size(name=name)


@library.outside_autograph
def local_rank_op(name: str | None = None) -> Any:
    """Returns this process's rank within its host as an int32 scalar, read when the op runs."""
    if topology.slot() is not None:  # the runtime numbers a host's ranks without gaps
        return tf.constant(topology.slot(), tf.int32, name=name)
    return library.load().tfring_local_rank(name=name)


@library.outside_autograph
def cross_size_op(name: str | None = None) -> Any:
    """Returns the number of hosts with this local rank as an int32 scalar, read when run."""
    return library.load().tfring_cross_size(name=name)


@library.outside_autograph
def cross_rank_op(name: str | None = None) -> Any:
    """Returns the number of this host as an int32 scalar, read when the op runs."""
    return library.load().tfring_cross_rank(name=name)


@library.outside_autograph
def process_set_included_op(process_set_id: int = 0, name: str | None = None) -> Any:
    """Returns 1 if this rank is in the process set, else 0, as an int32 scalar, read when run."""
    return library.load().tfring_process_set_included(process_set_id=process_set_id, name=name)
