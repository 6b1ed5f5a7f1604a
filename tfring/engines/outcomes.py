"""Which error of several ranks is the cause, and which only follow from it."""

from __future__ import annotations

# What a collective raises because another rank has failed: Cancelled, Aborted, Unavailable, as
# TensorFlow and the runtime number them.
_CONSEQUENCES = (1, 10, 14)


def is_consequence(error: BaseException | None) -> bool:
    """Whether a rank raised an exception because another rank has failed.

    Args:
        error: The rank's exception; None: it is not known.
    """
    return getattr(error, "error_code", getattr(error, "code", None)) in _CONSEQUENCES


def line(error: BaseException) -> str:
    """Returns the class of an exception and the first line of its text.

    Args:
        error: The exception of a rank.
    """
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0]}"[:200]
