"""The table of programs, and the expected outcome of each."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

PROGRAMS: dict[str, Program] = {}


@dataclasses.dataclass(frozen=True)
class Program:
    """A program for any number of ranks.

    `run` returns the trained arrays, or (arrays, expected arrays). Without expected arrays,
    a run in one process on all data gives them.
    """

    name: str
    run: Callable[[], Any]
    is_right: bool
    # Regular expressions; what tfring says has to match all of them. Without any, the program has
    # to be equal to one process.
    words: tuple[str, ...] = ()
    # Only the end of the process can tell: nothing was wrong before.
    at_end: bool = False
    quick: bool = False

    @property
    def theme(self) -> str:
        """The file of the program."""
        return self.run.__module__.rpartition(".")[2]


def wrong(
    *words: str, at_end: bool = False, quick: bool = False
) -> Callable[[Callable[[], Any]], Callable[[], Any]]:
    """Adds a wrong program: tfring corrects it, or says `words`."""

    def enter(run: Callable[[], Any]) -> Callable[[], Any]:
        _enter(Program(run.__name__, run, False, words, at_end, quick))
        return run

    return enter


def right(*, quick: bool = False) -> Callable[[Callable[[], Any]], Callable[[], Any]]:
    """Adds a correct program: tfring says nothing."""

    def enter(run: Callable[[], Any]) -> Callable[[], Any]:
        _enter(Program(run.__name__, run, True, quick=quick))
        return run

    return enter


def _enter(program: Program) -> None:
    if program.name in PROGRAMS:
        raise ValueError(f"two programs are called {program.name}")
    PROGRAMS[program.name] = program
