"""Jobs made of some of the launched processes: init(comm=...)."""

from __future__ import annotations

import re
import sys

import pytest
from launcher_tools import mpirun, run, write_script

core = pytest.importorskip("tfring.runtime._native").core

from tfring import world  # noqa: E402
from tfring.runtime import communicators  # noqa: E402

COMMON = """
    import numpy as np
    import tfring as hvd
    from tfring.runtime._native import core

    def total(name, value):
        return float(core.allreduce(np.array([value], np.float64), name=name, op=1)[0])

    def refused(*words, **arguments):
        try:
            hvd.init(**arguments)
        except ValueError as error:
            assert all(word in str(error) for word in words), error
        else:
            raise AssertionError(f"init took {arguments}")
        assert not hvd.is_initialized()
"""

UNDER_MPI = """
    from mpi4py import MPI
    world = MPI.COMM_WORLD
    me = world.rank

    # Two jobs at the same time, numbered from behind.
    half = world.Split(me % 2, -me)
    hvd.init(comm=half)
    assert (hvd.rank(), hvd.size()) == (half.rank, half.size) == (1 - me // 2, 2)
    assert (hvd.local_rank(), hvd.local_size(), hvd.cross_size()) == (half.rank, 2, 1)
    assert hvd.mpi_enabled() and hvd.is_homogeneous()
    assert total("half", 10.0**me) == (101.0 if me % 2 == 0 else 1010.0)
    assert hvd.global_process_set.ranks == [0, 1]
    hvd.shutdown()
    half.Free()

    # Again, by ranks.
    ranks = [2, 0] if me % 2 == 0 else [3, 1]
    hvd.init(comm=ranks)
    assert ranks[hvd.rank()] == me and hvd.size() == 2
    assert total("half", 10.0**me) == (101.0 if me % 2 == 0 else 1010.0)
    hvd.shutdown()

    hvd.init(comm=MPI.COMM_SELF)
    assert (hvd.rank(), hvd.size(), total("alone", 3.0)) == (0, 1, 3.0)
    hvd.shutdown()

    # One job of three; the fourth is refused and waits for nobody.
    some = world.Create_group(world.Get_group().Incl([1, 2, 3]))  if me else MPI.COMM_NULL
    if me == 0:
        refused("rank 0", "COMM_NULL", comm=some)
        refused("rank 0 of 4", "[1, 2, 3]", comm=[1, 2, 3])
    else:
        hvd.init(comm=some)
        assert (hvd.rank(), hvd.size()) == (me - 1, 3) and total("three", 1.0) == 3.0
        hvd.shutdown()
    refused("rank 4", "0 to 3", comm=[0, 4])
    refused("rank 1 twice", comm=[1, 1])
    refused("ranks only", comm=[0, "1"])
    refused("comm is", comm=7)

    hvd.init(comm=range(4))
    assert (hvd.rank(), hvd.size()) == (me, 4) and total("all", 1.0) == 4.0
    hvd.shutdown()
    hvd.init(comm=[])
    assert hvd.size() == 4
    world.Barrier()
"""

WITHOUT_MPI = """
    import errno, os, socket
    me = int(os.environ["TFRING_X_RANK"])
    for _ in range(2):
        if me == 1:
            refused("rank 1 of 3", "[2, 0]", comm=[2, 0])
        else:
            hvd.init(comm=[2, 0])
            assert (hvd.rank(), hvd.size()) == (0 if me == 2 else 1, 2)
            assert (hvd.local_rank(), hvd.local_size()) == (hvd.rank(), 2)
            assert total("two", me) == 2.0 and not hvd.mpi_enabled()
            hvd.shutdown()
    if me != 0:
        refused("mpirun", "[1, 2]", comm=[1, 2])
    if me == 0:
        # The launcher's port stays ours between two jobs; nobody reaches it then.
        where = os.environ["TFRING_RENDEZVOUS_ADDR"], int(os.environ["TFRING_RENDEZVOUS_PORT"])
        with socket.socket() as other:
            assert other.connect_ex(where) == errno.ECONNREFUSED
        with socket.socket() as other:
            try:
                other.bind(where)
                raise AssertionError(f"anybody can have {where}")
            except OSError as error:
                assert error.errno == errno.EADDRINUSE
    hvd.init(comm=[me])
    assert (hvd.rank(), hvd.size()) == (0, 1)
    hvd.shutdown()
    hvd.init()
    assert (hvd.rank(), hvd.size(), hvd.local_rank()) == (me, 3, me)
    assert total("all", 1.0) == 3.0
    hvd.shutdown()
"""


def test_jobs_under_mpi(tmp_path):
    done = mpirun(4, write_script(tmp_path, COMMON + UNDER_MPI))
    assert done.returncode == 0, done.stderr


def test_jobs_without_mpi(tmp_path):
    path = write_script(tmp_path, COMMON + WITHOUT_MPI)
    done = run("-np", 3, sys.executable, path)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("call", ["init()", "init(comm=[0, 1])"])
