"""Jobs that tune themselves: results stay right, and the log says what was tried and kept."""

from __future__ import annotations

import csv
import sys
from pathlib import Path

import pytest
from launcher_tools import REPORT, mpirun, run, write_script

pytest.importorskip("tfring.runtime._native")

# Steps whose tensors are large enough to be cut into pieces; the values show what was added.
SCRIPT = """
    import numpy as np
    from tfring.runtime import topology
    from tfring import world
    from tfring.runtime._native import core

    world.init()
    rank, size = topology.rank(), topology.size()
    shapes = [3, 1000, 300_000, 70_000]
    for step in range(int(sys.argv[2])):
        values = [(rank + 1) * (i + 1) + step for i in range(4)]
        tensors = [np.full(n, v, np.float32) for n, v in zip(shapes, values)]
        calls = [core.allreduce_async(t, name=f"t{i}", op=1) for i, t in enumerate(tensors)]
        for i, call in enumerate(calls):
            expected = size * (size + 1) / 2 * (i + 1) + size * step
            assert (call.wait() == expected).all(), (rank, step, i)
    world.shutdown()
    report(f"end.{rank}", "ok")
"""
TUNED = ("fusion_threshold_bytes", "max_plans_in_flight", "piece_bytes")
QUICK = {
    "HOROVOD_AUTOTUNE": "1",
    "HOROVOD_AUTOTUNE_WARMUP_SAMPLES": "1",
    "HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE": "2",
    "TFRING_AUTOTUNE_SAMPLES": "1",
    "TFRING_LOG_LEVEL": "info",
}


def rows_of(log: Path) -> list[dict[str, str]]:
    with open(log, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("locked", ["0", "1"])
def test_all_values_are_tried_and_results_are_right(tmp_path: Path, locked: str) -> None:
    path = write_script(tmp_path, SCRIPT, header=REPORT)
    log = tmp_path / "log.csv"
    more = {"TFRING_X_ARENA": "0", "TFRING_LOCK_SCHEDULE": locked, "HOROVOD_AUTOTUNE_LOG": str(log)}
    done = mpirun(2, path, str(tmp_path), "80", **QUICK, **more)
    assert done.returncode == 0, done.stderr
    assert {f.name for f in tmp_path.glob("end.*")} == {"end.0", "end.1"}
    rows = rows_of(log)
    tried = [row for row in rows if row["step"] == "tried"]
    assert len(tried) == 1 + 4 + 3 + 3
    assert [tried[0][name] for name in TUNED] == [str(128 << 20), "2", str(256 << 10)]
    assert {row["piece_bytes"] for row in tried} == {"65536", "262144", "1048576", "4194304"}
    assert all(int(row["bytes_per_second"]) > 0 for row in rows)
    assert [row["step"] for row in rows].count("kept") == 1 and rows[-1]["step"] == "kept"
    kept = f"autotuning is over and keeps TFRING_FUSION_THRESHOLD {rows[-1][TUNED[0]]}"
    assert done.stderr.count(kept) == 1, done.stderr


def test_what_is_set_is_not_tried(tmp_path: Path) -> None:
    path = write_script(tmp_path, SCRIPT, header=REPORT)
    log = tmp_path / "log.csv"
    options = ("--fusion-threshold-mb", 1, "--autotune-log-file", log, "-np", 2)
    done = run(*options, sys.executable, path, tmp_path, 60, **QUICK)
    assert done.returncode == 0, done.stderr
    rows = rows_of(log)
    assert {row["fusion_threshold_bytes"] for row in rows} == {str(1 << 20)}
    assert {row["max_plans_in_flight"] for row in rows} == {"1", "2", "4", "8"}
    # Arenas, which carry allreduces within a host, have no pieces.
    assert {row["piece_bytes"] for row in rows} == {str(256 << 10)}


def test_a_log_that_cannot_be_written_is_a_warning(tmp_path: Path) -> None:
    path = write_script(tmp_path, SCRIPT, header=REPORT)
    log = str(tmp_path / "none" / "log.csv")
    done = run("-np", 2, sys.executable, path, tmp_path, 30, **QUICK, TFRING_AUTOTUNE_LOG=log)
    assert done.returncode == 0, done.stderr
    assert f"cannot write {log} on rank 0: No such file or directory" in done.stderr
