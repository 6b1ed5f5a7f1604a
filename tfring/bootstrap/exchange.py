"""What the start of a job needs from MPI or from the rendezvous over TCP: an allgather."""

from __future__ import annotations

from typing import Any, Protocol


class Exchange(Protocol):
    """Exchanges small JSON values between all ranks while a job starts.

    Every rank makes the same calls in the same order, from one thread, while init runs.
    """

    def allgather(self, value: Any) -> list[Any]:
        """Gives every rank the values of all ranks, ordered by rank.

        Raises:
            BootstrapError: A rank did not take part in time, or failed.
        """

    def close(self) -> None:
        """Ends the exchange. Called when no rank needs it any more."""


class SingleRankExchange:
    """The exchange of a job of one rank."""

    def allgather(self, value: Any) -> list[Any]:
        """Returns a list with its own value."""
        return [value]

    def close(self) -> None:
        """Does nothing."""
