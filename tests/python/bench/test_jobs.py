"""Real runs of `tfring bench` with tiny sizes: their output, not their speed."""

from __future__ import annotations

import sys
from pathlib import Path

import launcher_tools as tools
import pytest

from tfring.bench.result import read_result

TINY = ["bench", "--max-bytes", "4", "--time-limit", "1"]
BENCH = [sys.executable, "-m", "tfring", *TINY]


@pytest.mark.slow
def test_two_ranks_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    done = tools.finish([*BENCH, "--json", str(path), "--collective", "allreduce,alltoall"])
    assert done.returncode == 0, done.stderr
    result = read_result(str(path))
    assert (result.ranks, result.hosts) == (2, 1)
    rows = {(row.section, row.bytes): row for row in result.rows}
    assert list(rows)[:1] == [("allreduce float32", 4)]
    assert done.stdout.startswith("tfring ") and "2 ranks on 1 host" in done.stdout
    for row in result.rows:
        assert row.rounds >= 3
        assert set(row.samples_ms) == {"call", "bare", "copy"}
        assert all(took > 0 for each in row.samples_ms.values() for took in each)
        assert f"{row.bytes} " in done.stdout
    # Each case was measured, or the output says why not.
    assert len(rows) == 2 or "the time limit of 1 s was reached before" in done.stderr
    # Only rank 0 writes, so that the table is printed unchanged.
    assert not any(line.startswith("0| ") for line in done.stdout.splitlines())


@pytest.mark.slow
def test_the_ranks_of_mpirun_measure_in_place(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    command = [*tools.open_mpi_command(), "-np", "2", *BENCH]
    done = tools.finish([*command, "--json", str(path)], **tools.AS_ROOT)
    assert done.returncode == 0, done.stderr
    result = read_result(str(path))
    assert result.ranks == 2 and result.complete
    assert done.stdout.count("2 ranks on 1 host") == 1


@pytest.mark.slow
def test_a_run_that_is_broken_off_leaves_what_it_has(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    command = [*BENCH, "-np", "1", "--json", str(path), "--max-bytes", "1G", "--time-limit", "0"]
    job = tools.start_command(command)
    try:
        assert tools.wait_until(path.exists)
    finally:
        job.terminate()
        job.communicate(timeout=tools.LIMIT_SECONDS)
    result = read_result(str(path))
    assert result.rows and not result.complete
