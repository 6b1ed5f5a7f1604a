"""Jobs that an MPI launcher starts."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest
from launcher_tools import AS_ROOT, finish, mpirun, open_mpi_command, run_python, write_script

from tfring.job.bootstrap.hosts import interface_addresses

core = pytest.importorskip("tfring.runtime._native").core
pytest.importorskip("mpi4py")

MPICH_LIBRARY = Path("/usr/lib/x86_64-linux-gnu/libmpich.so.12")

TOGETHER = """
    import os
    import numpy as np
    from tfring.runtime import topology
    from tfring import world
    from tfring.runtime._native import core
    for _ in range(2):
        world.init()
        assert core.allreduce(np.ones(3, np.float32), name="x", op=1)[0] == topology.size()
        assert world.mpi_enabled()
        # In one piece: an MPI launcher mixes what its ranks write piece by piece.
        os.write(1, f"rank {topology.rank()} of {topology.size()}\\n".encode())
        world.shutdown()
"""


@pytest.mark.parametrize("count", [1, 3])
def test_open_mpi(tmp_path, count):
    text = TOGETHER if count > 1 else TOGETHER.replace("assert world.mpi", "assert not world.mpi")
    done = mpirun(count, write_script(tmp_path, text))
    assert done.returncode == 0, done.stderr
    lines = sorted(done.stdout.splitlines())
    assert lines == sorted(2 * [f"rank {r} of {count}" for r in range(count)])


def test_ranks_that_listen_at_one_address(tmp_path):
    own = [each.address for each in interface_addresses() if not each.loopback]
    if not own:
        pytest.skip("this machine has only a loopback interface")
    variables = {"TFRING_BIND_ADDR": own[0], "TFRING_START_TIMEOUT": "60"}
    done = mpirun(2, write_script(tmp_path, TOGETHER), **variables)
    assert done.returncode == 0, done.stderr


def test_mpi_that_mpi4py_must_not_start(tmp_path):
    """If mpi4py must not start MPI, init does, as Horovod's init."""
    header = "import mpi4py; mpi4py.rc.initialize = False\nfrom mpi4py import MPI\n"
    text = """
    from tfring.runtime import topology
    from tfring import world
    from tfring.horovod import build_flags
    world.init()
    assert build_flags.mpi_threads_supported()
    assert MPI.Is_initialized() and topology.size() == MPI.COMM_WORLD.size == 2
    world.shutdown()
    MPI.COMM_WORLD.Barrier()
    """
    done = mpirun(2, write_script(tmp_path, text, header=header))
    assert done.returncode == 0, done.stderr


def test_ranks_wait_for_one_that_works_on_after_shutdown(tmp_path):
    """However long it takes: limits that would end a waiting rank are half a second here."""
    text = """
    import faulthandler, os, time
    from tfring.runtime import topology
    from tfring import world
    later = faulthandler.dump_traceback_later
    faulthandler.dump_traceback_later = lambda timeout, **more: later(0.5, **more)
    world.init()
    rank = topology.rank()
    world.shutdown()
    if rank == 0:
        time.sleep(3)
        os.write(1, b"saved")
    """
    done = mpirun(3, write_script(tmp_path, text))
    assert (done.returncode, done.stdout) == (0, "saved"), done.stderr


def test_failure_on_one_rank_ends_the_job_with_an_error(tmp_path):
    text = """
    import numpy as np
    from tfring.runtime import topology
    from tfring import world
    from tfring.runtime._native import core
    world.init()
    core.barrier(name="here")
    if topology.rank() == 1:
        raise ValueError('only here')
    core.allreduce(np.ones(3, np.float32), name="alone", op=1)
    """
    done = mpirun(2, write_script(tmp_path, text))
    assert done.returncode != 0
    assert "ValueError: only here" in done.stderr


def test_wrong_mpi_is_recognised(tmp_path):
    """The launcher announces two ranks, and the MPI library that gets loaded knows of one."""
    open_mpi_command()  # skips
    path = write_script(tmp_path, "from tfring import world\nworld.init()\n")
    announced = {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2"}
    done = run_python(path, **AS_ROOT, **announced)
    assert done.returncode == 1
    assert "wrong MPI: Open MPI started 2 ranks" in done.stderr
    assert "sees 1" in done.stderr


def test_mpich(tmp_path):
    launcher = shutil.which("mpiexec.mpich")
    if launcher is None or not MPICH_LIBRARY.exists():
        pytest.skip("needs Debian's MPICH")
    # mpi4py's wheel looks for the library under its usual name.
    (tmp_path / "libmpi.so.12").symlink_to(MPICH_LIBRARY)
    path = write_script(tmp_path, TOGETHER)
    search = os.pathsep.join([str(tmp_path), os.environ.get("LD_LIBRARY_PATH", "")])
    command = [launcher, "-np", "2", sys.executable, path]
    done = finish(command, LD_LIBRARY_PATH=search, MPI4PY_MPIABI="mpich")
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == sorted(2 * ["rank 0 of 2", "rank 1 of 2"])
