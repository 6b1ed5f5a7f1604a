"""The life of a job in this process: init and shutdown.

Importing this loads neither TensorFlow nor MPI.
"""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import logging
import multiprocessing
import os
import sys
import threading
from typing import Any

from tfring import _native, topology
from tfring.bootstrap.connect import Membership, connect_job
from tfring.bootstrap.inter_op_threads import ensure_inter_op_threads
from tfring.bootstrap.mpi_exchange import finalize, is_communicator, spans_world
from tfring.config import SettingError, Settings, read_settings
from tfring.environments import find_identity
from tfring.exceptions import described
from tfring.gpu.nccl import with_nccl
from tfring.logs import handler as logs
from tfring.metrics import generation as metrics
from tfring.observers.observers import Here
from tfring.observers.ours import OBSERVERS
from tfring.process_sets import ProcessSet, registry
from tfring.recorder.own import own_path
from tfring.recorder.places import end_job, record_options
from tfring.security import generation
from tfring.security.sources import take_secret
from tfring.signals import interrupts
from tfring.topology import is_initialized, size

_log = logging.getLogger("tfring")


class _State:
    """What the runtime does not know about the present job.

    Guarded by _lock; lives as long as the process.
    """

    pid: int | None = None  # the process that called init; None: none so far
    homogeneous = True
    by_mpi = False
    at_exit_registered = False


_lock = threading.RLock()
_state = _State()


def init(comm: Any = None, process_sets: Any = None) -> None:
    """Joins this process to its job and starts the runtime. A second call does nothing.

    Who we are comes from the environment: ``tfring run``, torchrun's variables, mpirun, srun,
    TF_CONFIG, else a single process. Blocks until all ranks of the job have called it.

    Args:
        comm: The job. None or an empty list: all processes that were launched. An mpi4py
            communicator: its processes, with their ranks in it; disjoint communicators make
            independent jobs. A list of launched ranks: these, renumbered from 0 in that order; only
            they call init. Without MPI the list has to contain rank 0, which runs the rendezvous. A
            list of communicators: all processes that were launched, with a process set for each
            (one of all processes adds none); `tfring.process_sets.registered()` has them.
        process_sets: Process sets to register, the same on all ranks where they are made of ranks;
            ranks are those of the job. "dynamic" or None: none yet. Sets can be added at any time.

    Raises:
        RuntimeError: The environment is contradictory, a rank did not come within
            TFRING_START_TIMEOUT seconds, the job has ranks on several hosts and no secret, or this
            process was forked from one that called init or started by a rank of several.
            MPI_Init itself, where it has not run yet, waits for all processes without a limit.
        ValueError: A setting has an impossible value, this process is not part of `comm`, or a
            process set is not possible, equal to another or not the same on all ranks.
    """
    job, by_communicator = _job_and_sets(comm)
    with _lock:
        _refuse_in_forked_child()
        if is_initialized():
            return
        if _started_by_a_rank():
            return
        wanted = [*map(ProcessSet, by_communicator), *_given_sets(process_sets)]
        settings = read_settings(os.environ)
        # Child processes do not inherit it; the next init needs it.
        settings = dataclasses.replace(settings, secret=take_secret(os.environ))
        metrics.check(settings)
        logs.set_up(settings.runtime)
        for warning in settings.unknown:
            _log.warning("%s", warning)
        identity = find_identity(os.environ, meeting=settings.meeting)
        membership = connect_job(identity, settings, os.environ, job, len(wanted))
        if membership.rank == 0:  # all ranks of a job have them
            for warning in settings.without_effect:
                _log.warning("%s", warning)
        _start(membership, settings)
        if membership.process_sets == 0:
            return
        try:
            registry.register_at_init(wanted)
        except BaseException:
            shutdown()
            raise


def _job_and_sets(comm: Any) -> tuple[Any, list[Any]]:
    """Splits `comm` into the job and the communicators that process sets are made of."""
    if comm is None or is_communicator(comm) or not hasattr(comm, "__iter__"):
        return comm, []
    members = list(comm)
    if members and all(is_communicator(member) for member in members):
        return None, [member for member in members if not spans_world(member)]
    return members, []


def _given_sets(process_sets: Any) -> list[Any]:
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


