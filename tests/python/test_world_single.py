"""The world of one process, and what init refuses."""

from __future__ import annotations

from pathlib import Path

import pytest
from launcher_tools import run_python, write_script

core = pytest.importorskip("tfring.runtime._native").core

from tfring import world  # noqa: E402
from tfring.horovod import build_flags  # noqa: E402
from tfring.runtime import process_sets, topology  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]


def python(folder, text, **more):
    return run_python(write_script(folder, text), **more)


def test_single_process(tmp_path):
    done = python(
        tmp_path,
        """
    import sys
    from tfring.runtime import process_sets, topology
    from tfring import world
    assert not topology.is_initialized()
    world.init()
    world.init()
    assert topology.is_initialized()
    assert (topology.rank(), topology.size()) == (0, 1)
    assert (topology.local_rank(), topology.local_size()) == (0, 1)
    assert (topology.cross_rank(), topology.cross_size()) == (0, 1)
    assert world.is_homogeneous() is True
    assert not world.mpi_enabled()
    everybody = process_sets.global_process_set
    assert everybody.ranks == [0] and everybody.rank() == 0
    assert everybody.included() and everybody.size() == 1
    world.shutdown()
    world.shutdown()
    assert not topology.is_initialized()
    world.init()
    assert topology.size() == 1
    assert "tensorflow" not in sys.modules and "mpi4py" not in sys.modules
    """,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", ["rank", "size", "local_rank", "cross_size", "is_homogeneous"])
def test_calls_before_init_say_so(name):
    with pytest.raises(RuntimeError, match="init"):
        getattr(world if name == "is_homogeneous" else topology, name)()


def test_process_sets_have_a_readable_name():
    assert str(process_sets.ProcessSet([2, 0])) == (
        "ProcessSet(process_set_id=None, ranks=[0, 2], mpi_comm=None)"
    )
    assert "ranks=all" in str(process_sets.global_process_set)


@pytest.mark.parametrize(
    "ranks,words",
    [
        (5, "list of ranks"),
        ("01", "list of ranks"),
        ([], "at least one"),
        ([0, 0], "rank 0 twice"),
        ([-1], "rank -1"),
        ([0.5], "whole numbers"),
    ],
)
def test_what_is_no_process_set(ranks, words):
    with pytest.raises(ValueError, match=words):
        process_sets.ProcessSet(ranks)


def test_process_sets_of_the_same_ranks_are_equal():
    one, two = process_sets.ProcessSet(range(2)), process_sets.ProcessSet({1, 0})
    assert one == two and hash(one) == hash(two) and len({one, two}) == 1
    assert one != process_sets.ProcessSet([0]) and one != [0, 1]
    everybody = process_sets.global_process_set
    assert everybody == everybody and everybody != process_sets.ProcessSet([0])


def test_what_is_built_is_said_honestly():
    for name in ("rocm_built", "ccl_built", "ddl_built", "gloo_built", "gloo_enabled"):
        assert not getattr(build_flags, name)(), name


def test_an_impossible_setting_is_refused(tmp_path):
    done = python(
        tmp_path,
        "from tfring import world\nworld.init()\n",
        TFRING_X_PIECE_BYTES="lots",
    )
    assert done.returncode != 0
    assert 'SettingError: TFRING_X_PIECE_BYTES is "lots"' in done.stderr


def test_misspelt_setting_is_warned_about(tmp_path):
    done = python(
        tmp_path,
        "from tfring import world\nworld.init()\n",
        TFRING_PIECE_BITES="1",
    )
    assert done.returncode == 0
    assert "did you mean TFRING_X_PIECE_BYTES" in done.stderr


def test_failed_script_keeps_its_exit_code(tmp_path):
    done = python(tmp_path, "from tfring import world\nworld.init()\nraise ValueError('x')\n")
    assert done.returncode == 1 and "ValueError: x" in done.stderr
    assert python(tmp_path, "from tfring import world\nworld.init()\nexit(9)\n").returncode == 9


@pytest.mark.parametrize(
    "given,expected", [({}, "2"), ({"TF_NUM_INTEROP_THREADS": "1"}, "1"), ({"x": "y"}, "2")]
)
def test_second_inter_op_thread(tmp_path, given, expected):
    done = python(
        tmp_path,
        """
    import os
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    from tfring.job.bootstrap.inter_op_threads import ensure_inter_op_threads
    ensure_inter_op_threads()
    print(os.environ["TF_NUM_INTEROP_THREADS"])
    """,
        **given,
    )
    assert done.stdout.strip() == expected
    assert ("single inter-op thread" in done.stderr) == (expected == "1")


def test_init_leaves_threads_and_processors_as_they_are(tmp_path):
    done = python(
        tmp_path,
        """
    import os
    import tensorflow as tf
    import tfring as hvd
    def found():
        threads = tf.config.threading
        counts = threads.get_intra_op_parallelism_threads(), os.environ.get("OMP_NUM_THREADS")
        return sorted(os.sched_getaffinity(0)), counts
    before = found()
    hvd.init()
    hvd.allreduce(tf.ones([1000]))
    print(before == found())
    """,
    )
    assert done.stdout.strip() == "True"
