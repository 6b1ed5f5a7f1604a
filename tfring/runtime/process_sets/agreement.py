"""Which process sets the ranks register when every rank proposes a list of its own.

Sets that are lists of ranks have to be the same everywhere. Sets made from communicators need not:
after MPI_Comm_split every rank holds another one. So every rank sends its list to all, and all
compute the same result from the same lists: the distinct sets in the order of their place in the
lists, and at one place in the order of the ranks that proposed them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class SetProposal:
    """The list of sets that one rank proposes.

    Attributes:
        sets: The ranks of each set; None for COMM_NULL, a communicator that others are part of.
        by_comm: Whether it was a communicator, for each set.
        error: Why the list is useless, or None.
    """

    sets: list[list[int] | None] = field(default_factory=list)
    by_comm: list[bool] = field(default_factory=list)
    error: str | None = None

    def encode(self) -> str:
        """As one line of ASCII."""
        return json.dumps([self.sets, self.by_comm, self.error])


def decode(line: str) -> SetProposal:
    """The proposal that `encode` made into this line."""
    return SetProposal(*json.loads(line))


def agree(proposals: Sequence[SetProposal]) -> list[list[list[int]]]:
    """Returns the sets to register.

    Args:
        proposals: One for each rank, in order of rank.

    Returns:
        For every place in the lists the distinct sets that ranks proposed there, in the order to
        register them in.

    Raises:
        ValueError: The ranks disagree, a set is not possible, or two are equal; the same on every
            rank.
    """
    for rank, own in enumerate(proposals):
        if own.error is not None:
            raise ValueError(f"rank {rank}: {own.error}")
    for rank, own in enumerate(proposals):
        if len(own.sets) != len(proposals[0].sets):
            raise ValueError(
                f"rank 0 passed {len(proposals[0].sets)} process sets and rank {rank} "
                f"{len(own.sets)}: all ranks pass as many (COMM_NULL where a rank is not part)"
            )
    everybody = list(range(len(proposals)))
    seen = {tuple(everybody): "the global process set"}
    places = []
    for place in range(len(proposals[0].sets)):
        distinct = _at_place(proposals, place)
        for ranks in distinct:
            _check_ranks(ranks, len(proposals), place)
            equal = seen.get(tuple(ranks))
            if equal is not None:
                raise ValueError(f"process set {place}, {ranks}, is equal to {equal}")
        seen.update({tuple(ranks): f"process set {place}" for ranks in distinct})
        places.append(distinct)
    return places


def _at_place(proposals: Sequence[SetProposal], place: int) -> list[list[int]]:
    first = proposals[0]
    distinct: list[list[int]] = []
    for rank, own in enumerate(proposals):
        ranks = own.sets[place]
        if own.by_comm[place] != first.by_comm[place]:
            raise ValueError(
                f"process set {place} is made {_source(first, place)} on rank 0 and "
                f"{_source(own, place)} on rank {rank}: make it the same way everywhere"
            )
        if not own.by_comm[place] and ranks != first.sets[place]:
            raise ValueError(
                f"process set {place} has the ranks {first.sets[place]} on rank 0 and {ranks} on "
                f"rank {rank}: all ranks pass the same sets in the same order"
            )
        if ranks is not None and ranks not in distinct:
            distinct.append(ranks)
    for ranks in distinct if first.by_comm[place] else []:
        for member in ranks:
            if proposals[member].sets[place] != ranks:
                raise ValueError(
                    f"process set {place} is a communicator of the ranks {ranks}, but rank "
                    f"{member} of them passed {proposals[member].sets[place] or 'COMM_NULL'} there"
                )
    if not distinct:
        raise ValueError(f"process set {place} is COMM_NULL on every rank")
    return distinct


def _source(own: SetProposal, place: int) -> str:
    return "from a communicator" if own.by_comm[place] else "of ranks"


def _check_ranks(ranks: list[int], size: int, place: int) -> None:
    unknown = [rank for rank in ranks if not 0 <= rank < size]
    if unknown:
        raise ValueError(
            f"process set {place}, {ranks}, names rank {unknown[0]}, but ranks go from 0 to "
            f"{size - 1}"
        )


def own_set(places: list[list[list[int]]], own: SetProposal, place: int) -> list[int] | None:
    """The ranks of the set that one of a rank's entries became.

    An entry that is COMM_NULL becomes the one set that the other ranks made at its place; None if
    they made several there.

    Args:
        places: From agree.
        own: The rank's proposal.
        place: Which of its entries.
    """
    ranks = own.sets[place]
    if ranks is None and len(places[place]) == 1:
        ranks = places[place][0]
    return ranks
