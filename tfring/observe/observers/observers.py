"""Begins and ends what watches a rank, so that none of it can harm training."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from tfring.runtime.settings.environment import Settings

_log = logging.getLogger("tfring")


@dataclass(frozen=True)
class Here:
    """The rank that is watched.

    Attributes:
        rank: Its number in the job.
        size: The number of ranks of the job.
        local_rank: Its number on its host.
        hosts: The name of each rank's host.
        record: The file of its record; None: there is none.
        settings: From its environment.
    """

    rank: int
    size: int
    local_rank: int
    hosts: Sequence[str]
    record: str | None
    settings: Settings


def _nothing() -> None:
    pass


@dataclass(frozen=True)
class Observer:
    """One thing that watches. `leaving` and `end` are called even if `begin` failed.

    Attributes:
        name: For the warning if it fails.
        begin: Called when the runtime runs.
        leaving: Called before the runtime ends.
        end: Called after the runtime has ended; init may follow.
        drop: Called in place of `end` if the next init must not wait; None: `end` is quick.
        afterwards: Called last, when no lock is held: for what may take long. By then init may have
            been called on another thread.
    """

    name: str
    begin: Callable[[Here], None]
    leaving: Callable[[], None] = _nothing
    end: Callable[[], None] = _nothing
    afterwards: Callable[[], None] = _nothing
    drop: Callable[[], None] | None = None


class Observers:
    """Begins observers in their order and ends them in the reverse order.

    The caller's lock guards it, except `afterwards`.
    """

    def __init__(self, observers: Sequence[Observer]) -> None:
        self._observers = observers
        self._begun: list[Observer] = []

    def begin(self, here: Here) -> None:
        """Begins all of them. One that fails is a warning, and the others begin."""
        for observer in self._observers:
            self._begun.append(observer)
            with _as_warning(f"{observer.name} of rank {here.rank} could not begin"):
                observer.begin(here)

    @contextlib.contextmanager
    def ending(self) -> Iterator[None]:
        """Ends what has begun; the body ends the runtime."""
        begun, self._begun = self._begun[::-1], []
        for observer in begun:
            with _as_warning(f"{observer.name} could not prepare for the end"):
                observer.leaving()
        try:
            yield
        finally:
            for observer in begun:
                with _as_warning(f"{observer.name} could not end"):
                    observer.end()

    def drop(self) -> None:
        """Ends what has begun, after the runtime was abandoned, without waiting for anything."""
        begun, self._begun = self._begun[::-1], []
        for observer in begun:
            for step in (observer.leaving, observer.drop or observer.end):
                with _as_warning(f"{observer.name} could not end"):
                    step()

    def afterwards(self) -> None:
        """Does what observers do after their end; without a lock."""
        for observer in self._observers:
            with _as_warning(f"{observer.name} could not end"):
                observer.afterwards()


@contextlib.contextmanager
def _as_warning(what: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # whatever it is: training goes on without it
        _log.warning("%s: %s: %s", what, type(error).__name__, error, exc_info=True)
