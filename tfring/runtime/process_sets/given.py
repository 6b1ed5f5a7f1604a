"""What the arguments of init say about process sets."""

from __future__ import annotations

from typing import Any

from tfring.runtime.communicators import is_communicator, spans_world
from tfring.runtime.process_sets.process_set import ProcessSet


def job_and_sets(comm: Any) -> tuple[Any, list[Any]]:
    """Splits `comm` into the job and the communicators that process sets are made of.

    Args:
        comm: As init has it.
    """
    if comm is None or is_communicator(comm) or not hasattr(comm, "__iter__"):
        return comm, []
    members = list(comm)
    if members and all(is_communicator(member) for member in members):
        return None, [member for member in members if not spans_world(member)]
    return members, []


def given_sets(process_sets: Any) -> list[Any]:
    """Returns the process sets that init got.

    Args:
        process_sets: As init has it.

    Raises:
        ValueError: It is something else.
    """
    if process_sets is None:
        return []
    if isinstance(process_sets, str):
        if process_sets.lower() != "dynamic":
            raise ValueError(
                f'init(process_sets="{process_sets}"): a list of process sets, or "dynamic"'
            )
        return []
    given = list(process_sets)
    for process_set in given:
        if not isinstance(process_set, ProcessSet):
            raise ValueError(
                f"init(process_sets=...) holds {process_set!r}, which is no ProcessSet"
            )
    return given
