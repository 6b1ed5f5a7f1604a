"""Who we are among the ranks of the job; all but `is_initialized` raise an error before init."""

from __future__ import annotations

from typing import Any

from tfring import _native


class NotInitializedError(ValueError, RuntimeError):
    """Something was asked for that is known only after init. Horovod raises a ValueError then."""


def _ask(name: str) -> Any:
    try:
        return getattr(_native.core, name)()
    except _native.core.CoreError as error:
        raise NotInitializedError(error.message) from None


def is_initialized() -> bool:
    """Whether init has been called, and shutdown has not."""
    return bool(_native.core.is_initialized())


def rank() -> int:
    """Our rank in the job, from 0 to size() - 1."""
    return int(_ask("rank"))


def size() -> int:
    """The number of ranks in the job."""
    return int(_ask("size"))


def local_rank() -> int:
    """Our rank among the job's processes on this host."""
    return int(_ask("local_rank"))


def local_size() -> int:
    """The number of the job's processes on this host."""
    return int(_ask("local_size"))


def cross_rank() -> int:
    """Our rank among the processes that have our local rank, one on each host."""
    return int(_ask("cross_rank"))


def cross_size() -> int:
    """The number of hosts that have a process with our local rank."""
    return int(_ask("cross_size"))
