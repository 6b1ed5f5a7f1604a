"""Which parts of sharded states go where when the ranks of an elastic job change.

Each rank has its part of the states, and copies of the parts of some others. A *version* is the
parts of all ranks after one commit. After a change

1. `choose` finds the newest version that is complete;
2. `plan` says which elements travel from which rank to which.

All ranks call both with the same arguments, and so come to the same result.
"""

from __future__ import annotations

import bisect
from collections.abc import Collection, Sequence
from typing import Generic, NamedTuple, TypeVar

Range = tuple[int, int]  # the first element, and the one behind the last
Part = TypeVar("Part")


class Version(NamedTuple):
    """Which version of the states a part belongs to. A higher one is newer."""

    commit: int
    generation: int  # of the job, in which the parts were made
    ranks: int  # of that generation


class Held(NamedTuple):
    """What a rank has of a version."""

    version: Version
    parts: Sequence[int]  # the ranks of that generation whose parts it has


class Versions(Generic[Part]):
    """The versions that a rank keeps. It forgets one only when all ranks have a newer one."""

    def __init__(self) -> None:
        """Has none."""
        self.kept: list[tuple[Version, dict[int, Part]]] = []  # the newest last

    def held(self) -> list[Held]:
        """Returns what this rank has."""
        return [Held(version, sorted(parts)) for version, parts in self.kept]

    def parts_of(self, version: Version) -> dict[int, Part]:
        """Returns what this rank has of a version, by rank of its generation."""
        return next((parts for one, parts in self.kept if one == version), {})

    def add(self, version: Version, parts: dict[int, Part]) -> None:
        """Adds that of a commit. All ranks have the one before, and perhaps not yet this one."""
        self.kept = [*self.kept[-1:], (version, parts)]

    def settle(self) -> None:
        """Forgets all but the newest: all ranks have it."""
        del self.kept[:-1]

    def move(self, before: Version, version: Version, parts: dict[int, Part]) -> None:
        """Adds the version that was made of an earlier one, which other ranks may still need."""
        self.kept = [one for one in self.kept if one[0] == before]
        self.kept.append((version, parts))


class Offer(NamedTuple):
    """What a rank has."""

    lineage: int  # of the training; 0: it has not begun here
    commit: int  # that its weights are of
    steps: int  # that its optimizers have done
    held: Sequence[Held]


class Choice(NamedTuple):
    """What the ranks go on with."""

    version: Version | None  # None: the states have their initial values
    held: Sequence[Collection[int]]  # the parts of it that each rank has
    root: int | None = None  # a rank whose weights are of it; None: any rank's may be taken
    lost: Sequence[int] = ()  # if no version is complete: ranks whose parts of this one are missing


class Move(NamedTuple):
    """A range of elements of one state, from one rank to another, or within one."""

    state: int
    first: int
    last: int
    source: int  # the rank of the earlier generation whose part has it
    target: int  # the present rank whose part gets it
    sender: int
    receiver: int


def choose(offers: Sequence[Offer]) -> Choice:
    """Returns the newest version that is complete.

    A commit has returned on a rank only if all ranks of its generation have this version, so no
    later loss of ranks makes an earlier version the newest one, unless a part has no holder left.

    Args:
        offers: one of each present rank.
    """
    _, commit, lineage = max((o.lineage != 0, o.commit, o.lineage) for o in offers)
    if lineage == 0:
        return _first(offers)
    found: dict[Version, list[Collection[int]]] = {}
    for rank, offer in enumerate(offers):
        for version, parts in offer.held if offer.lineage == lineage else ():
            found.setdefault(version, [()] * len(offers))[rank] = parts
    everything = range(len(offers))
    newest = Choice(Version(commit, 0, len(offers)), (), lost=everything)
    for version in sorted(found, reverse=True):
        held = found[version]
        missing = sorted(set(range(version.ranks)).difference(*held))
        roots = [
            rank
            for rank, offer in enumerate(offers)
            if offer.lineage == lineage
            and offer.commit == version.commit
            and any(held_here.version == version for held_here in offer.held)
        ]
        if roots and not missing:
            return Choice(version, held, roots[0])
        if newest.lost is everything:
            newest = Choice(version, held, lost=missing or range(version.ranks))
    if not any(offer.steps for offer in offers):  # no step has been done: nothing is lost
        return Choice(None, ())
    return newest


