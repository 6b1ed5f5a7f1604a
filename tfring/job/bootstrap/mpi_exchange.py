"""The exchange through MPI, with byte buffers only: nothing is pickled.

Every wait for other processes has a time limit: requests are polled, and the one call for which MPI
has no request runs in a thread.
"""

from __future__ import annotations

import os
import shutil
import sys
import threading
import time
from array import array
from collections.abc import Callable, Sequence
from typing import Any

from tfring.job.bootstrap import exchange
from tfring.job.bootstrap.patience import Patience
from tfring.job.handshake.errors import BootstrapError
from tfring.runtime.communicators import is_null

# Whether tfring initialised MPI, and so has to finalise it.
_finalize_mpi = False
# Requests that timed out. They hold their buffers, which MPI may still write to.
_abandoned: list[Any] = []

# Added to the time limit, so that a rank that failed to connect can still tell the others.
_REPORT_SECONDS = 5.0
_FIRST_PAUSE = 0.0001
_LONGEST_PAUSE = 0.002


class MpiExchange:
    """Exchanges values over a communicator.

    Used by the thread that called init. Owns its communicator, so that its messages cannot match
    those of the user's program.
    """

    def __init__(self, mpi: Any, comm: Any, deadline: float) -> None:
        """Takes over `comm`; every wait ends at `deadline` (``time.monotonic()``)."""
        self._mpi = mpi
        self._comm = comm
        self.rank, self.size = int(comm.rank), int(comm.size)
        self._deadline = deadline
        self._timed_out = False

    @property
    def mpi(self) -> Any:
        """The module mpi4py.MPI."""
        return self._mpi

    def group(self) -> Any:
        """Returns an MPI group of the processes, by rank; the caller owns it."""
        return self._comm.Get_group()

    def another(self) -> Any:
        """Returns a new communicator of the processes; the caller owns it. All of them call it."""
        return duplicate(self._comm, self._deadline)

    def allgather(self, value: Any) -> list[Any]:
        """See `Exchange.allgather`."""
        mine = exchange.encode(value)
        lengths = array("i", [0] * self._comm.size)
        own_length = array("i", [len(mine)])
        self._wait(
            self._comm.Iallgather([own_length, self._mpi.INT], [lengths, self._mpi.INT]),
        )
        everything = bytearray(sum(lengths))
        self._wait(
            self._comm.Iallgatherv(
                [mine, self._mpi.BYTE], [everything, (list(lengths), None), self._mpi.BYTE]
            )
        )
        values, begin = [], 0
        for length in lengths:
            values.append(exchange.decode(bytes(everything[begin : begin + length])))
            begin += length
        return values

    def close(self) -> None:
        """Frees the communicator, unless a request on it timed out."""
        if not self._timed_out:
            self._comm.Free()

    def _wait(self, request: Any) -> None:
        try:
            wait(request, self._deadline, self._comm)
        except BootstrapError:
            self._timed_out = True
            raise


def exchange_over(mpi: Any, comm: Any, rank: int, source: str, deadline: float) -> MpiExchange:
    """Returns an exchange between the processes of `comm`: a communicator, or ranks; None: all.

    `source` says that this is `rank` of all. All processes of `comm` call it.

    Raises:
        BootstrapError: Not all of them called it in time, or MPI gives this process another rank.
        ValueError: `comm` does not contain this process, or cannot be a job.
    """
    world = mpi.COMM_WORLD
    if comm is None:
        if world.rank != rank:
            raise BootstrapError(
                f"{source} says that this is rank {rank}, and MPI says "
                f"{world.rank}: the variables are left over from another launcher"
            )
        own = duplicate(world, deadline)
    elif isinstance(comm, Sequence):
        own = communicator_of(world, comm, deadline)
    elif is_null(comm):
        raise ValueError(
            f"rank {world.rank} is not part of the communicator given to init(comm=...), which is "
            "COMM_NULL here: only the processes of a communicator call init with it"
        )
    elif comm.Is_inter():
        raise ValueError("init(comm=...) got an intercommunicator: pass the result of its Merge()")
    else:
        own = duplicate(comm, deadline)
    return MpiExchange(mpi, own, deadline + _REPORT_SECONDS)


def wait(request: Any, deadline: float, comm: Any) -> None:
    """Polls a request until it is complete.

    BootstrapError: the time is up. The request cannot be cancelled and would block MPI_Finalize, so
    tfring will not call that.
    """
    global _finalize_mpi
    pause, started = _FIRST_PAUSE, time.monotonic()
    patience = Patience(f"rank {comm.rank}", deadline - started)
    speaks = comm.rank in (0, comm.size - 1)  # whichever of them has come
    while not request.Test():
        if speaks:
            patience.tell(
                lambda: f"others of {comm.size} ranks (MPI does not say which) to call init"
            )
        if patience.is_over:
            _finalize_mpi = False
            _abandoned.append(request)
            raise BootstrapError(_timeout_message(comm.rank, comm.size, started))
        time.sleep(pause)
        pause = min(pause * 1.5, _LONGEST_PAUSE)


