"""How long a rank waits for others while a job starts, and its warnings meanwhile."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

_log = logging.getLogger("tfring")

# When the first warning comes, and how much longer each next wait is.
_FIRST_SECONDS = 10.0
_TIMES = 4


class Patience:
    """A time limit, and the warnings before it is up. For one thread."""

    def __init__(self, who: str, seconds: float) -> None:
        self.seconds = seconds
        self.deadline = time.monotonic() + seconds
        self._who = who
        self._began = time.monotonic()
        self._silent_for = _FIRST_SECONDS

    @property
    def is_over(self) -> bool:
        """Whether the time is up."""
        return time.monotonic() >= self.deadline

    @property
    def until_next_word(self) -> float:
        """The seconds after which to call tell() again, never 0; then the time may be up."""
        return max(0.01, min(self.deadline, self._began + self._silent_for) - time.monotonic())

    def tell(self, whom: Callable[[], str]) -> None:
        """Names the ranks that we wait for, if it is time: after 10 s, then less and less often."""
        now = time.monotonic()
        if now < self._began + self._silent_for or now >= self.deadline:
            return
        self._silent_for *= _TIMES
        _log.warning(
            "%s waits for %s, and gives up in %.0f s (TFRING_START_TIMEOUT)",
            self._who,
            whom(),
            self.deadline - now,
        )
