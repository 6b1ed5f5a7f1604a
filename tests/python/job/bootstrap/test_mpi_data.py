"""Data over MPI: TFRING_CPU_OPERATIONS=mpi, with Open MPI and with MPICH."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest
from launcher_tools import ROOT, finish, mpirun, run, write_script
from tiers import slow

from tfring.job.bootstrap import mpi_data
from tfring.job.bootstrap.exchange import SingleRankExchange
from tfring.job.handshake.errors import BootstrapError
from tfring.runtime import _native
from tfring.runtime.settings.setting import SettingError

pytest.importorskip("mpi4py")

LIBRARIES = _native.library_dir()
PLUGINS = mpi_data.plugins_in(LIBRARIES)
# `make setup` puts it in its own folder, because Open MPI's files have the same names.
MPICH = Path(os.environ.get("TFRING_TEST_MPICH", f"{sys.prefix}/mpich"))
# Within a host, shared memory would be used first.
BY_MPI = {"TFRING_CPU_OPERATIONS": "mpi", "TFRING_X_SHARED_MEMORY": "0"}
MOST_TESTS = "not gib and not uneven_arrival and not ctrl_c"  # of tests/parallel/native


def needs_plugin(name):
    if name not in PLUGINS:
        pytest.skip(f"needs the plug-in for {name}")


def launched(name, count, *arguments, **more):
    """Runs Python under one of the two MPIs, with data over it."""
    needs_plugin(name)
    if name == "openmpi":
        return mpirun(count, *arguments, **BY_MPI, **more)
    launcher = MPICH / "bin" / "mpiexec"
    if not launcher.exists():
        pytest.skip(f"needs MPICH in {MPICH}")
    command = [str(launcher), "-n", str(count), sys.executable, *arguments]
    search = os.pathsep.join([f"{MPICH}/lib", os.environ.get("LD_LIBRARY_PATH", "")])
    return finish(command, LD_LIBRARY_PATH=search, MPI4PY_MPIABI="mpich", **BY_MPI, **more)


def check_parallel_tests(name, count, folders, *options, **more):
    """Runs folders of tests/parallel under one of the two MPIs."""
    paths = [str(ROOT / "tests/parallel" / folder) for folder in folders]
    pytest_options = ["-q", "-x", "-p", "no:cacheprovider", *options]
    done = launched(name, count, "-m", "pytest", *pytest_options, *paths, **more)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "count"), [("mpich", 2), pytest.param("openmpi", 3, marks=pytest.mark.soak)]
)
def test_collectives(name, count):
    """The tests of the binding under mpirun: dtypes, errors, joins, process sets in threads."""
    check_parallel_tests(name, count, ["native"], "-k", MOST_TESTS)


@pytest.mark.soak
@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize("name", ["openmpi", "mpich"])
def test_collectives_of_tensorflow(name, count):
    check_parallel_tests(name, count, ["collectives", "process_sets"], TF_CPP_MIN_LOG_LEVEL="2")


@pytest.mark.parametrize(("name", "others"), [("openmpi", "mpich"), slow("mpich", "openmpi")])
def test_the_plug_in_of_the_mpi_that_is_loaded(tmp_path, name, others):
    text = f"""
    import os
    import numpy as np
    from tfring.runtime import topology
    from tfring import world
    from tfring.runtime._native import core
    for _ in range(3):
        world.init()
        assert core.allreduce(np.ones(9, np.float32), name="x", op=1)[0] == topology.size()
        world.shutdown()
    from mpi4py import MPI
    assert MPI.COMM_WORLD.allreduce(1) == 2  # the program can go on with MPI
    maps = open("/proc/self/maps").read()
    assert "libtfring_mpi_{name}.so" in maps and "libtfring_mpi_{others}.so" not in maps
    os.write(1, b"over MPI\\n")
    """
    done = launched(name, 2, write_script(tmp_path, text))
    assert (done.returncode, done.stdout) == (0, 2 * "over MPI\n"), done.stderr


@pytest.mark.parametrize("name", ["openmpi", slow("mpich")])
def test_a_rank_that_dies(tmp_path, name):
    """The launcher ends the job, or the other rank gets the error; nothing hangs in MPI."""
    text = """
    import os, signal
    import numpy as np
    from tfring.runtime import topology
    from tfring import world
    from tfring.runtime._native import core
    world.init()
    for step in range(100000):
        if step == 50 and topology.rank() == 1:
            os.write(1, b"50 steps\\n")
            os.kill(os.getpid(), signal.SIGKILL)
        core.allreduce(np.ones(300000, np.float32), name="x", op=1)
    """
    done = launched(name, 2, write_script(tmp_path, text))
    assert done.returncode != 0 and "50 steps" in done.stdout, done.stderr


def test_a_program_that_finalises_mpi_first(tmp_path):
    text = """
    import os
    import numpy as np
    from mpi4py import MPI
    from tfring import world
    from tfring.runtime._native import core
    world.init()
    core.allreduce(np.ones(300000, np.float32), name="x", op=1)
    core.barrier(name="all are through")
    MPI.Finalize()
    try:
        core.allreduce(np.ones(300000, np.float32), name="y", op=1)
    except core.CoreError as error:
        os.write(1, str(error).replace("\\n", " ").encode() + b"\\n")
    """
    done = launched("openmpi", 2, write_script(tmp_path, text))
    assert done.returncode == 0, done.stderr
    assert "finalised" in done.stdout and "was lost" not in done.stdout


def test_mpi_without_threads_cannot_be_used(tmp_path):
    header = "import mpi4py; mpi4py.rc.thread_level = 'serialized'\n"
    path = write_script(tmp_path, "from tfring import world\nworld.init()\n", header=header)
    done = launched("openmpi", 2, path)
    assert done.returncode != 0 and "MPI_THREAD_MULTIPLE" in done.stderr


def test_one_rank_without_a_plug_in_is_named_by_all(tmp_path):
    bare = tmp_path / "bare"
    shutil.copytree(LIBRARIES, bare, ignore=shutil.ignore_patterns("*_mpi_*"))
    text = f"""
    import os
    if os.environ["OMPI_COMM_WORLD_RANK"] == "1":
        os.environ["TFRING_X_LIB_DIR"] = "{bare}"
    from tfring import world
    try:
        world.init()
    except Exception as error:
        os.write(1, " ".join(str(error).split()).encode() + b"\\n")
    """
    lines = launched("openmpi", 2, write_script(tmp_path, text)).stdout.splitlines()
    assert len(lines) == 2
    assert all("has no plug-in libtfring_mpi_openmpi.so" in line for line in lines)
    assert any("rank 1" in line for line in lines)


def test_ranks_that_did_not_meet_over_mpi(tmp_path):
    path = write_script(tmp_path, "from tfring import world\nworld.init()\n")
    done = run("-np", 2, sys.executable, path, **BY_MPI)
    assert done.returncode != 0
    assert "the ranks did not meet over MPI" in done.stderr + done.stdout
    with pytest.raises(BootstrapError, match="start the job with mpirun"):
        mpi_data.find(SingleRankExchange(), "a test", LIBRARIES)


def test_elastic_jobs_refuse_it():
    with pytest.raises(SettingError, match="in an elastic job"):
        mpi_data.refuse_if_wanted({"CPU_OPERATIONS": "mpi"})
    mpi_data.refuse_if_wanted({"CPU_OPERATIONS": "auto"})
    done = run("-np", 2, "--min-np", 1, sys.executable, "-c", "print('started')", **BY_MPI)
    assert done.returncode == 2 and "started" not in done.stdout
    assert "TFRING_CPU_OPERATIONS is mpi in an elastic job" in done.stderr


class OtherMpi:
    def __init__(self, version, abi):
        self.version, self.abi = version, abi

    def Get_library_version(self):
        return self.version

    def Get_abi_version(self):
        return (self.abi, 0)


@pytest.mark.parametrize(
    ("version", "plugin"),
    [
        ("Open MPI v5.0.11, package: Open MPI", "openmpi"),
        ("MPICH Version:      5.0.2\nMPICH Release date", "mpich"),
        ("Intel(R) MPI Library 2021.13 for Linux* OS", "mpich"),
        ("MVAPICH2 Version      :  2.3.7", "mpich"),
    ],
)
def test_the_plug_in_by_version(version, plugin):
    assert mpi_data._plugin_for(OtherMpi(version, -1)) == plugin
    with pytest.raises(BootstrapError, match="binary interface of MPI 5"):
        mpi_data._plugin_for(OtherMpi(version, 1))
    with pytest.raises(BootstrapError, match="an unknown MPI"):
        mpi_data._plugin_for(OtherMpi("HP MPI 1.0", -1))
