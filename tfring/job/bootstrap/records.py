"""What every rank sends to all others when the job starts, and the topology computed from it."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import logging
import os
import platform
from dataclasses import dataclass
from importlib import metadata
from typing import Any

from tfring.job.bootstrap.hosts import (
    InterfaceAddress,
    host_identity,
    host_name,
    interface_addresses,
)
from tfring.job.bootstrap.job import FormedJob
from tfring.job.environments.identity import Identity, plain_id
from tfring.job.handshake.errors import BootstrapError
from tfring.job.security.errors import SecretError
from tfring.job.security.secret import ADVICE, fresh_secret
from tfring.runtime.settings.environment import Settings
from tfring.runtime.settings.table import SETTINGS
from tfring.version import __version__

_log = logging.getLogger("tfring")

# Key of a record, what it is the version of, and how many parts of the number have to be equal.
_MUST_BE_EQUAL = (
    ("version", "tfring", 9),
    ("python", "Python", 2),
    ("tensorflow", "TensorFlow", 2),
)


@dataclass(frozen=True)
class Record:
    """One rank's description of itself.

    from_json() checks its types, although it comes from a process that knows the secret.
    """

    rank: int
    host: str
    host_id: str
    pid: int
    version: str
    local_rank: int | None
    local_size: int | None
    mesh_limit: int
    nonce: str
    addresses: list[InterfaceAddress]
    settings: dict[str, str]
    process_sets: int = 0
    last_process_set: int = 0
    python: str = ""
    tensorflow: str = ""
    job_id: str = ""

    @staticmethod
    def of_this_process(
        identity: Identity, settings: Settings, process_sets: int = 0, last_process_set: int = 0
    ) -> Record:
        """Returns the record of this process."""
        return Record(
            rank=identity.rank,
            host=host_name(),
            host_id=host_identity(),
            pid=os.getpid(),
            version=__version__,
            local_rank=identity.local_rank,
            local_size=identity.local_size,
            mesh_limit=settings.mesh_limit,
            # All ranks use rank 0's.
            nonce=fresh_secret() if identity.rank == 0 else "",
            addresses=interface_addresses(),
            settings=dict(settings.runtime),
            process_sets=process_sets,
            last_process_set=last_process_set,
            python=platform.python_version(),
            tensorflow=_tensorflow_version(),
            # Other environments than Slurm have no id that is a job's alone.
            job_id=settings.job_id or (identity.job_id if identity.by_slurm else ""),
        )

    def to_json(self) -> dict[str, Any]:
        """Returns a JSON value."""
        return {**self.__dict__, "addresses": [a.to_json() for a in self.addresses]}

    @staticmethod
    def from_json(value: Any, rank: int) -> Record:
        """Reads what to_json() of rank ``rank`` returned; BootstrapError for anything else."""
        try:
            record = Record(
                rank=int(value["rank"]),
                host=str(value["host"]),
                host_id=str(value["host_id"]),
                pid=int(value["pid"]),
                version=str(value["version"]),
                local_rank=_optional(value["local_rank"]),
                local_size=_optional(value["local_size"]),
                mesh_limit=int(value["mesh_limit"]),
                nonce=str(value["nonce"]),
                addresses=[InterfaceAddress.from_json(a) for a in value["addresses"]],
                settings={SETTINGS[k].name: str(v) for k, v in value["settings"].items()},
                process_sets=int(value["process_sets"]),
                last_process_set=int(value["last_process_set"]),
                python=str(value["python"]),
                tensorflow=str(value["tensorflow"]),
                job_id=str(value["job_id"]),
            )
        except (KeyError, TypeError, ValueError, AttributeError):
            raise BootstrapError(f"rank {rank} sent a malformed record") from None
        if record.rank != rank:
            raise BootstrapError(f"rank {rank} describes itself as rank {record.rank}")
        return record


def exchange_records(
    job: FormedJob, settings: Settings, process_sets: int, last_process_set: int
) -> list[Record]:
    """Sends our record to all ranks and returns the records of all."""
    mine = Record.of_this_process(job.identity, settings, process_sets, last_process_set)
    values = job.exchange.allgather(mine.to_json())
    check_versions(values)
    records = [Record.from_json(value, rank) for rank, value in enumerate(values)]
    _check(records, job, settings)
    # A host that is given under several names has that of its first rank.
    names = {record.host_id: record.host for record in reversed(records)}
    return [dataclasses.replace(record, host=names[record.host_id]) for record in records]


def _check(records: list[Record], job: FormedJob, settings: Settings) -> None:
    """Checks that the job has the announced size, and a secret if it has several hosts."""
    identity = job.identity
    over_hosts = len({record.host_id for record in records}) > 1
    if job.one_host and over_hosts:
        raise SecretError(
            "the job has ranks on several hosts, and others may read the store through which they "
            "meet: set TFRING_SECRET_FILE to a file of mode 0600 or TFRING_SECRET to random text, "
            f"the same for all ranks ({ADVICE})"
        )
    if identity.size is not None and len(records) != identity.size:
        raise BootstrapError(
            f"{identity.source} announced {identity.size} ranks, and {len(records)} came"
        )
    if over_hosts and not job.secret and not settings.insecure and identity.rank == 0:
        _warn_of_open_key("MPI" if job.mpi_group is not None else "The store")


@functools.cache
def _warn_of_open_key(carrier: str) -> None:
    """Says once that the job's key can be read on its way between hosts."""
    _log.warning(
        "%s sends this job's key between hosts unencrypted. Anybody who can read that network can "
        "join the job and run code in its ranks. Set TFRING_SECRET_FILE to a file of mode 0600 "
        "with random text, the same on all hosts, or TFRING_INSECURE=1 if nobody else can read it",
        carrier,
    )


