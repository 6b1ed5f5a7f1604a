"""Brings the ranks together through MPI, with byte buffers only: nothing is pickled."""

from __future__ import annotations

import os
import shutil
import sys
from typing import Any

from tfring.bootstrap import frames
from tfring.bootstrap.errors import BootstrapError

# Whether MPI was initialised by us, and so has to be finalised by us.
_ours = False


class MpiExchange:
    """Exchanges values over COMM_WORLD.

    Used by the thread that called init; all ranks make the same calls in the same order. Owns a
    duplicate of COMM_WORLD, so that it cannot meet messages of the user's.
    """

    def __init__(self, expected_size: int | None, source: str) -> None:
        mpi = _load_mpi()
        world = mpi.COMM_WORLD
        if expected_size is not None and world.size != expected_size:
            raise BootstrapError(_wrong_mpi(mpi, expected_size, source))
        self._mpi = mpi
        self._comm = world.Dup()

    @property
    def size(self) -> int:
        """Number of ranks."""
        return int(self._comm.size)

    @property
    def rank(self) -> int:
        """Our rank."""
        return int(self._comm.rank)

    def allgather(self, value: Any) -> list[Any]:
        """Gives every rank the values of all ranks."""
        from array import array

        mine = frames.encode(value)
        lengths = array("i", [0] * self.size)
        self._comm.Allgather([array("i", [len(mine)]), self._mpi.INT], [lengths, self._mpi.INT])
        everything = bytearray(sum(lengths))
        self._comm.Allgatherv(
            [mine, self._mpi.BYTE], [everything, (list(lengths), None), self._mpi.BYTE]
        )
        values, begin = [], 0
        for length in lengths:
            values.append(frames.decode(bytes(everything[begin : begin + length])))
            begin += length
        return values

    def close(self) -> None:
        """Frees the communicator."""
        self._comm.Free()


def _load_mpi() -> Any:
    global _ours
    first = "mpi4py.MPI" not in sys.modules
    try:
        import mpi4py

        if first:
            # After a failure MPI_Finalize would wait for the dead: finalize() decides at the end.
            mpi4py.rc.finalize = False
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise BootstrapError(
            f"mpi4py cannot load an MPI library ({error}): install the MPI that mpirun belongs to "
            f"({mpirun_path() or 'unknown'}), or use `tfring run`, which needs no MPI"
        ) from None
    if first and MPI.Is_initialized():
        _ours = True
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
    """Finalises MPI if it was us who initialised it. Only after a run without an error."""
    module = sys.modules.get("mpi4py.MPI")
    if _ours and module is not None and not module.Is_finalized():
        module.Finalize()


def mpirun_path() -> str | None:
    """The launcher that started us, or else the mpirun in PATH."""
    try:
        parent = os.readlink(f"/proc/{os.getppid()}/exe")
    except OSError:
        parent = ""
    name = os.path.basename(parent)
    if any(word in name for word in ("mpi", "prte", "prun", "hydra", "orted", "srun")):
        return parent
    return shutil.which("mpirun")


def _wrong_mpi(mpi: Any, expected: int, source: str) -> str:
    library = str(mpi.Get_library_version()).split("\n", 1)[0].split(",", 1)[0].strip()
    return (
        f"wrong MPI: {source} started {expected} ranks, but the MPI library that mpi4py loaded "
        f"({library}) sees {mpi.COMM_WORLD.size}. The ranks were started by "
        f"{mpirun_path() or 'an unknown launcher'}: start them with the mpirun that belongs to "
        "that library, or install mpi4py for the MPI of this mpirun"
    )
