"""What all ranks decide alike while they train, and how they wait for a rank that is busy."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

import numpy as np

from tfring.collectives import objects
from tfring.ops import reduce_ops
from tfring.runtime import _native, topology
from tfring.runtime.exceptions import described, tf_errors

# Seconds between two questions: the price does not matter, and a stop still comes soon. At most
# _MOST_STEPS steps are between them.
_PERIOD = 1.0
_MOST_STEPS = 100
_FASTEST = 1e-6  # seconds of a step: a clock may show none
_BUSY_PERIOD = 1.0  # seconds

T = TypeVar("T")


class Agreement:
    """Asks all ranks about once a second: shall training stop, is a checkpoint due, and so on.

    A signal reaches ranks at different times, and clocks differ. So the ranks exchange a few
    numbers in one allreduce (about 0.1 ms on one host), after the same steps on all of them. The
    slowest rank's time per step is among the numbers. It says after how many steps they ask again:
    at most twice as many as before. The thread that trains uses it.
    """

    def __init__(self) -> None:
        self.begin(0)

    def begin(self, step: int) -> None:
        """Starts to count when training begins, after `step` steps."""
        self._asked_at, self._asked_step = time.monotonic(), step
        self._distance = 1

    def is_due(self, step: int) -> bool:
        """Returns whether to ask after this step; the same on all ranks."""
        return step >= self._asked_step + self._distance

    def ask(self, step: int, *wishes: bool) -> list[bool]:
        """Returns, for each wish (to stop, to save), whether any rank has it; a collective.

        `step` is the number of trained steps, the same on all ranks.
        """
        now = time.monotonic()
        per_step = (now - self._asked_at) / max(1, step - self._asked_step)
        agreed = highest([*wishes, max(per_step, _FASTEST)], "tfring.checkpoint.ask")
        steps = min(int(_PERIOD / agreed[-1]), 2 * self._distance, _MOST_STEPS)
        self._distance = max(1, steps)
        self._asked_at, self._asked_step = now, step
        return [bool(wish) for wish in agreed[:-1]]


def exchange(
    value: Any, failure: Exception | None, name: str, what: str, advice: str = ""
) -> list[Any]:
    """Returns the JSON values of all ranks; a collective.

    Args:
        value: of this rank.
        failure: the error of this rank, if it has failed.
        name: of the collective.
        what: what a rank that fails could not do, for the error: "cannot save to ...".
        advice: what to do then.

    Raises:
        RuntimeError: a rank has failed; on every rank.
    """
    mine = {"value": value, "failed": failure and described(failure)}
    everywhere: list[dict[str, Any]] = objects.allgather_json(mine, name=name)
    for rank, each in enumerate(everywhere):
        if each["failed"]:
            raise RuntimeError(
                f"rank {topology.rank()}: rank {rank} {what}: {each['failed']}"
                + (f". {advice}" if advice else "")
            ) from failure
    return [each["value"] for each in everywhere]


def highest(numbers: Sequence[float], name: str) -> list[float]:
    """Returns for each number the highest of all ranks; a collective with this name."""
    mine = np.array(numbers, dtype=np.float64)
    with tf_errors():
        _native.note_call_site()
        agreed: list[float] = _native.core.allreduce(mine, name=name, op=reduce_ops.Max).tolist()
    return agreed


class _Work(Generic[T]):
    """A call in a thread of its own, and how it has ended."""

    def __init__(self, call: Callable[[], T]) -> None:
        self._call = call
        self.result: T | None = None
        self.failure: Exception | None = None
        self.thread = threading.Thread(target=self._run, name="tfring-storage", daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            self.result = self._call()
        except Exception as error:
            self.failure = error


def while_others_wait(
    call: Callable[[], T] | None, *, finishes: bool = False
) -> tuple[T | None, Exception | None]:
    """Calls in a thread, and returns on all ranks when all calls have ended; a collective.

    A storage may take an hour. A rank that waited for it in one collective would count as stalled,
    and would end the job. So the ranks tell each other once a second that one is busy.

    Args:
        call: what this rank has to do; None for nothing.
        finishes: whether to wait for its end also when a rank is lost. Else it goes on by itself.

    Returns:
        The result of this rank's call, and its error.
    """
    work = None if call is None else _Work(call)
    try:
        while _is_busy(work):
            pass
    except Exception:
        if work is not None and finishes:
            work.thread.join()
        raise
    return (None, None) if work is None else (work.result, work.failure)


def _is_busy(work: _Work[T] | None) -> bool:
    """Returns whether a rank is busy, after a second at most; a collective."""
    if work is not None:
        work.thread.join(_BUSY_PERIOD)
    busy = work is not None and work.thread.is_alive()
    return bool(highest([busy], "tfring.checkpoint.busy")[0])
