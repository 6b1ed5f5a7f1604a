"""The one thing that the start of a job needs from whatever brings its ranks together."""

from __future__ import annotations

from typing import Any, Protocol


class Exchange(Protocol):
    """Exchanges small JSON values between all ranks while a job starts.

    Used by one thread, from the beginning of init to its end.
    """

    @property
    def size(self) -> int:
        """Number of ranks."""

    def allgather(self, value: Any) -> list[Any]:
        """Gives every rank the values of all ranks, by rank.

        Raises:
            BootstrapError: A rank did not come; the message names it.
        """

    def close(self) -> None:
        """Ends the exchange. Every rank has what it needs by then."""


class Alone:
    """The exchange of a job of one rank."""

    size = 1

    def allgather(self, value: Any) -> list[Any]:
        """Gives back its own value."""
        return [value]

    def close(self) -> None:
        """Does nothing."""
