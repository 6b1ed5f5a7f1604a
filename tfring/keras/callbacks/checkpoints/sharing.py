"""Which ranks write and read a checkpoint: those that see the folder of rank 0."""

from __future__ import annotations

import dataclasses
import logging
import socket
from collections.abc import Sequence
from typing import Any

from tfring.checkpoint import Checkpointer
from tfring.keras.agreement import exchange, while_others_wait
from tfring.runtime import topology

_log = logging.getLogger("tfring")
_WRITERS = "tfring.checkpoint.writers"


@dataclasses.dataclass(frozen=True)
class Writers:
    """The ranks that write shares, as this rank knows them.

    Attributes:
        ranks: rank 0 is the first.
        sign: the file by which they were found. Ranks with another one, or none, were not asked.
        rank: of this process when they were found.
        size: of the job when they were found.
    """

    ranks: tuple[int, ...]
    sign: str
    rank: int
    size: int


def known_sign(checkpoints: Checkpointer) -> str | None:
    """Returns the sign by which this rank knows the writers; None if it has to ask again."""
    known: Writers | None = checkpoints.writers
    if known is None or (known.rank, known.size) != (topology.rank(), topology.size()):
        return None
    return known.sign


def able_writers(checkpoints: Checkpointer, ranks: Sequence[Any]) -> tuple[int, ...]:
    """Returns the ranks that write this checkpoint, at least one; a collective at times.

    Args:
        checkpoints: of this rank.
        ranks: the entries of all ranks that `save_checkpoint` exchanges.

    Raises:
        RuntimeError: no rank could write for as long as storages may fail; on every rank.
    """
    writers = _find_writers(checkpoints, [each["writers"] for each in ranks])
    if not all(each["leaves"] for each in ranks):
        writers = tuple(rank for rank in writers if rank == 0 or not ranks[rank]["leaves"])
    able = tuple(rank for rank in writers if not ranks[rank]["trouble"])
    if not able:  # no rank can write: all keep trying until the timeout
        failure = _failure_of(checkpoints)
        exchange(None, failure, _WRITERS, f"cannot save to {checkpoints}")
        able = writers
    return able[:1] if ranks[0]["root"]["again"] else able


def replace(checkpoints: Checkpointer, trouble: str) -> None:
    """Lets others write the share of this rank, and warns once."""
    if checkpoints.mark_replaced():
        _log.warning(
            "rank %d (host %s) cannot write to %s: %s. The other ranks write its share of the "
            "checkpoints until it can. Look at the storage of this host",
            topology.rank(),
            socket.gethostname(),
            checkpoints,
            trouble,
        )


def _find_writers(checkpoints: Checkpointer, signs: Sequence[str | None]) -> tuple[int, ...]:
    """Returns the ranks that see the folder of rank 0 and can write there; a collective.

    It remembers the result. If the `signs` of all ranks (see `known_sign`) are the same, no rank
    asks.
    """
    known: Writers | None = checkpoints.writers
    if known is not None and all(sign == known.sign for sign in signs):
        return known.ranks
    root = topology.rank() == 0
    sign, _ = while_others_wait(checkpoints.leave_sign if root else None)
    what = f"cannot save to {checkpoints}"
    sign = exchange(sign, None, _WRITERS, what)[0]
    if sign is None:  # the storage fails at present: rank 0 writes this one, and tries again
        return (0,)
    sees, _ = while_others_wait(lambda: root or checkpoints.sees(sign))
    answers = exchange(sees, None, _WRITERS, what)
    if root:
        checkpoints.remove_sign(sign)
    ranks = tuple(rank for rank, answer in enumerate(answers) if answer)
    checkpoints.writers = Writers(ranks, sign, topology.rank(), topology.size())
    return ranks


def _failure_of(checkpoints: Checkpointer) -> Exception | None:
    try:
        checkpoints.raise_failure()
    except Exception as error:
        return error
    return None
