"""A rank leaves: calls that need it end with the reason, others go on. Whole jobs."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from launcher_tools import REPORT, mpirun, run, run_python, write_script

native = pytest.importorskip("tfring.runtime._native")

SCRIPT = """
    import time
    import numpy as np
    from tfring.runtime import topology
    from tfring import world
    from tfring.runtime._native import core

    world.init()
    rank = topology.rank()
    pair = core.add_process_set([1, 2])
    core.barrier(name="all")
    if rank > 0:
        big = np.ones(1 << 20, np.float32)
        running = core.allreduce_async(big, name="running", op=1, process_set=pair)
        time.sleep(1.0)  # rank 0 has left
        assert running.wait()[-1] == 2
        for step in range(20):
            assert core.allreduce(big, name="step", op=1, process_set=pair)[-1] == 2
        try:
            core.allreduce(big, name="with rank 0", op=1)
        except core.CoreError as error:
            assert "rank 0" in error.message and "has shut down" in error.message, error.message
        else:
            raise AssertionError("without rank 0")
    world.shutdown()
    report(f"end.{rank}", "ok")
"""


def test_rank_0_plans_on_for_process_sets_without_it(tmp_path: Path) -> None:
    path = write_script(tmp_path, SCRIPT, header=REPORT)
    done = run("-np", 3, sys.executable, path, tmp_path, HOROVOD_CYCLE_TIME="5")
    assert done.returncode == 0, done.stderr
    assert {f.name for f in tmp_path.glob("end.*")} == {"end.0", "end.1", "end.2"}
    # Rank 0 prints what all ranks would print.
    warning = "HOROVOD_CYCLE_TIME has no effect"
    assert [line[:4] for line in done.stderr.splitlines() if warning in line] == ["0| ["]


# Rank 1 ends without calling rank 0's allreduce. mpirun, which ends all ranks, has to wait for 0.
ENDING = """
    import signal
    import numpy as np
    from tfring.runtime import topology
    from tfring import world
    from tfring.runtime._native import core

    def train(folder, how):
        sys.argv[1:] = [folder]  # for report
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        world.init()
        core.barrier(name="begin")
        if topology.rank() == 1:
            if how == "exit":
                sys.exit(3)
            raise ValueError("bad sh\\u00e4pes\\n  in \\ud800 the data" + " and so on" * 60)
        try:
            core.allreduce(np.ones(4, np.float32), name="x", op=1)
        except core.CoreError as error:
            report("end", error.message)

    if __name__ == "__main__":
        train(*sys.argv[1:])
"""
FUNCTION = """
    import tfring
    from ending import train
    try:
        tfring.run(train, args=(sys.argv[1], "exception"), np=2)
    except RuntimeError as error:
        assert "Rank 1 failed" in str(error), error
    else:
        raise AssertionError("rank 1 fails")
"""


@pytest.mark.parametrize("launcher", ["tfring", "mpirun", "function"])
def test_exception_that_ends_a_rank_is_named_by_the_others(tmp_path: Path, launcher: str) -> None:
    path = write_script(tmp_path, ENDING, "ending.py", header=REPORT)
    if launcher == "tfring":
        done = run("-np", 2, sys.executable, path, tmp_path, "exception")
    elif launcher == "mpirun":
        done = mpirun(2, path, str(tmp_path), "exception")
    else:
        caller = write_script(tmp_path, FUNCTION, header="import sys\n")
        done = run_python(caller, str(tmp_path))
    assert (tmp_path / "end").exists(), done.stderr
    text = (tmp_path / "end").read_text()
    assert text.startswith("rank 1 (host "), text
    assert ") ended with an exception: ValueError: bad sh\u00e4pes in ? the data and so on" in text
    assert "so on and [...]. Tensor 'x' was waiting for rank 1 (" in text
    assert "amount of data" not in text and len(text) < 800


# No rank waits for rank 2 in a collective, so only the launcher ends the others.
ASLEEP = """
    import time
    from tfring.runtime import topology
    from tfring import world
    from tfring.runtime._native import core

    world.init()
    core.barrier(name="begin")
    if topology.rank() == 2:
        raise ValueError("only here")
    time.sleep(1 << 20)
"""


def test_exception_of_a_rank_ends_others_that_sleep(tmp_path: Path) -> None:
    """mpirun does so, too: the runtime aborts the job of a rank that ends with an exception."""
    done = mpirun(3, write_script(tmp_path, ASLEEP))
    assert done.returncode == 1, done.stderr
    assert "ValueError: only here" in done.stderr


def test_rank_that_exits_early_is_named_by_the_others(tmp_path: Path) -> None:
    path = write_script(tmp_path, ENDING, "ending.py", header=REPORT)
    done = run("-np", 2, sys.executable, path, tmp_path, "exit")
    assert "tfring: Rank 1 called sys.exit(3) in ending.py:" in done.stderr
    text = (tmp_path / "end").read_text()
    assert text.startswith("rank 1 has shut down while tensor 'x' was waiting for it (")
    assert "do all have the same amount of data?" in text
