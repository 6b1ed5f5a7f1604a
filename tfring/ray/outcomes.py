"""Results of all ranks, or the error of the one that failed."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from typing import Any

import ray
from ray.exceptions import RayActorError, RayError, RayTaskError

from tfring.integration import is_consequence, line


class RanksFailed(Exception):
    """Some ranks failed, or did not end.

    Attributes:
        failures: Ray's errors, by rank, in the order of their arrival.
        stuck: ranks that have not ended.
    """

    def __init__(self, failures: dict[int, Exception], stuck: list[int]) -> None:
        super().__init__(f"ranks {list(failures)} failed, ranks {stuck} have not ended")
        self.failures = failures
        self.stuck = stuck

    def error(self) -> tuple[str, BaseException | None]:
        """Returns the text for the user, and the exception of the rank that failed first."""
        rank = min(self.failures, key=lambda r: is_consequence(cause_of(self.failures[r])))
        failure = self.failures[rank]
        others = [f"rank {r}: {line(cause_of(e))}" for r, e in self.failures.items() if r != rank]
        text = f"the function failed on rank {rank}:\n{text_of(failure)}"
        if isinstance(failure, RayActorError):
            text = f"the process of rank {rank} is gone: {failure}"
        if others:
            text += "\nthen on " + "; on ".join(others)
        if self.stuck:
            ranks = ", ".join(map(str, self.stuck))
            text += f"\nranks that did not end, so tfring ended them: {ranks}"
        return text, cause_of(failure)


def cause_of(error: BaseException) -> BaseException:
    """Returns the exception of a function, from inside Ray's own.

    Args:
        error: raised by `ray.get`.
    """
    cause = error.cause if isinstance(error, RayTaskError) else None
    return cause if isinstance(cause, BaseException) else error


def text_of(error: BaseException) -> str:
    """Returns Ray's text of an error, with the traceback.

    Ray leaves out its own lines of code and ours, but not the carets below them.

    Args:
        error: raised by `ray.get`.
    """
    return re.sub(r"^(.*ray::.*\n)(?:[ ~]*\^[ ^~]*\n)+", r"\1", str(error), flags=re.MULTILINE)


def gather(
    refs: Sequence[Any], grace: float, on_failure: Callable[[int, Exception], object]
) -> list[Any]:
    """Returns the results of all ranks.

    Args:
        refs: one per rank.
        grace: seconds for the others to end after one has failed.
        on_failure: called with each rank that fails and its error.

    Raises:
        RanksFailed: at least one rank has failed.
    """
    rank_of = {ref: rank for rank, ref in enumerate(refs)}
    waiting = list(refs)
    results: dict[int, Any] = {}
    failures: dict[int, Exception] = {}
    until: float | None = None
    while waiting:
        timeout = None if until is None else max(0.0, until - time.monotonic())
        ready, waiting = ray.wait(waiting, num_returns=1, timeout=timeout)
        if not ready:
            break
        for ref in ready:
            try:
                results[rank_of[ref]] = ray.get(ref)
            except RayError as error:
                failures[rank_of[ref]] = error
                until = until or time.monotonic() + grace
                on_failure(rank_of[ref], error)
    if failures:
        raise RanksFailed(failures, sorted(rank_of[ref] for ref in waiting))
    return [results[rank] for rank in range(len(refs))]
