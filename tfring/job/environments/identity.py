"""The identity of a rank, and what the environments share to find it."""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping
from dataclasses import dataclass

# Of an id; a record has room for 64 bytes, and what tells generations apart comes behind it.
_MOST_ID = 40


class IdentityError(RuntimeError):
    """The variables are incomplete, impossible or contradict each other."""


class Rendezvous(enum.Enum):
    """How the ranks of a job find each other."""

    NONE = "none"  # a job of one rank
    TCP = "tcp"  # rank 0 listens at an address that all ranks know
    MPI = "mpi"  # through mpi4py
    STORE = "store"  # through a store that init was given


@dataclass(frozen=True)
class Identity:
    """The rank of a process in its job, and how it finds the other ranks."""

    source: str  # name of the environment that the values come from, for messages
    rank: int  # world rank
    size: int | None  # number of ranks; None when only MPI itself knows it (PMIx)
    rendezvous: Rendezvous  # how the ranks find each other
    # Rank among the processes of this host, if the environment gives it.
    local_rank: int | None = None
    local_size: int | None = None  # number of processes on this host, if the environment gives it
    # Where rank 0 listens (Rendezvous.TCP); the file of the store (Rendezvous.STORE), where init
    # was given no store itself.
    address: str | None = None
    port: int | None = None  # the port at that address
    fixed_port: bool = False  # whether the launcher has opened that port, so that no other is tried
    job_id: str = ""  # tells jobs apart that use the same address
    # Text that all ranks of the job have, and others may know. With TFRING_INSECURE the secret is
    # derived from it: against accidents, not attacks.
    public_seed: str | None = None
    # Whether the job has ranks on other hosts; None: the environment does not say.
    several_hosts: bool | None = None
    by_slurm: bool = False  # whether Slurm started the job
    # The same rank of the same job, meeting over TCP, should MPI not work.
    fallback: Identity | None = None


def plain_id(given: str) -> str:
    """Returns the id of a job as a file's name. The id is not trusted."""
    return re.sub(r"[^A-Za-z0-9.]+", "-", given)[:_MOST_ID].strip("-.")


def read_int(environ: Mapping[str, str], name: str, *, low: int = 0) -> int:
    """Reads a whole number from a variable that is set; IdentityError if it is none, or too low."""
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


def read_rank_and_size(
    environ: Mapping[str, str], source: str, names: tuple[str, ...]
) -> tuple[int, int]:
    """Reads the world rank and the number of ranks from the first two of several variables.

    All of these have to be set together. IdentityError: one is missing, or values are impossible.
    """
    require_all(environ, names, source)
    rank, size = read_int(environ, names[0]), read_int(environ, names[1], low=1)
    check_rank(source, rank, size)
    return rank, size


def require_all(environ: Mapping[str, str], names: tuple[str, ...], source: str) -> None:
    """Raises IdentityError, which names the set and the missing ones, if a variable is not set."""
    missing = [name for name in names if not environ.get(name)]
    if missing:
        present = [name for name in names if environ.get(name)]
        raise IdentityError(
            f"{' and '.join(present)} {'is' if len(present) == 1 else 'are'} set, as {source} "
            f"does, but {' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing: "
            f"set all of {', '.join(names)}, or unset those that are left over from another job"
        )


def check_rank(source: str, rank: int, size: int | None) -> None:
    """Raises IdentityError if a rank does not lie within its job."""
    if size is not None and not 0 <= rank < size:
        raise IdentityError(
            f"{source} says rank {rank} of {size} ranks, and ranks go from 0 to size - 1"
        )
