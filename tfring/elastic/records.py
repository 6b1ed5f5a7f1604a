"""Generations as programs see them; the state machines have the same in C++."""

from __future__ import annotations

from typing import Any, NamedTuple


class Position(NamedTuple):
    """How far a state is. The one with more commits is ahead."""

    commit: int = 0  # commits so far
    step: int = 0  # the steps that they hold


class Member(NamedTuple):
    """A worker in a generation."""

    worker: int  # its id, one for each life of a process
    host: str  # its host, as the coordinator names it
    slot: int  # its slot on the host, for life


class Record(NamedTuple):
    """A generation: the same in all its members."""

    generation: int  # its number; numbers ascend, and none is used twice
    nonce: int  # 64 random bits that only its members know
    members: tuple[Member, ...]  # rank r is members[r]
    root: int  # the first rank that is ahead of all others: its state is taken
    position: Position  # where the root is

    def rank_of(self, worker: int) -> int:
        """Returns the rank of a worker, -1 if it is no member."""
        return next((r for r, member in enumerate(self.members) if member.worker == worker), -1)


def record_of(made: Any) -> Record:
    """Returns a record of the binding as one for programs."""
    members = tuple(Member(one.worker, one.host, one.slot) for one in made.members)
    position = Position(made.position.commit, made.position.step)
    return Record(made.generation, made.nonce, members, made.root, position)
