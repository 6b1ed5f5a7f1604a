"""What the runtime needs to send tensors over MPI, with TFRING_CPU_OPERATIONS=mpi."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from tfring.job.bootstrap.exchange import Exchange, run_on_all_ranks
from tfring.job.bootstrap.mpi_exchange import MpiExchange, threads_supported
from tfring.job.handshake.errors import BootstrapError
from tfring.runtime.settings.setting import SettingError

SETTING = "CPU_OPERATIONS"
_ASKED = f"TFRING_{SETTING} is mpi"
# What the version of an MPI library begins with or contains, and which plug-in fits: those of one
# line share their binary interface.
_PLUGINS = {
    "Open MPI": "openmpi",
    "MPICH": "mpich",
    "Intel(R) MPI": "mpich",
    "MVAPICH": "mpich",
}


def wanted(runtime: Mapping[str, str]) -> bool:
    """Whether the settings of a job ask for it."""
    return runtime.get(SETTING) == "mpi"


def refuse_if_wanted(runtime: Mapping[str, str]) -> None:
    """Raises SettingError if an elastic job asks for MPI, which cannot replace a process."""
    if wanted(runtime):
        raise SettingError(
            f"{_ASKED} in an elastic job: MPI ends a job that loses a process, and takes no new "
            f"ones. Set TFRING_{SETTING}=auto, or start the job with mpirun"
        )


def plugin_file(name: str) -> str:
    """Returns the file name of the plug-in "openmpi" or "mpich"."""
    return f"libtfring_mpi_{name}.so"


def plugins_in(folder: Path) -> list[str]:
    """Returns which plug-ins a folder of libraries has."""
    names = dict.fromkeys(_PLUGINS.values())
    return [name for name in names if (folder / plugin_file(name)).is_file()]


class MpiData(NamedTuple):
    """What the runtime needs where MPI carries the data."""

    plugin: str
    module: str  # that has loaded MPI
    communicator: int  # of all ranks, as Fortran numbers it; the runtime frees it


def prepare(exchange: Exchange, source: str, folder: Path) -> MpiData:
    """Makes a communicator for the data, and returns what the runtime needs of it.

    All ranks call it at the same time. `folder` has the plug-ins; `source` started the job.

    BootstrapError: a rank has no plug-in for its MPI.
    """
    found: list[tuple[MpiExchange, Path]] = []

    def find_plugin() -> None:
        found.append(find(exchange, source, folder))

    # A rank that cannot use MPI ends this before any is in a collective of MPI without it.
    run_on_all_ranks(exchange, find_plugin)
    met, plugin = found[0]
    return MpiData(str(plugin), str(met.mpi.__file__), met.another().py2f())


def find(exchange: Exchange, source: str, folder: Path) -> tuple[MpiExchange, Path]:
    """Returns the exchange and the plug-in for the MPI of this process; BootstrapError if none."""
    if not isinstance(exchange, MpiExchange):
        raise BootstrapError(
            f"{_ASKED}, and the ranks did not meet over MPI but by {source}: start the job with "
            f"mpirun, or set TFRING_{SETTING}=auto"
        )
    mpi = exchange.mpi
    if not threads_supported():
        raise BootstrapError(
            f"{_ASKED}, and MPI was started without MPI_THREAD_MULTIPLE, while tfring calls it "
            'from a thread of its own: leave mpi4py.rc.thread_level at "multiple"'
        )
    plugin = folder / plugin_file(_plugin_for(mpi))
    if not plugin.is_file():
        built = ", ".join(plugins_in(folder)) or "none"
        raise BootstrapError(
            f"{_ASKED}, and this build of tfring has no plug-in {plugin.name} for {library(mpi)} "
            f"(plug-ins: {built}): build tfring where mpi.h of that MPI is found "
            f"(`tfring help installation`), or set TFRING_{SETTING}=auto"
        )
    return exchange, plugin


def library(mpi: Any) -> str:
    """Returns name and version of the MPI library that mpi4py has loaded."""
    first = str(mpi.Get_library_version()).strip().split("\n", 1)[0]
    return " ".join(first.split(",", 1)[0].split())


def _plugin_for(mpi: Any) -> str:
    version = str(mpi.Get_library_version())
    # mpi4py for the interface of MPI 5, which both implement and no plug-in uses.
    standard = getattr(mpi, "Get_abi_version", lambda: (-1, -1))()[0] >= 0
    found = next((plugin for name, plugin in _PLUGINS.items() if name in version), None)
    if found is None or standard:
        why = "through the binary interface of MPI 5" if standard else "an unknown MPI"
        raise BootstrapError(
            f"{_ASKED}, and mpi4py has loaded {library(mpi)}, {why}: use mpi4py with Open MPI or "
            f"MPICH, or set TFRING_{SETTING}=auto"
        )
    return found
