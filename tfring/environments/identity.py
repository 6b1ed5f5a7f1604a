"""Who this process is in its job, as its environment says; and how the ranks meet."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass


class IdentityError(RuntimeError):
    """The environment says half of what it has to say, or contradicts itself."""


class Meeting(enum.Enum):
    """How the ranks of a job find each other."""

    ALONE = "alone"
    RENDEZVOUS = "rendezvous"
    MPI = "mpi"


@dataclass(frozen=True)
class Identity:
    """One process's place in its job.

    Attributes:
        source: Name of the environment that said so, for messages.
        rank: World rank.
        size: Number of ranks; None when only MPI itself knows it (PMIx).
        meeting: How the ranks find each other.
        local_rank: Rank among the processes of this host, if the environment says it.
        local_size: Number of processes on this host, if the environment says it.
        address: Where rank 0 listens (meeting by rendezvous).
        port: The port for it.
        job_id: Keeps jobs that use the same address apart.
        public_seed: What the secret has to be derived from when none is given. Everybody on these
            machines can know it, so it keeps accidents out, not attackers.
    """

    source: str
    rank: int
    size: int | None
    meeting: Meeting
    local_rank: int | None = None
    local_size: int | None = None
    address: str | None = None
    port: int | None = None
    job_id: str = ""
    public_seed: str | None = None


def read_int(environ: Mapping[str, str], name: str, *, low: int = 0) -> int:
    """The whole number in a variable that has to be there.

    Raises:
        IdentityError: It is not a number, or below ``low``.
    """
    text = environ[name]
    try:
        number = int(text)
    except ValueError:
        number = low - 1
    if number < low:
        raise IdentityError(f'{name} is "{text}" and has to be a whole number from {low} on')
    return number


def read_optional_int(environ: Mapping[str, str], name: str, *, low: int = 0) -> int | None:
    """Like read_int; None where the variable is absent or empty."""
    return read_int(environ, name, low=low) if environ.get(name) else None


def require_all(environ: Mapping[str, str], names: tuple[str, ...], source: str) -> None:
    """Checks that a set of variables that has begun is whole.

    Raises:
        IdentityError: Names what is there and what is missing.
    """
    missing = [name for name in names if not environ.get(name)]
    if missing:
        present = [name for name in names if environ.get(name)]
        raise IdentityError(
            f"{' and '.join(present)} {'is' if len(present) == 1 else 'are'} set as {source} does, "
            f"but {' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing: set all "
            f"of {', '.join(names)}, or unset what is left over from elsewhere"
        )


def check_rank(source: str, rank: int, size: int | None) -> None:
    """Checks that a rank lies within its job.

    Raises:
        IdentityError: It does not.
    """
    if size is not None and not 0 <= rank < size:
        raise IdentityError(
            f"{source} says rank {rank} of {size} ranks, and ranks go from 0 to size - 1"
        )
