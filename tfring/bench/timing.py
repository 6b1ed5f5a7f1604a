"""Times candidates side by side: they take turns, because the speed of a machine changes."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from typing import Protocol, TypeAlias

import numpy as np

from tfring.bench.samples import Array

LEAST_ROUNDS = 3

# Makes so many calls, and returns for how many milliseconds each kept this rank.
Turn: TypeAlias = Callable[[int], list[float]]


class Sync(Protocol):
    """What the ranks of a measurement do together."""

    def barrier(self) -> None:
        """Waits until all ranks are here, and leaves at the same time as they do."""

    def slowest(self, values: Array) -> Array:
        """Returns the largest value of all ranks, for each element."""


def timed(barrier: Callable[[], None], call: Callable[[], object]) -> Turn:
    """Returns the turn of a function that is called in this process.

    Args:
        barrier: Brings the ranks together before each call.
        call: What is timed.
    """

    def turn(calls: int) -> list[float]:
        took = []
        # Of several calls the first is not counted: another candidate's data is in the caches.
        for number in range(calls + (calls > 1)):
            barrier()
            started = time.perf_counter()
            call()
            if number or calls == 1:
                took.append((time.perf_counter() - started) * 1e3)
        return took

    return turn


def timed_alone(sync: Sync, first: bool, call: Callable[[], object]) -> Turn:
    """Returns the turn of a function that one rank calls while the others sleep.

    Args:
        sync: Brings the ranks together before the turn.
        first: Whether this is the rank.
        call: What is timed.
    """

    def turn(calls: int) -> list[float]:
        sync.barrier()
        return timed(lambda: None, call)(calls) if first else [0.0] * calls

    return turn


def alternate(
    sync: Sync,
    turns: Mapping[str, Turn],
    rounds: int,
    *,
    calls: int = 1,
    warmup: int = 3,
    seconds: float = math.inf,
) -> dict[str, Array]:
    """Times every candidate once in each round.

    Args:
        sync: The ranks.
        turns: What to time, by name; all ranks give the same names in the same order.
        rounds: How many rounds are timed.
        calls: How many calls a candidate makes when it is its turn.
        warmup: How many rounds run before them without being timed.
        seconds: About how long all of it may take; LEAST_ROUNDS are made even so.

    Returns:
        For each name the milliseconds of the slowest rank, by round and call; the same everywhere.
    """
    times: dict[str, list[list[float]]] = {name: [] for name in turns}
    names = list(turns)
    number, began = -warmup, time.perf_counter()
    started = began
    while number < rounds:
        if number == -1:
            started = time.perf_counter()
        elif number == 0 and warmup and math.isfinite(seconds):
            now = time.perf_counter()
            took, spent = sync.slowest(np.array([now - started, now - began])).tolist()
            rounds = max(LEAST_ROUNDS, min(rounds, int((seconds - spent) / took)))
        # Another candidate is first in each round, so that none always follows the same one.
        shift = number % len(names)
        for name in names[shift:] + names[:shift]:
            took_here = turns[name](calls)
            if number >= 0:
                times[name].append(took_here)
        number += 1
    return {name: sync.slowest(np.array(took)) for name, took in times.items()}
