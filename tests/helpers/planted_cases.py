"""Jobs with one fault each, and what `tfring explain` has to say of it.

A case is a function that every rank runs on its own `Rank`. After `at_fault`, the job stays as it
is for the explanation; only ranks whose end is the fault have ended.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tfring.runtime import _native

core = _native.core
SUM = 1
FOREVER = 300.0


class Rank:
    """The argument of a case: this rank, and calls with the names of a small training loop."""

    def __init__(self, rank: int, size: int, ready: Callable[[], None]) -> None:
        self.rank = rank
        self.size = size
        self.at_fault = ready  # all ranks call it; then the runner asks for the explanation
        self.peers: dict[int, int] = {}  # descriptors of the data connections
        self.big = np.ones(1 << 18, np.float32)

    def loss(self) -> None:
        core.allreduce(np.ones(1, np.float32), name="loss", op=SUM)

    def grad(self) -> None:
        core.allreduce(np.ones(1 << 12, np.float32), name="grad", op=SUM)

    def metric(self) -> None:
        core.allgather(np.ones(2, np.float32), name="metric")

    def step(self, pause: float = 0.002) -> None:
        time.sleep(pause)
        self.loss()
        self.grad()
        self.metric()

    def steps(self, count: int = 5) -> None:
        for _ in range(count):
            self.step()

    def on_forever(self, pause: Callable[[], float] = lambda: 0.002) -> None:
        end = time.monotonic() + FOREVER
        while time.monotonic() < end:
            self.step(pause())


@dataclass(frozen=True)
class Case:
    """A planted fault.

    Attributes:
        name: Also the function's.
        body: The function that each rank runs.
        size: The number of ranks.
        causes: Names of causes; any of them is right.
        ranks: The ranks that the explanation names, and no others.
        signals: Sent to ranks when all are at the fault.
        wait: Seconds from there to the question.
        settings: Variables of the ranks' environment.
    """

    name: str
    body: Callable[[Rank], None]
    size: int
    causes: tuple[str, ...]
    ranks: tuple[int, ...]
    signals: dict[int, int] = field(default_factory=dict)
    wait: float = 1.7
    settings: dict[str, str] = field(default_factory=dict)
    says: tuple[str, ...] = ()


CASES: list[Case] = []


def case(size: int, causes: str, *ranks: int, **more: Any) -> Callable[[Any], Any]:
    """Adds a function to the cases."""

    def add(body: Callable[[Rank], None]) -> Callable[[Rank], None]:
        name = more.pop("name", body.__name__)
        CASES.append(Case(name, body, size, tuple(causes.split()), ranks, **more))
        return body

    return add
