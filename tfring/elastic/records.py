"""Generations as programs see them; the state machines have the same in C++."""

from __future__ import annotations

from typing import Any, NamedTuple


class Position(NamedTuple):
    """How far a state is. The one with more commits is ahead.

    Attributes:
        commit: Commits so far.
        step: The steps that they hold.
    """

    commit: int = 0
    step: int = 0


class Member(NamedTuple):
    """A worker in a generation.

    Attributes:
        worker: Its id, one for each life of a process.
        host: Its host, as the coordinator names it.
        slot: Its slot on the host, for life.
    """

    worker: int
    host: str
    slot: int


class Record(NamedTuple):
    """A generation: the same in all its members.

    Attributes:
        generation: Its number; numbers ascend, and none is used twice.
        nonce: 64 random bits that only its members know.
        members: Rank r is members[r].
        root: The first rank that is ahead of all others: its state is taken.
        position: Where the root is.
    """

    generation: int
    nonce: int
    members: tuple[Member, ...]
    root: int
    position: Position

    def rank_of(self, worker: int) -> int:
        """Returns the rank of a worker, -1 if it is no member."""
        return next((r for r, member in enumerate(self.members) if member.worker == worker), -1)


def record_of(made: Any) -> Record:
    """Returns a record of the binding as one for programs."""
    members = tuple(Member(one.worker, one.host, one.slot) for one in made.members)
    position = Position(made.position.commit, made.position.step)
    return Record(made.generation, made.nonce, members, made.root, position)
