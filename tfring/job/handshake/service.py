"""Listens for any number of processes that know a key, while a service runs."""

from __future__ import annotations

import logging
import selectors
import time
from collections.abc import Callable

from tfring.job.handshake import auth
from tfring.job.handshake.handshakes import ADMITTED, Decision, Handshakes
from tfring.job.security.mac import Channel

_log = logging.getLogger("tfring")

# After which to try again where this process has no descriptor left for a connection that waits.
_PAUSE_SECONDS = 0.25


class ServiceListener(Handshakes):
    """Accepts every connection of one role from processes that know the key.

    Its owner has its own loop: `fileno()` says when to call admit(), and `next_deadline()` when to
    call it at the latest.
    """

    _paused_until: float | None = None

    def admit(
        self, role: auth.Role, is_free: Callable[[], bool], admitted: Callable[[Channel], None]
    ) -> None:
        """Goes on with the handshakes, without waiting; refuses connections of other roles.

        `is_free` says whether one more may be admitted. `admitted` gets each, its socket
        non-blocking.
        """

        def decide(hello: auth.Hello) -> Decision:
            if hello.role is not role:
                return Decision(auth.Verdict.REFUSED, f"a connection for {hello.role.name.lower()}")
            return ADMITTED if is_free() else Decision(auth.Verdict.LATER, "too many connections")

        if self._paused_until is not None and time.monotonic() >= self._paused_until:
            self._paused_until = None
            self._selector.register(self._sock, selectors.EVENT_READ, None)
        self.step(0.0, decide, lambda _, channel: admitted(channel))

    def next_deadline(self) -> float | None:
        """Returns the ``time.monotonic()`` at which admit() has to be called next, if any."""
        limits = [super().next_deadline(), self._paused_until]
        return min((limit for limit in limits if limit is not None), default=None)

    def _without_descriptors(self, error: OSError) -> None:
        # The connection stays in the kernel's queue. Without a pause this would be a busy loop.
        _log.warning(
            "%s has no descriptor for another connection (%s; see ulimit -n) and tries again",
            self._name,
            error.strerror,
        )
        self._selector.unregister(self._sock)
        self._paused_until = time.monotonic() + _PAUSE_SECONDS