def check_versions(values: list[Any]) -> None:
    """Raises BootstrapError if two ranks have different versions, before records are parsed.

    Other versions of tfring may have other records. Objects that are pickled by one version of
    Python, and graphs of another TensorFlow, may not work on the other ranks.
    """
    for key, what, parts in _MUST_BE_EQUAL:
        first, *others = [".".join(_text(value, key).split(".")[:parts]) for value in values]
        for rank, version in enumerate(others, start=1):
            if version != first and "" not in (version, first):
                raise BootstrapError(
                    f"rank {rank} on host {_text(values[rank], 'host')} has {what} {version}, rank "
                    f"0 on host {_text(values[0], 'host')} has {first}: install the same version "
                    "everywhere"
                )


def _text(value: Any, key: str) -> str:
    return str(value.get(key, "")) if isinstance(value, dict) else ""


def _tensorflow_version() -> str:
    """Returns the version of the installed TensorFlow, without loading it; "" if there is none."""
    for name in ("tensorflow", "tensorflow-cpu", "tf-nightly", "tf-nightly-cpu"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            return metadata.version(name)
    return ""


def _optional(value: Any) -> int | None:
    return None if value is None else int(value)


@dataclass(kw_only=True)
class Topology:
    """A rank's position among the ranks of its host and across hosts."""

    local_rank: int
    local_size: int
    cross_rank: int
    cross_size: int
    homogeneous: bool  # whether each host has the same number of ranks


@dataclass(kw_only=True)
class JobFacts(Topology):
    """What one rank learns from the records of all."""

    rank: int
    size: int
    hosts: list[str]  # the name of each rank's host
    local_pids: dict[int, int]  # process ids of the other ranks of this host, by rank
    runtime: dict[str, str]  # the settings of the runtime that all ranks use, by name
    process_sets: int = 0  # the largest number of process sets that any rank gave to init
    last_process_set: int = 0  # the highest id that a process set has had on any rank
    # The job's id, where a launcher or the user has given it one, and a number that no other
    # generation has, in hexadecimal; not secret.
    job: str = ""


def facts_of(records: list[Record], rank: int) -> JobFacts:
    """Returns what the records of all ranks mean for one of them."""
    neighbours = [r for r in records if r.host_id == records[rank].host_id and r.rank != rank]
    return JobFacts(
        **vars(topology_of(records, rank)),
        rank=rank,
        size=len(records),
        hosts=[r.host for r in records],
        local_pids={r.rank: r.pid for r in neighbours},
        runtime=_agreed_settings(records, rank),
        process_sets=max(r.process_sets for r in records),
        last_process_set=max(r.last_process_set for r in records),
        job=job_name(records[0]),
    )


def topology_of(records: list[Record], rank: int) -> Topology:
    """Computes the topology as one rank sees it.

    Local ranks are the environment's if it has given one to every rank, else they follow the order
    of ranks on each host. The cross rank counts the ranks with the same local rank.
    """
    by_host: dict[str, list[int]] = {}
    for record in records:
        by_host.setdefault(record.host_id, []).append(record.rank)
    local_ranks, local_sizes = [], []
    for record in records:
        neighbours = by_host[record.host_id]
        local_ranks.append(neighbours.index(record.rank))
        local_sizes.append(len(neighbours))
    given_ranks = [r.local_rank for r in records if r.local_rank is not None]
    given_sizes = [r.local_size for r in records if r.local_size is not None]
    if len(given_ranks) == len(given_sizes) == len(records):
        local_ranks, local_sizes = given_ranks, given_sizes
    cross = [r for r, local in enumerate(local_ranks) if local == local_ranks[rank]]
    return Topology(
        local_rank=local_ranks[rank],
        local_size=local_sizes[rank],
        cross_rank=cross.index(rank),
        cross_size=len(cross),
        homogeneous=len(set(local_sizes)) == 1,
    )


def job_name(first: Record) -> str:
    """Returns the name of the job: its id, if it has one, and a number that no other job has."""
    number = hashlib.sha256(b"job" + first.nonce.encode()).hexdigest()[:12]
    given = plain_id(first.job_id)
    return f"{given}-{number}" if given else number


def _agreed_settings(records: list[Record], rank: int) -> dict[str, str]:
    """Returns rank 0's settings, which all ranks use so that they choose the same algorithms."""
    mine, first = records[rank].settings, records[0].settings
    for name, value in mine.items():
        if not SETTINGS[name].per_rank and first.get(name) != value:
            _log.warning(
                "%s is %s on rank %d and %s on rank 0: rank 0's setting counts for all",
                SETTINGS[name].variable,
                value,
                rank,
                first.get(name, "not set"),
            )
    agreed = {n: v for n, v in first.items() if not SETTINGS[n].per_rank}
    return agreed | {n: v for n, v in mine.items() if SETTINGS[n].per_rank}
