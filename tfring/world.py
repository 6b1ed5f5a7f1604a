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
from collections.abc import Sequence
from typing import Any

from tfring.elastic import process as elastic
from tfring.elastic.errors import Dismissed
from tfring.job.bootstrap import mpi_data, mpi_exchange
from tfring.job.bootstrap.cancel import Cancel
from tfring.job.bootstrap.connect import JoinedJob, connect_job
from tfring.job.bootstrap.inter_op_threads import ensure_inter_op_threads
from tfring.job.environments import Given, Identity, Rendezvous, find_identity
from tfring.job.environments.elastic import ElasticWorker, take_worker
from tfring.job.handshake.errors import BootstrapError
from tfring.job.handshake.keepalive import break_when_unanswered
from tfring.job.security import generation
from tfring.job.security.sources import take_secret
from tfring.job.store import Store
from tfring.observe import observers
from tfring.observe.metrics import endpoint as metrics
from tfring.observe.recorder.keeping import record_options
from tfring.ops.early import (
    register_where_loaded,
    say_what_was_not_reduced,
    watch_optimizers,
)
from tfring.runtime import _native, memory, topology
from tfring.runtime import log as logs
from tfring.runtime.exceptions import described
from tfring.runtime.gpu.nccl import fix_sums, missing_gpu, use_interface, with_nccl
from tfring.runtime.process_sets import ProcessSet, registry
from tfring.runtime.settings.environment import Settings, native_values, read_settings
from tfring.runtime.signals import exits, interrupts, uncaught
from tfring.runtime.topology import is_initialized

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


def init(
    comm: Any = None,
    process_sets: Any = None,
    *,
    store: Store | None = None,
    init_method: str | None = None,
    rank: int | None = None,
    size: int | None = None,
) -> None:
    """Joins this process to its job and starts the runtime. A second call does nothing.

    The environment tells this process its rank and its job: ``tfring run``, torchrun's variables,
    mpirun, srun, TF_CONFIG, else a single process. Blocks until all ranks of the job call it.

    In an elastic job the coordinator tells them. A process that was started for the first
    generation waits for that generation. A later process waits until another one has come to
    `tfring.elastic.run`. It then gets a job of its own, of one rank, so that it can build its
    model, and `tfring.elastic.run` takes it into the others' job.

    If TensorFlow is loaded already, this registers the ops with it, so that graphs and models with
    collectives can be loaded.

    Args:
        comm: The job. None or an empty list: all processes that were launched. An mpi4py
            communicator: its processes, with their ranks in it; disjoint communicators make
            independent jobs. A list of launched ranks: these, renumbered from 0 in that order; only
            they call init. Without MPI the list has to contain rank 0, which runs the rendezvous. A
            list of communicators: all processes that were launched, with a process set for each
            (one of all processes adds none); `tfring.runtime.process_sets.registered()` has them.
        process_sets: Process sets to register, the same on all ranks where they are made of ranks;
            ranks are those of the job. "dynamic" or None: none yet. Sets can be added at any time.
        store: A `tfring.job.store.Store` through which the ranks meet; with `rank` and `size`.
        init_method: As torch.distributed has it: "env://", "tcp://host:port" of rank 0, which may
            end with "?rank=0&size=2", or "file:///path" of a file that all ranks can write.
        rank: Our rank, with `store` or `init_method`.
        size: The number of ranks, with `store` or `init_method`.

    Raises:
        RuntimeError: The environment is contradictory, a rank did not come within
            TFRING_START_TIMEOUT seconds, the job has ranks on several hosts and no secret, or this
            process was forked from one that called init or started by a rank of several.
            MPI_Init itself, where it has not run yet, waits for all processes without a limit.
        ValueError: A setting has an impossible value, the arguments contradict each other, this
            process is not part of `comm`, or a process set is not possible, equal to another or not
            the same on all ranks.
    """
    given = Given(init_method, store is not None, rank, size, bool(comm))
    job, by_communicator = registry.job_and_sets(comm)
    register_where_loaded()
    watch_optimizers()
    with _lock:
        _refuse_in_forked_child()
        if is_initialized() or _started_by_a_rank():
            return
        wanted = [*map(ProcessSet, by_communicator), *registry.given_sets(process_sets)]
        worker = take_worker(os.environ)
        if worker is None:
            _init_static(given, job, wanted, store)
            return
    _init_elastic(worker, given, wanted)


