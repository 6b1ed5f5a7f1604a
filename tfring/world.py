"""The job as a whole: init, shutdown, who and how many we are, process sets.

Importing this loads neither TensorFlow nor MPI.
"""

from __future__ import annotations

import atexit
import faulthandler
import importlib.util
import itertools
import logging
import os
import sys
import threading
from typing import Any

from tfring.bootstrap.start import Membership, bring_up
from tfring.config import Settings, read_settings
from tfring.environments import find_identity
from tfring.inter_op import ensure_inter_op_threads

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
    barriers = itertools.count()


_lock = threading.RLock()
_state = _State()


def _core() -> Any:
    """The compiled binding, loaded at first use."""
    from tfring._native import core

    return core


def init(comm: Any = None, process_sets: Any = None) -> None:
    """Joins this process to its job and starts the runtime. A second call does nothing.

    Who we are comes from the environment: ``tfring run``, torchrun's variables, mpirun, srun,
    TF_CONFIG, else a single process. Blocks until all ranks have called it.

    Args:
        comm: Only None so far: all processes of the job.
        process_sets: Only None (or an empty list) so far: the global process set.

    Raises:
        NotImplementedError: comm or process_sets is given.
        RuntimeError: The environment is contradictory, a rank did not come within
            TFRING_START_TIMEOUT seconds, the runtime refuses a setting, or this process was forked
            from one that called init. Under MPI the wait has no limit but the launcher's: MPI
            offers none.
        ValueError: A start-up setting has an impossible value.
    """
    if comm is not None:
        raise NotImplementedError(
            "init(comm=...) is not there yet: the job consists of all processes that were launched"
        )
    if process_sets:
        raise NotImplementedError(
            "init(process_sets=...) is not there yet: there is only the global process set"
        )
    with _lock:
        _refuse_in_forked_child()
        core = _core()
        if core.is_initialized():
            return
        settings = read_settings(os.environ)
        _set_log_level(settings)
        for warning in settings.unknown:
            _log.warning("%s", warning)
        membership = bring_up(find_identity(os.environ), settings, os.environ)
        _start(core, membership)


def _start(core: Any, membership: Membership) -> None:
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
    )
    _state.pid = os.getpid()
    _state.homogeneous = membership.homogeneous
    _state.by_mpi = membership.by_mpi
    _state.barriers = itertools.count()
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

    Does nothing before init or when called twice; init may follow. Runs at exit by itself.
    """
    with _lock:
        if _state.pid != os.getpid():
            return
        core = _core()
        if core.is_initialized():
            core.shutdown()


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
    from tfring.bootstrap.mpi_exchange import finalize

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


def barrier(process_set: Any = None) -> None:
    """Waits until all ranks have called it as often as this one.

    Args:
        process_set: Only None or the global process set so far.

    Raises:
        NotImplementedError: Another process set is given.
        tf.errors.UnavailableError: A rank was lost meanwhile; other errors as for collectives.
    """
    if process_set is not None and process_set.process_set_id != 0:
        raise NotImplementedError(
            "barrier over another process set than the global is not there yet"
        )
    from tfring.exceptions import tf_errors

    with tf_errors():
        _core().barrier(name=f"barrier.{next(_state.barriers)}")


def mpi_enabled() -> bool:
    """Whether MPI brought the ranks together. Data does not go over MPI in this release."""
    return _state.by_mpi and is_initialized()


def mpi_built() -> bool:
    """Whether jobs can be started under mpirun: whether mpi4py is installed."""
    return importlib.util.find_spec("mpi4py") is not None


def mpi_threads_supported() -> bool:
    """Whether MPI is in use and allows calls from several threads at once."""
    from tfring.bootstrap.mpi_exchange import threads_supported

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
