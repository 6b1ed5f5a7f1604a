"""The explanation comes by itself: at a stall, and when `tfring run` has failed. Whole jobs."""

from __future__ import annotations

import os
import re
import socket
import sys
from pathlib import Path

import pytest
from launcher_tools import REPORT, finish, run, write_script

from tfring.observe.recorder.places import id_of, short

pytest.importorskip("tfring.runtime._native")

SCRIPT = """
    import os, signal, sys, time
    from pathlib import Path
    import numpy as np
    from tfring.runtime import topology
    from tfring import world
    from tfring.runtime._native import core
    from tfring.observe.recorder import places
    from tfring.observe.recorder.own import own_path

    for folder in sys.argv[3:]:
        places.MEMORY = Path(folder)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # time to report its error on a busy machine
    world.init()
    rank, how = topology.rank(), sys.argv[2]
    report(f"record.{rank}", own_path())
    try:
        for step in range(20):  # the last one may fail, too, where rank 1 dies right after it
            core.allreduce(np.ones(4), name="loss", op=1)
        if rank == 1 and how == "hangs":
            time.sleep(60)
        if rank == 1 and how == "dies":
            os.kill(os.getpid(), signal.SIGKILL)
        core.allreduce(np.ones(4), name="loss", op=1)  # needs rank 1
    except core.CoreError as error:
        report(f"error.{rank}", error)
        raise
"""
# As `tfring` where all records of this host are in the folder that is given: other jobs that fail
# meanwhile do not throw these away.
TFRING_WITH_FOLDER = """
import sys
from pathlib import Path
from tfring.launch.cli import main
from tfring.observe.recorder import places

places.MEMORY = Path(sys.argv[1])
sys.exit(main(sys.argv[2:]))
"""
LIMITS = {"TFRING_STALL_CHECK_TIME_SECONDS": "1.5", "TFRING_STALL_SHUTDOWN_TIME_SECONDS": "4"}


def records(folder: Path) -> list[Path]:
    """Where the ranks had their records."""
    return [Path(file.read_text().strip()) for file in folder.glob("record.*")]


def assert_says_where_to_read_more(folder: Path, *ranks: int) -> None:
    """The errors of these ranks end with the command that explains the job."""
    for rank, file in zip(ranks, records(folder), strict=False):
        error = (folder / f"error.{rank}").read_text().strip()
        job = short(id_of(file.parent.name))
        assert error.endswith(f". `tfring explain {job}` says more."), error


def test_a_stall_is_explained_while_it_lasts_and_at_the_end(tmp_path: Path) -> None:
    path = write_script(tmp_path, SCRIPT, header=REPORT)
    done = run("-np", 2, sys.executable, path, tmp_path, "hangs", **LIMITS)
    assert done.returncode != 0
    said = [line for line in done.stderr.splitlines() if "ank 1 " in line and "script.py:" in line]
    while_it_lasts = [line for line in said if ") warning: Rank 1 " in line]
    at_the_end = [line for line in said if line.startswith("tfring: Rank 1 sleeps in ")]
    assert len(while_it_lasts) == len(at_the_end) == 1, done.stderr
    assert while_it_lasts[0].startswith("0| ")
    assert "Rank 1 sleeps in <module> (script.py:" in while_it_lasts[0]
    assert "rank 0 waits for it in allreduce of tensor 'loss'" in while_it_lasts[0]
    assert "The job ends in 2 s if nothing changes. `tfring explain" in while_it_lasts[0]
    assert "has waited" not in done.stderr  # it speaks alone
    assert (tmp_path / "error.0").read_text().startswith("DeadlineExceeded: ")
    assert_says_where_to_read_more(tmp_path, 0)


def test_a_failed_run_keeps_its_records_and_says_what_they_tell(tmp_path: Path) -> None:
    path = write_script(tmp_path, SCRIPT, header=REPORT)
    (tmp_path / "all").mkdir()
    all_records = os.fspath(tmp_path / "all")
    tfring = [sys.executable, "-c", TFRING_WITH_FOLDER, all_records]
    rank = [sys.executable, os.fspath(path), os.fspath(tmp_path), "dies", all_records]
    done = finish([*tfring, "run", "-np", "3", *rank])
    assert done.returncode == 128 + 9
    assert "\ntfring: Rank 1 was killed by SIGKILL" in done.stderr, done.stderr
    found = records(tmp_path)
    assert len(found) == 3
    job = short(id_of(found[0].parent.name))
    assert all(file.exists() for file in found)
    assert done.stderr.endswith(f" More: tfring explain {job}\n")
    assert re.match(rf"tfring \S+  job {job}  3 ranks on {socket.gethostname()} ", done.stderr)
    assert_says_where_to_read_more(tmp_path, 0, 2)
    assert ") warning: Rank 1 " not in done.stderr  # the launcher has said it
    assert found[0].is_relative_to(all_records)
    # The command finds the job by its folder, its id, and by itself.
    for given in ([str(found[0].parent)], [job], []):
        again = finish([*tfring, "explain", *given])
        assert "rank 1" in again.stdout.lower(), again
