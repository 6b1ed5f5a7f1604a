"""What the start of a job needs from MPI or from a store: an allgather.

Values are JSON, never pickles.
"""

from __future__ import annotations

import json
from collections.abc import Callable
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


def run_on_all_ranks(exchange: Exchange, step: Callable[[], Any]) -> list[Any]:
    """Runs a step on every rank and returns the results of all; a failure of one fails all.

    The error is this rank's own; else a BootstrapError that names the rank that failed.
    """
    failure: Exception | None = None
    value: Any = None
    try:
        value = step()
    except (BootstrapError, OSError, ValueError) as error:
        failure = error
    try:
        answers = exchange.allgather({"value": value, "error": str(failure) if failure else None})
    except BootstrapError:
        if failure is None:
            raise
    if failure is not None:
        raise failure
    for other, answer in enumerate(answers):
        if not isinstance(answer, dict):
            raise BootstrapError(f"rank {other} sent a malformed record")
        if answer.get("error"):
            raise BootstrapError(f"the job could not start: rank {other}: {answer['error']}")
    return [answer.get("value") for answer in answers]


def encode(value: Any) -> bytes:
    """Returns a value as JSON."""
    return json.dumps(value, separators=(",", ":"), sort_keys=True).encode()


def decode(data: bytes) -> Any:
    """Returns the value that some JSON describes; BootstrapError for anything else."""
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise BootstrapError(f"a rank sent a record that is not JSON: {error}") from None