def _timeout_message(rank: int, size: int, started: float) -> str:
    return (
        f"rank {rank} waited {time.monotonic() - started:.0f} s under MPI, and not all of the "
        f"{size} ranks called init. Look at their output for an earlier error. If they only need "
        "longer, raise TFRING_START_TIMEOUT"
    )


def duplicate(comm: Any, deadline: float) -> Any:
    """Returns a new communicator of the same processes; the caller owns it.

    BootstrapError: not all processes called it in time.
    """
    copy, request = comm.Idup()
    wait(request, deadline, comm)
    return copy


def communicator_of(world: Any, ranks: Sequence[int], deadline: float) -> Any:
    """Returns a communicator of some ranks of `world`, in the order given. Only they call it.

    BootstrapError: not all of them called it in time.
    """
    everybody = world.Get_group()
    group = everybody.Incl(list(ranks))
    everybody.Free()
    made: list[Any] = []
    _with_time_limit(
        lambda: made.append(world.Create_group(group)), deadline, world.rank, len(ranks)
    )
    group.Free()
    return made[0]


def _with_time_limit(call: Callable[[], None], deadline: float, rank: int, size: int) -> None:
    """Runs an MPI call that has no request, in a thread if MPI allows threads."""
    global _finalize_mpi
    failures: list[Exception] = []

    def work() -> None:
        try:
            call()
        except Exception as error:
            failures.append(error)

    if threads_supported():
        started = time.monotonic()
        thread = threading.Thread(target=work, name="tfring-create-group", daemon=True)
        thread.start()
        thread.join(max(0.0, deadline - started))
        if thread.is_alive():
            _finalize_mpi = False
            raise BootstrapError(_timeout_message(rank, size, started))
    else:
        work()
    if failures:
        raise BootstrapError(f"MPI made no communicator of these ranks: {failures[0]}")


def load_mpi() -> Any:
    """Returns the module mpi4py.MPI, with MPI initialised.

    BootstrapError: it cannot be loaded, or MPI has been finalised.
    """
    global _finalize_mpi
    first = "mpi4py.MPI" not in sys.modules
    try:
        import mpi4py

        if first:
            # After a failure MPI_Finalize would wait for lost ranks: finalize() below decides.
            mpi4py.rc.finalize = False
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise BootstrapError(
            f"mpi4py cannot load an MPI library ({error}): install the MPI that mpirun belongs to "
            f"({mpirun_path() or 'unknown'}), or use `tfring run`, which needs no MPI"
        ) from None
    if first and MPI.Is_initialized():
        _finalize_mpi = True
    if not MPI.Is_initialized():  # the program has set mpi4py.rc.initialize to False
        MPI.Init_thread(MPI.THREAD_MULTIPLE)
        _finalize_mpi = True
    if MPI.Is_finalized():
        raise BootstrapError("MPI has been finalised, and MPI cannot be started a second time")
    return MPI


def threads_supported() -> bool:
    """Whether MPI, if it is in use, allows calls from several threads at once."""
    module = sys.modules.get("mpi4py.MPI")
    if module is None or not module.Is_initialized() or module.Is_finalized():
        return False
    return bool(module.Query_thread() == module.THREAD_MULTIPLE)


def finalize() -> None:
    """Finalises MPI if tfring initialised it. To be called only after a run without an error."""
    module = sys.modules.get("mpi4py.MPI")
    if _finalize_mpi and module is not None and not module.Is_finalized():
        module.Finalize()


def mpirun_path() -> str | None:
    """Returns the path of the launcher that started this process, or else of the mpirun in PATH."""
    try:
        parent = os.readlink(f"/proc/{os.getppid()}/exe")
    except OSError:
        parent = ""
    name = os.path.basename(parent)
    if any(word in name for word in ("mpi", "prte", "prun", "hydra", "orted", "srun")):
        return parent
    return shutil.which("mpirun")


def check_world(mpi: Any, expected: int | None, source: str) -> None:
    """Raises BootstrapError if the loaded MPI library belongs to another launcher than ours."""
    if expected is None or mpi.COMM_WORLD.size == expected:
        return
    library = str(mpi.Get_library_version()).split("\n", 1)[0].split(",", 1)[0].strip()
    raise BootstrapError(
        f"wrong MPI: {source} started {expected} ranks, but the MPI library that mpi4py loaded "
        f"({library}) sees {mpi.COMM_WORLD.size}. The ranks were started by "
        f"{mpirun_path() or 'an unknown launcher'}: start them with the mpirun that belongs to "
        "that library, or install mpi4py for the MPI of this mpirun"
    )