def _first(offers: Sequence[Offer]) -> Choice:
    """Returns what the ranks begin with. Each of them has one version at most."""
    if not any(offer.steps for offer in offers):
        return Choice(None, ())
    ranks = range(len(offers))
    versions = {held.version for offer in offers for held in offer.held}
    parts = [tuple(part for held in offer.held for part in held.parts) for offer in offers]
    if len(versions) == 1 and parts == [(rank,) for rank in ranks]:
        [version] = versions
        if version.ranks == len(offers):
            _refuse_different_steps(offers)
            return Choice(version, parts)
    # The ranks were started alone, and the first one counts.
    for version, _ in offers[0].held:
        if version.ranks == 1:
            return Choice(version, [(0,), *([()] * (len(offers) - 1))], root=0)
        return Choice(version, parts, lost=sorted(set(range(version.ranks)).difference(*parts)))
    return Choice(None, ())


def _refuse_different_steps(offers: Sequence[Offer]) -> None:
    """Raises RuntimeError if the parts of some ranks are of another training."""
    steps = [offer.steps for offer in offers]
    if len(set(steps)) > 1:
        said = ", ".join(map(str, steps))
        raise RuntimeError(
            f"optimizers with shard_states=True have done different numbers of steps: {said} (of "
            "rank 0 and the next ones).\nLoad the model on all ranks, because each has a part of "
            "the states."
        )


def holders(hosts: Sequence[str]) -> list[list[int]]:
    """Returns for each rank those that keep a copy of its part: one, if there are other ranks.

    It is on another host, if there is one; else it is the next rank.

    Args:
        hosts: the host of each rank. Ranks of one host have numbers in a row.
    """
    count = len(hosts)
    if count == 1:
        return [[]]
    found = []
    for rank in range(count):
        after = [(rank + step) % count for step in range(1, count)]
        others = [other for other in after if hosts[other] != hosts[rank]]
        # So that the ranks of one host have different holders.
        place = sum(host == hosts[rank] for host in hosts[:rank])
        found.append([others[place % len(others)] if others else after[0]])
    return found


def plan(
    before: Sequence[Sequence[Range]],
    after: Sequence[Sequence[Range]],
    held: Sequence[Collection[int]],
    wanted: Sequence[Sequence[int]],
) -> list[Move]:
    """Returns how each present rank gets the parts that it shall have.

    A rank takes what it has from itself. Anything else is sent to it once, by the rank that has
    sent least of those that have it.

    Args:
        before: for each state the range of each rank of the earlier generation.
        after: for each state the range of each present rank.
        held: for each present rank, whose earlier parts it has.
        wanted: for each present rank, whose present parts it shall have.
    """
    having = [
        [rank for rank, parts in enumerate(held) if source in parts]
        for source in range(len(before[0]) if before else 0)
    ]
    sent = [0] * len(held)
    moves = []
    for state, (ranges, new) in enumerate(zip(before, after, strict=True)):
        sources = sorted((*limits, rank) for rank, limits in enumerate(ranges) if limits[1])
        ends = [last for _, last, _ in sources]
        for receiver, targets in enumerate(wanted):
            for target in targets:
                begin, end = new[target]
                for first, last, source in sources[bisect.bisect_right(ends, begin) :]:
                    low, high = max(first, begin), min(last, end)
                    if low >= high:
                        break
                    among = having[source]
                    sender = receiver
                    if receiver not in among:
                        sender = min(among, key=sent.__getitem__)
                        sent[sender] += high - low
                    moves.append(Move(state, low, high, source, target, sender, receiver))
    return moves