def test_rank_that_does_not_come_under_mpi_is_not_waited_for_for_ever(tmp_path, call):
    # MPI_Init waits for all ranks and cannot be bounded: all of them get beyond it.
    text = f"""
    import os, time
    from tfring import world
    from tfring.job.bootstrap import mpi_exchange
    mpi_exchange.load_mpi()
    if os.environ["OMPI_COMM_WORLD_RANK"] == "0":
        world.{call}
    time.sleep(5)
    """
    done = mpirun(2, write_script(tmp_path, text), TFRING_START_TIMEOUT="1")
    assert done.returncode != 0
    assert "rank 0 waited 1 s under MPI" in done.stderr and "TFRING_START_TIMEOUT" in done.stderr


def test_lists_that_differ_are_named(tmp_path):
    text = """
    import os
    from tfring import world
    world.init(comm=[[0, 1], [1, 0]][int(os.environ["TFRING_X_RANK"])])
    """
    done = run("-np", 2, sys.executable, write_script(tmp_path, text), TFRING_START_TIMEOUT="5")
    assert done.returncode != 0
    assert re.search(r"rank 0 starts a job of the ranks \[0, 1\], and rank 1", done.stderr)


def test_ranks_of_a_job_are_checked():
    assert communicators.checked_ranks(range(2, 0, -1), 3, 1) == [2, 1]
    for ranks, words in (([0, 3], "0 to 2"), ([-1, 0], "rank -1"), ([0.5, 0], "ranks only")):
        with pytest.raises(ValueError, match=words):
            communicators.checked_ranks(ranks, 3, 0)
    with pytest.raises(ValueError, match="which is not among the ranks"):
        communicators.checked_ranks([0, 1], 3, 2)


def test_what_is_no_communicator():
    with pytest.raises(ValueError, match="comm is an mpi4py communicator"):
        world.init(comm=3)
    with pytest.raises(ValueError, match="dynamic"):
        world.init(process_sets="static")
    with pytest.raises(ValueError, match="no ProcessSet"):
        world.init(process_sets=[[0, 1]])


SETS_OF_COMMUNICATORS = """
    import pytest
    from mpi4py import MPI
    from tfring.runtime import process_sets
    world = MPI.COMM_WORLD
    me = world.rank

    def total_in(process_set):
        value = np.array([10.0**me])
        number = process_set.process_set_id
        return float(core.allreduce(value, name="in", op=1, process_set=number)[0])

    # Every rank has its half; one object each, two sets.
    half = world.Split(me % 2, -me)
    mine = hvd.ProcessSet(half)
    assert mine.ranks is None and mine == hvd.ProcessSet(half)
    hvd.init(process_sets=[mine, hvd.ProcessSet([0, 3])])
    assert mine.process_set_id == 1 + me % 2 and mine.ranks == [me % 2, 2 + me % 2]
    assert mine.mpi_comm == half and mine.included() and mine.rank() == me // 2
    assert total_in(mine) == (101.0 if me % 2 == 0 else 1010.0)
    known = process_sets.get_process_set_ids_and_ranks()
    assert known == {0: [0, 1, 2, 3], 1: [0, 2], 2: [1, 3], 3: [0, 3]}

    # One of some ranks, COMM_NULL on the others, added later.
    group = world.Get_group().Incl([2, 1])
    some = hvd.ProcessSet(world.Create_group(group) if me in (1, 2) else MPI.COMM_NULL)
    hvd.add_process_set(some)
    assert some.process_set_id == 4 and some.ranks == [1, 2] and some.size() == 2
    assert some.included() == (me in (1, 2))
    assert hvd.remove_process_set(some) and hvd.remove_process_set(mine)
    with pytest.raises(ValueError, match="remove_process_set has removed it"):
        process_sets.checked_id(mine)  # as every collective does
    with pytest.raises(ValueError, match="equal to the global"):
        hvd.add_process_set(hvd.ProcessSet(world))
    hvd.shutdown()

    # Several communicators: the world, with a set for each of the others. Ids go on after 4.
    hvd.init(comm=[world, half], process_sets=[hvd.ProcessSet([1])])
    own = process_sets.registered()
    assert hvd.size() == 4 and sorted(own) == [0, 5 + me % 2, 7]
    assert total_in(own[5 + me % 2]) == (101.0 if me % 2 == 0 else 1010.0)
    world.Barrier()  # rank 0 plans for both halves: it may not leave before both have their sum
    hvd.shutdown()

    # Within a job of another communicator ranks are that job's.
    rest = world.Split(me == 0, -me)
    hvd.init(comm=rest)
    if me:
        pair = hvd.ProcessSet(rest.Split(0 if me > 1 else MPI.UNDEFINED, 0))
        hvd.add_process_set(pair)
        assert pair.ranks == [0, 1] and pair.included() == (me > 1)
        with pytest.raises(ValueError, match="rank [0-2]: .*not part of the job"):
            hvd.add_process_set(hvd.ProcessSet(half if me == 2 else MPI.COMM_NULL))
    hvd.shutdown()
    world.Barrier()
"""


def test_process_sets_of_communicators(tmp_path):
    done = mpirun(4, write_script(tmp_path, COMMON + SETS_OF_COMMUNICATORS))
    assert done.returncode == 0, done.stderr
