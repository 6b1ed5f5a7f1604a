"""The job as a whole: init, shutdown, who and how many we are, process sets.

Importing this loads neither TensorFlow nor MPI.
"""

from __future__ import annotations

import atexit
import faulthandler
import importlib.util
import logging
import os
import sys
import threading
from typing import Any

from tfring.bootstrap.connect import Membership, connect_job
from tfring.bootstrap.inter_op_threads import ensure_inter_op_threads
from tfring.bootstrap.mpi_exchange import (
    finalize,
    free_group,
    is_communicator,
    is_null,
    ranks_in,
    spans_world,
    threads_supported,
)
from tfring.config import SettingError, Settings, read_settings
from tfring.environments import find_identity

_log = logging.getLogger("tfring")

# How long MPI may take to end after a run without an error before the process ends itself.
_FINALIZE_SECONDS = 30.0


class _State:
    """What the runtime does not know about the present membership.

    Guarded by _lock; lives as long as the process.
    """

    pid: int | None = None  # who called init; None: nobody so far
    homogeneous = True
    by_mpi = False
    at_exit_registered = False
    mpi_group: Any = None  # of the job's ranks, where MPI brought them together


_lock = threading.RLock()
_state = _State()


def _core() -> Any:
    """The compiled binding, loaded at first use."""
    from tfring._native import core

    return core


def init(comm: Any = None, process_sets: Any = None) -> None:
    """Joins this process to its job and starts the runtime. A second call does nothing.

    Who we are comes from the environment: ``tfring run``, torchrun's variables, mpirun, srun,
    TF_CONFIG, else a single process. Blocks until all ranks of the job have called it.

    Args:
        comm: The job. None or an empty list: all processes that were launched. An mpi4py
            communicator: its processes, with their ranks in it; disjoint communicators make
            independent jobs. A list of launched ranks: these, renumbered from 0 in that order; only
            they call init. Without MPI one of them is rank 0, where they meet. A list of
            communicators: all processes that were launched, with a process set for each (one of
            all processes adds none); `tfring.process_sets.registered()` has them.
        process_sets: Process sets to register, the same on all ranks where they are made of ranks;
            ranks are those of the job. "dynamic" or None: none yet. Sets can be added at any time.

    Raises:
        RuntimeError: The environment is contradictory, a rank did not come within
            TFRING_START_TIMEOUT seconds, or this process was forked from one that called init.
            MPI_Init itself, where it has not run yet, waits for all processes without a limit.
        ValueError: A setting has an impossible value, this process is not part of `comm`, or a
            process set is not possible, equal to another or not the same on all ranks.
    """
    from tfring import process_sets as sets

    job, by_communicator = _job_and_sets(comm)
    with _lock:
        _refuse_in_forked_child()
        core = _core()
        if core.is_initialized():
            return
        wanted = [*map(sets.ProcessSet, by_communicator), *_given_sets(process_sets)]
        settings = read_settings(os.environ)
        _set_log_level(settings)
        for warning in settings.unknown:
            _log.warning("%s", warning)
        membership = connect_job(find_identity(os.environ), settings, os.environ, job, len(wanted))
        _start(core, membership, settings)
        sets.forget_all()
        if membership.process_sets == 0:
            return
        try:
            sets.register_at_init(wanted)
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
    from tfring.process_sets import ProcessSet

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


def ranks_of_communicator(comm: Any) -> list[int] | None:
    """The ranks in the job of a communicator's processes, ascending; None for COMM_NULL.

    Raises:
        ValueError: It has processes outside of the job, or MPI did not start the job.
    """
    if is_null(comm):
        return None
    if _state.mpi_group is None:
        if size() == comm.size == 1:
            return [0]
        raise ValueError(
            "process sets are made from communicators only where MPI brought the job together: "
            "start it with mpirun, or make them of ranks"
        )
    return ranks_in(_state.mpi_group, comm)


def _start(core: Any, membership: Membership, settings: Settings) -> None:
    from tfring.exceptions import CoreError

    try:
        core.init(
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
            config=membership.runtime,
            start_timeout=settings.start_timeout,
        )
    except CoreError as error:
        membership.free_group()
        message = str(getattr(error, "message", error))
        if message.startswith("TFRING_"):
            raise SettingError(message) from None
        raise
    _state.pid = os.getpid()
    _state.homogeneous = membership.homogeneous
    _state.by_mpi = membership.by_mpi
    _state.mpi_group = membership.mpi_group
    if not _state.at_exit_registered:
        atexit.register(_at_exit)
        _state.at_exit_registered = True
    if membership.size > 1:
        ensure_inter_op_threads()


def _refuse_in_forked_child() -> None:
    if _state.pid is not None and _state.pid != os.getpid():
        raise RuntimeError(
            f"this process was forked from process {_state.pid} after that had called "
            "tfring.init(): a forked child is no rank of its own. Start workers before init, or "
            'with multiprocessing.get_context("spawn"), and call tfring only in the parent'
        )