def _init_static(given: Given, job: Any, wanted: list[Any], store: Store | None) -> None:
    settings = _read_settings()
    identity = given.identity(os.environ) or find_identity(os.environ)
    if identity.rank == 0:  # all ranks of a job have them
        _warn(settings.unknown)
    last_set = int(_native.core.last_process_set())
    joined = connect_job(identity, settings, os.environ, job, len(wanted), store, last_set)
    if joined.rank == 0:
        _warn(settings.without_effect)
    with contextlib.closing(joined):
        _start(joined, settings)
    topology.set_launched_alone(identity.size == 1 and given == Given(None, False, None, None))
    if joined.process_sets == 0:
        return
    try:
        registry.register_at_init(wanted)
    except BaseException:
        shutdown()
        raise


def _init_elastic(worker: ElasticWorker, given: Given, wanted: list[Any]) -> None:
    if given != Given(None, False, None, None) or wanted:
        raise ValueError(
            "init takes no arguments in an elastic job: the coordinator says who is in it. Add "
            "process sets in the function that tfring.elastic.run runs"
        )
    with _lock:
        settings = _read_settings()
        mpi_data.refuse_if_wanted(settings.runtime)
        process = elastic.start(worker, _begin_generation, abandon)
        topology.set_local_rank(worker.slot)
        if worker.slot == 0:
            _warn(settings.unknown)
        if process.runs and process.left:
            raise RuntimeError(
                "shutdown and init within tfring.elastic.run: this rank would train alone. Leave "
                "both out: elastic.run begins again by itself when the ranks change"
            )
    if not worker.first and process.record is None:
        process.wait_for_recovery()
    if not worker.first or process.record is not None:
        with _lock:
            alone = Identity("an elastic job before we join it", 0, 1, Rendezvous.NONE)
            _start(connect_job(alone, settings, os.environ), settings)
            topology.set_waiting(process.record is None)
            return
    try:
        process.join()
    except Dismissed as dismissed:
        process.leave(dismissed)


def _begin_generation(identity: Identity, store: Store, cancel: Cancel) -> None:
    with _lock:
        settings = elastic.with_heartbeats(_read_settings(elastic.CONNECT_SECONDS))
        last_set = int(_native.core.last_process_set())
        joined = connect_job(identity, settings, os.environ, None, 0, store, last_set, cancel)
        descriptors = [*joined.control_fds.values(), *joined.data_fds.values()]
        try:
            with contextlib.closing(joined), cancel.cuts(descriptors):
                break_when_unanswered(descriptors)
                _start(joined, settings)
                topology.set_waiting(False)
        except _native.core.CoreError as error:
            raise BootstrapError(f"the runtime could not start: {error}") from error


def _read_settings(most_seconds: float = float("inf")) -> Settings:
    settings = read_settings(os.environ)
    # Child processes do not inherit it; the next init needs it.
    limit = min(settings.start_timeout, most_seconds)
    settings = dataclasses.replace(settings, secret=take_secret(os.environ), start_timeout=limit)
    metrics.check(settings)
    logs.set_up(native_values(settings.runtime))
    uncaught.watch(settings.traceback)
    return settings


def _warn(texts: Sequence[str]) -> None:
    for text in texts:
        _log.warning("%s", text)


