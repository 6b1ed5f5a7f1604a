"""Trying again what a storage has refused: it may be full, busy or out of reach for a while."""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable
from typing import TypeVar

from tfring.checkpoint.errors import CheckpointError

T = TypeVar("T")

_log = logging.getLogger("tfring")
FIRST_DELAY = 1.0  # seconds after the first failure; twice as long after each further one
_LONGEST_DELAY = 60.0
_ATTEMPTS = 4
MISTAKES = (TypeError, ValueError, LookupError, AttributeError, NameError, AssertionError)
_FINAL = (CheckpointError, *MISTAKES)


def delay(failures: int) -> float:
    """Returns how many seconds to wait after a number of failures in a row, at least 1."""
    return min(FIRST_DELAY * 2.0 ** min(failures - 1, 20), _LONGEST_DELAY)


def is_final(error: Exception) -> bool:
    """Whether trying again cannot help. Drivers of storages have errors of any class."""
    return isinstance(error, _FINAL)


def described(error: Exception) -> str:
    """Returns an error in one line, without what it refers to."""
    return f"{type(error).__name__}: {error}"


def persistently(call: Callable[[], T], what: str, patience: float = 0.0) -> T:
    """Calls until the storage does not fail, 4 times or for `patience` seconds.

    `what` is for the warnings: "to read x". Raises the last error; at once if trying again cannot
    help.
    """
    begin = time.monotonic()
    for failures in itertools.count(1):
        try:
            return call()
        except Exception as error:
            late = time.monotonic() - begin >= patience
            if is_final(error) or (failures >= _ATTEMPTS and late):
                raise
            _log.warning(
                "failed %s: %s. It is tried again in %g s", what, described(error), delay(failures)
            )
        time.sleep(delay(failures))
    raise AssertionError("there is always one more attempt")