def _set_log_level(settings: Settings) -> None:
    text = settings.runtime.get("LOG_LEVEL", "").lower()
    names = ["trace", "debug", "info", "warning", "error"]
    level = int(text) if text.isdigit() else names.index(text) if text in names else None
    if level is None:
        return
    _log.setLevel(max(1, level * 10))
    if level < 3 and not _log.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("tfring: %(message)s"))
        _log.addHandler(handler)


def shutdown() -> None:
    """Leaves the job: what is under way ends, what waits is cancelled, peers hear a goodbye.

    Does nothing before init or when called twice; init may follow. Runs at exit by itself. Process
    sets other than the global one are no longer registered afterwards.
    """
    from tfring.process_sets import forget_all

    with _lock:
        if _state.pid != os.getpid():
            return
        core = _core()
        if not core.is_initialized():
            return
        core.shutdown()
        forget_all()
        if _state.mpi_group is not None:
            free_group(_state.mpi_group)
            _state.mpi_group = None


def _at_exit() -> None:
    """Ends the membership and, after a run without an error, MPI. Never changes the exit code."""
    if _state.pid != os.getpid():
        return
    try:
        shutdown()
    except Exception:
        _log.exception("the shutdown at exit failed")
        return
    failed = getattr(sys, "last_type", None) is not None
    if not _state.by_mpi or failed:
        return
    # MPI_Finalize waits for all ranks. If one is gone without saying so, a traceback and a non-zero
    # exit code are better than waiting for ever; a Python thread could not be started any more.
    faulthandler.dump_traceback_later(_FINALIZE_SECONDS, exit=True, file=2)
    try:
        finalize()
    except Exception:
        _log.exception("MPI could not be finalised")
    faulthandler.cancel_dump_traceback_later()


def is_initialized() -> bool:
    """Whether init has been called, and shutdown has not."""
    return bool(_core().is_initialized())


def rank() -> int:
    """Our rank in the job, from 0 to size() - 1. An error before init."""
    return int(_core().rank())


def size() -> int:
    """The number of ranks in the job. An error before init."""
    return int(_core().size())


def local_rank() -> int:
    """Our rank among the processes on this host. An error before init."""
    return int(_core().local_rank())


def local_size() -> int:
    """The number of the job's processes on this host. An error before init."""
    return int(_core().local_size())


def cross_rank() -> int:
    """Our rank among the processes with our local rank on all hosts. An error before init."""
    return int(_core().cross_rank())


def cross_size() -> int:
    """The number of hosts that have a process with our local rank. An error before init."""
    return int(_core().cross_size())


def is_homogeneous() -> bool:
    """Whether every host has the same number of processes. An error before init."""
    size()
    return _state.homogeneous


def barrier(process_set: Any = None) -> Any:
    """Waits until all ranks of a process set have called it as often as this one.

    In a tf.function or a TF1 graph it builds an op that waits when it runs.

    Args:
        process_set: None is the global one.

    Returns:
        None, or the op.

    Raises:
        ValueError: The process set is not registered.
        tf.errors.UnavailableError: A rank was lost meanwhile; other errors as for collectives.
    """
    from tfring import process_sets as sets

    chosen = sets.global_process_set if process_set is None else process_set
    number = sets.checked_id(chosen)
    # A TensorFlow that is just being imported has no such function yet, and no graph.
    executing_eagerly = getattr(sys.modules.get("tensorflow"), "executing_eagerly", None)
    if executing_eagerly is not None and not executing_eagerly():
        from tfring.collectives.sync import barrier_op

        return barrier_op(process_set=chosen)
    from tfring.exceptions import tf_errors

    # One name for all, because a rank that has joined takes part in fewer: threads wait in turn.
    with chosen.barrier_lock, tf_errors():
        _core().barrier(name="tfring.barrier", process_set=number)
    return None


def mpi_enabled() -> bool:
    """Whether MPI brought the ranks together. Data does not go over MPI in this release."""
    return _state.by_mpi and is_initialized()


def mpi_built() -> bool:
    """Whether jobs can be started under mpirun: whether mpi4py is installed."""
    return importlib.util.find_spec("mpi4py") is not None


def mpi_threads_supported() -> bool:
    """Whether MPI is in use and allows calls from several threads at once."""
    return threads_supported()


def gloo_enabled() -> bool:
    """False: tfring has its own transports instead of Gloo."""
    return False


def gloo_built() -> bool:
    """False: tfring has its own transports instead of Gloo."""
    return False


def nccl_built() -> int:
    """The version of NCCL that collectives can use; 0, because this release has no NCCL backend."""
    return 0


def cuda_built() -> bool:
    """False: this release reduces in host memory."""
    return False


def rocm_built() -> bool:
    """False: this release reduces in host memory."""
    return False


def ccl_built() -> bool:
    """False: there is no oneCCL backend."""
    return False


def ddl_built() -> bool:
    """False: there is no DDL backend."""
    return False