def _start(joined: JoinedJob, settings: Settings) -> None:
    record = None
    if settings.record:
        record = record_options(
            joined.job,
            joined.rank,
            joined.size,
            given=settings.record_dir,
            first_of_host=joined.local_rank == 0,
            # The ranks of an elastic job wait for each other, and training waits for them.
            wait=elastic.started() is None,
        )
    if joined.local_rank == 0 and (why := missing_gpu(joined.runtime)):
        _log.warning(
            "TFRING_GPU_OPERATIONS=nccl, but rank %d has no GPU (%s): tensors are reduced on the "
            "CPU.\nLeave that variable out, or look at what `tfring doctor` says of GPUs.",
            joined.rank,
            why,
        )
    use_interface(joined.interface)
    fix_sums(joined.runtime)
    config = with_nccl(joined.runtime)
    options = _native.core.InitOptions()
    options.start_timeout_seconds = settings.start_timeout
    options.record.enabled = record is not None
    if record is not None:
        options.record.path, options.record.keep = record.get("path", ""), "keep" in record
        options.record.job, options.record.boot = record["job"], record["boot"]
    joined.hand_over(options)
    try:
        _native.core.init(options, native_values(config))
    except _native.core.CoreError:
        joined.free_group()
        raise
    _state.pid = os.getpid()
    path = (record or {}).get("path")
    process = elastic.started()
    topology.announce(keep=process is not None)
    memory.tell()
    _state.homogeneous = joined.homogeneous
    _state.by_mpi = joined.by_mpi
    generation.begin(joined.key)
    registry.begin_generation(joined.mpi_group)
    if not _state.at_exit_registered:
        atexit.register(end_of_program)
        _state.at_exit_registered = True
    # A process of an elastic job may be alone now, and TensorFlow asks once, when it starts.
    needs_threads = joined.size > 1 if process is None else process.record is None
    if needs_threads:
        ensure_inter_op_threads()
    if joined.size > 1:
        interrupts.watch()
        exits.watch()
    local, hosts = topology.local_rank(), joined.hosts
    observers.begin(observers.Here(joined.rank, joined.size, local, hosts, path, settings))


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
    process = elastic.started()
    if process is not None and _state.pid == os.getpid() and is_initialized():
        process.left_by_program()
    leave("")


def abandon(why: str, *, wait: bool = True) -> None:
    """Ends this rank's part in the job at once: without a goodbye, and without waiting.

    For a job that goes on without the ranks that it has lost: init may follow at once, which begins
    a new generation with its own ranks and connections. Calls of this rank that have no result end
    with tf.errors.UnavailableError, which names the lost ranks, or with tf.errors.AbortedError,
    which says `why`; for other ranks this one is lost. Threads of the runtime end by themselves.
    Does nothing before init, or when the job is over here; without `wait` also while another thread
    is in init or shutdown.
    """
    if not _lock.acquire(blocking=wait):
        return
    try:
        if _state.pid != os.getpid() or not is_initialized():
            return
        _native.core.abandon(why)
        interrupts.unwatch()
        observers.drop()
        _forget()
    finally:
        _lock.release()


def _forget() -> None:
    """Forgets the generation that has ended."""
    topology.withdraw()
    registry.end_generation()
    generation.end()


def leave(error: str) -> None:
    """Shuts down; the errors of the other ranks name `error`, unless it is ""."""
    with contextlib.ExitStack() as afterwards, _lock:
        if _state.pid != os.getpid() or not is_initialized():
            return
        afterwards.callback(observers.note_ends)  # when the lock is free again
        if not error:
            say_what_was_not_reduced()
        interrupts.unwatch()
        with observers.ending():
            _native.core.shutdown(error)
        _forget()
        if not error:
            observers.say_end()


def end_of_program(error: BaseException | None = None) -> None:
    """Leaves the job and, after a run without an error, ends MPI. Never changes the exit code."""
    if _state.pid != os.getpid():
        return
    # The interpreter leaves the uncaught exception here; an interactive one leaves every exception.
    failure = error or getattr(sys, "last_value", None)
    interactive = hasattr(sys, "ps1")
    try:
        if is_initialized() and exits.said():
            _native.core.mark(exits.said())
        # Before this rank waits for the others: they may be in a collective that it does not call.
        leave("" if failure is None or interactive else described(failure))
        process = elastic.started()
        if process is not None and failure is None:
            process.finish()
        _native.core.shutdown()  # waits for what is left of generations that were abandoned
    except Exception:
        _log.exception("the shutdown at exit failed")
        return
    if not _state.by_mpi or failure is not None:
        return
    # MPI_Finalize waits for all ranks, without a limit: one of them may still evaluate or save the
    # model, for hours. MPI's launcher ends the job if a rank dies instead.
    try:
        mpi_exchange.finalize()
    except Exception:
        _log.exception("MPI could not be finalised")


def is_homogeneous() -> bool:
    """Whether every host has the same number of processes. An error before init."""
    topology.size()
    return _state.homogeneous


def mpi_enabled() -> bool:
    """Whether MPI brought the ranks together."""
    return _state.by_mpi and is_initialized()