def _start(membership: Membership, settings: Settings) -> None:
    record = None
    if settings.record:
        first_of_host = membership.local_rank == 0
        record = record_options(membership.job, membership.rank, settings.record_dir, first_of_host)
    try:
        _native.core.init(
            rank=membership.rank,
            size=membership.size,
            local_rank=membership.local_rank,
            local_size=membership.local_size,
            cross_rank=membership.cross_rank,
            cross_size=membership.cross_size,
            hosts=membership.hosts,
            control_fds=membership.control_fds,
            data_fds=membership.data_fds,
            local_pids=membership.local_pids,
            control_keys=membership.control_keys,
            config=with_nccl(membership.runtime),
            start_timeout=settings.start_timeout,
            record=record,
        )
    except _native.core.CoreError as error:
        membership.free_group()
        message = str(getattr(error, "message", error))
        if message.startswith("TFRING_"):
            raise SettingError(message) from None
        raise
    _state.pid = os.getpid()
    path = (record or {}).get("path")
    topology.announce()
    _state.homogeneous = membership.homogeneous
    _state.by_mpi = membership.by_mpi
    generation.begin(membership.key)
    registry.begin_generation(membership.mpi_group)
    if not _state.at_exit_registered:
        atexit.register(_at_exit)
        _state.at_exit_registered = True
    if membership.size > 1:
        ensure_inter_op_threads()
        interrupts.watch()
    OBSERVERS.begin(Here(membership.rank, membership.size, membership.local_rank, path, settings))


def _refuse_in_forked_child() -> None:
    if _state.pid is not None and _state.pid != os.getpid():
        raise RuntimeError(
            f"this process was forked from process {_state.pid} after that had called "
            "tfring.init(): a forked child is no rank of its own. Start workers before init, or "
            'with multiprocessing.get_context("spawn"), and call tfring only in the parent'
        )


def _started_by_a_rank() -> bool:
    """Whether this process is a multiprocessing worker that imports the script of its rank.

    Such a worker would die of an error, and a pool would replace it for ever: it gets a warning.

    Raises:
        RuntimeError: A rank started this process otherwise.
    """
    message = topology.started_by()
    if not message:
        return False
    # As multiprocessing itself does to refuse a start of processes at that time.
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        _log.warning("init() does nothing: %s", message)
        return True
    raise RuntimeError(message)


def shutdown() -> None:
    """Leaves the job: running collectives end, waiting ones are cancelled, peers get a goodbye.

    Does nothing before init or when called twice; init may follow. Runs at exit by itself. Process
    sets other than the global one are no longer registered afterwards.
    """
    _leave("")


def _leave(error: str) -> None:
    """Shuts down; the errors of the other ranks name `error`, unless it is ""."""
    with contextlib.ExitStack() as afterwards, _lock:
        if _state.pid != os.getpid():
            return
        if not is_initialized():
            return
        afterwards.callback(OBSERVERS.afterwards)  # when the lock is free again
        interrupts.unwatch()
        path = own_path()
        with OBSERVERS.ending():
            _native.core.shutdown(error)
        if path is not None:
            end_job(str(path))
        topology.withdraw()
        registry.end_generation()
        generation.end()


def _at_exit() -> None:
    """Leaves the job and, after a run without an error, ends MPI. Never changes the exit code."""
    if _state.pid != os.getpid():
        return
    # The interpreter leaves the uncaught exception here; an interactive one leaves every exception.
    failure = getattr(sys, "last_value", None)
    interactive = hasattr(sys, "ps1")
    try:
        _leave("" if failure is None or interactive else described(failure))
    except Exception:
        _log.exception("the shutdown at exit failed")
        return
    if not _state.by_mpi or failure is not None:
        return
    # MPI_Finalize waits for all ranks, without a limit: one of them may still evaluate or save the
    # model, for hours. MPI's launcher ends the job if a rank dies instead.
    try:
        finalize()
    except Exception:
        _log.exception("MPI could not be finalised")


def is_homogeneous() -> bool:
    """Whether every host has the same number of processes. An error before init."""
    size()
    return _state.homogeneous


def mpi_enabled() -> bool:
    """Whether MPI brought the ranks together. Data does not go over MPI in this release."""
    return _state.by_mpi and is_initialized()
