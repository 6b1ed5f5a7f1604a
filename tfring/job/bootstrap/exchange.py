"""What the start of a job needs from MPI or from a store: an allgather.

Values are JSON, never pickles.
"""

from __future__ import annotations

import json
from typing import Any, Protocol

from tfring.job.handshake.errors import BootstrapError


class Exchange(Protocol):
    """Exchanges small JSON values between all ranks while a job starts.

    Every rank makes the same calls in the same order, from one thread, while init runs.
    """

    def allgather(self, value: Any) -> list[Any]:
        """Gives every rank the values of all ranks, ordered by rank.

        BootstrapError: a rank did not take part in time, or failed.
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


def encode(value: Any) -> bytes:
    """Returns a value as JSON."""
    return json.dumps(value, separators=(",", ":"), sort_keys=True).encode()


def decode(data: bytes) -> Any:
    """Returns the value that some JSON describes; BootstrapError for anything else."""
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise BootstrapError(f"a rank sent a record that is not JSON: {error}") from None
