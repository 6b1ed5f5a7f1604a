"""Which error of several ranks is the cause, and which only follow from it."""

from __future__ import annotations

# What a collective raises because another rank has failed: Cancelled, Aborted, Unavailable, as
# TensorFlow and the runtime number them.
_CONSEQUENCES = (1, 10, 14)
# FailedPrecondition has other reasons, too. This is that of a collective after its generation.
_FAILED_PRECONDITION, _AFTER_ITS_GENERATION = 9, " is over on rank "
# Where these numbers mean that, by package and class: other classes have codes of their own. By
# name, so that neither is loaded for it.
_NUMBERED = {("tfring", "CoreError"): "code", ("tensorflow", "OpError"): "error_code"}


def is_consequence(error: BaseException | None) -> bool:
    """Whether a rank raised an exception because another rank has failed.

    Args:
        error: The rank's exception; None: it is not known.
    """
    for cls in type(error).__mro__:
        attribute = _NUMBERED.get((cls.__module__.split(".")[0], cls.__name__))
        if attribute is not None:
            code = getattr(error, attribute, None)
            late = code == _FAILED_PRECONDITION and _AFTER_ITS_GENERATION in str(error)
            return late or code in _CONSEQUENCES
    return False


def line(error: BaseException) -> str:
    """Returns the class of an exception and the first line of its text.

    Args:
        error: The exception of a rank.
    """
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0]}"[:200]
