"""Processes of an elastic job: the coordinator, not the environment, says which rank they are."""

from __future__ import annotations

import os
from collections.abc import Mapping, MutableMapping, Sequence
from typing import NamedTuple

from tfring.job.environments.identity import IdentityError, read_int, require_all

_SOURCE = "an elastic job"
_WORKER = "TFRING_X_ELASTIC_WORKER"
_NAMES = (_WORKER, "TFRING_X_ELASTIC_STORE", "TFRING_X_ELASTIC_HOST", "TFRING_X_ELASTIC_SLOT")
_FIRST = "TFRING_X_ELASTIC_FIRST"
PATIENCE = "TFRING_X_ELASTIC_PATIENCE"
# Descriptors of the memory in which the host of a worker keeps commits.
_MEMORY = "TFRING_X_ELASTIC_MEMORY"
MEMORY_NAME = "tfring commit"


class ElasticWorker(NamedTuple):
    """What the launcher of an elastic job tells a process."""

    worker: int  # the id of this process in the job; no other life of a process has it
    store_host: str  # host of the store through which it hears of the coordinator
    store_port: int  # its port
    host: str  # this host, as the coordinator names it
    slot: int  # its slot on this host, for life
    first: bool  # whether it was started for the first generation, and init waits for that
    # Descriptors of the memory in which its host keeps commits; (): there is none.
    memory: tuple[int, ...] = ()
    # Seconds to wait for a coordinator that may be restarted. 0: the coordinator ends with the
    # launcher, and the usual seconds count.
    patience: float = 0.0


class _Taken:
    """The worker that was taken out of the environment, and the process that took it."""

    pid = 0
    worker: ElasticWorker | None = None


def detect(environ: Mapping[str, str]) -> ElasticWorker | None:
    """Returns what the launcher of an elastic job has set, or None.

    IdentityError: variables are missing, or impossible.
    """
    if not environ.get(_WORKER):
        return None
    require_all(environ, _NAMES, _SOURCE)
    store = environ[_NAMES[1]]
    host, _, port = store.rpartition(":")
    if not host or not port.isdigit():
        raise IdentityError(f'{_NAMES[1]} is "{store}" and has to be host:port')
    return ElasticWorker(
        worker=read_int(environ, _WORKER, low=1),
        store_host=host.removeprefix("[").removesuffix("]"),
        store_port=int(port),
        host=environ[_NAMES[2]],
        slot=read_int(environ, _NAMES[3]),
        first=environ.get(_FIRST) == "1",
        memory=memory_in(environ),
        patience=float(environ.get(PATIENCE) or 0),
    )


def make_memory() -> tuple[int, ...]:
    """Returns descriptors of two new memory files, for all workers of this host."""
    return tuple(os.memfd_create(MEMORY_NAME) for _ in range(2))


def memory_variables(memory: Sequence[int]) -> dict[str, str]:
    """Returns the variables by which a worker finds these descriptors, which it inherits."""
    return {_MEMORY: ",".join(map(str, memory))} if memory else {}


def memory_in(environ: Mapping[str, str]) -> tuple[int, ...]:
    """Returns the descriptors that `memory_variables` has put into a worker's variables."""
    return tuple(int(one) for one in environ.get(_MEMORY, "").split(",") if one.isdigit())


def take_worker(environ: MutableMapping[str, str]) -> ElasticWorker | None:
    """Returns what `detect` does, and takes the worker's id out of the environment.

    Processes that this one starts are not that worker, and would be taken for it. Later calls
    return the same worker; forked children of it get None.
    """
    found = detect(environ)
    if found is not None:
        _Taken.pid, _Taken.worker = os.getpid(), found
        del environ[_WORKER]
    return _Taken.worker if _Taken.pid == os.getpid() else None
