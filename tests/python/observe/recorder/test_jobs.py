"""Records of jobs that run, hang, end well and are killed. Whole jobs, without TensorFlow."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from launcher_tools import REPORT, environment, pids_in, run_python, start, wait_until, write_script

from tfring.observe.recorder.job import JobRecords, load_job
from tfring.observe.recorder.layout import EventType, RankState
from tfring.observe.recorder.processes import process_state
from tfring.observe.recorder.reader import Record, read_record

native = pytest.importorskip("tfring.runtime._native")

# Calls whose name says how long the tensor is, as fast as they go.
CALLS = """
import numpy as np
import tfring as hvd
from tfring.runtime._native import core

hvd.init()
arrays = [np.ones(length, np.float32) for length in range(1, 60)]
print("runs", flush=True)
while True:
    for array in arrays:
        name = f"{'x' * (array.size % 7)} of {array.size}"
        core.allreduce(array, name=name, op=1)
"""


def test_a_record_is_read_whole_while_calls_run(tmp_path: Path) -> None:
    script = write_script(tmp_path, CALLS)
    folder = tmp_path / "records"
    own = environment(TFRING_RECORD_DIR=str(folder))
    with subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, env=own) as ranks:
        try:
            assert ranks.stdout is not None and ranks.stdout.readline() == b"runs\n"
            (path,) = folder.glob("*/rank-0.record")
            record = read_record(path)
            first = record.header["calls"]
            # Until every slot has been used again.
            while record.header["calls"] < first + 9_000:
                record = read_record(path)
                check_entries(record)
        finally:
            ranks.kill()
    check_entries(read_record(path))


def check_entries(record: Record) -> None:
    assert record.read is not None
    for call in record.calls:
        length = int(call.name.rpartition(" ")[2])
        assert call.name == f"{'x' * (length % 7)} of {length}"
        assert (call.shapes, call.bytes) == (((length,),), 4 * length)
        assert call.submitted <= (call.planned or call.submitted)
        if call.planned:
            assert 0 < call.first_asked <= call.last_asked <= call.planned
            assert call.sequence > 0 and call.last_rank == 0
        if call.ended:
            assert call.status == "OK" and call.ended >= call.planned > 0
    numbers = [call.number for call in record.calls]
    assert numbers == sorted(set(numbers))
    # Of the calls that had ended when reading began, only the oldest may be missing.
    if len(numbers) > 1000:
        assert numbers[500:] == list(range(numbers[500], numbers[-1] + 1))


HANGS = """
import os
import numpy as np
import tfring as hvd
from tfring.runtime._native import core

hvd.init()
for _ in range(3):
    core.allreduce(np.ones(4, np.float32), name="of all", op=1)
core.mark_step(7, 96, 1000)
core.mark("before the hang")
if hvd.rank() == 1:
    waits = core.allreduce_async(np.ones(2, np.float32), name="only here", op=1)
report(f"pid.{hvd.rank()}", os.getpid())
core.barrier(name="never", process_set=0) if hvd.rank() == 0 else waits.wait()
"""


def test_records_outlive_ranks_that_are_killed(tmp_path: Path) -> None:
    script = write_script(tmp_path, HANGS, header=REPORT)
    folder = tmp_path / "records"
    settings = {"TFRING_RECORD_DIR": str(folder), "TFRING_STALL_SHUTDOWN_TIME_SECONDS": "77"}
    job = start("-np", 2, sys.executable, script, tmp_path, **settings)
    try:
        pids = pids_in(tmp_path, 2)
        records = load_job([folder])
        assert states(records) == ["running", "running"]
        os.kill(pids["1"], signal.SIGSTOP)
        assert wait_until(lambda: states(load_job([folder])) == ["running", "stopped"])
        os.kill(pids["0"], signal.SIGSTOP)  # or it would see that rank 1 is gone
        assert wait_until(lambda: states(load_job([folder])) == ["stopped", "stopped"])
        for pid in pids.values():
            os.kill(pid, signal.SIGKILL)
        assert wait_until(lambda: states(load_job([folder])) == ["gone", "gone"])
    finally:
        job.kill()
        job.communicate()
    records = load_job([folder])
    assert list(records.records) == [0, 1] and not records.missing
    for rank, record in records.records.items():
        assert record.state == RankState.RUNNING  # it had no time to write anything else
        assert record.pid == pids[str(rank)]
        assert [call.name for call in record.calls[:3]] == ["of all"] * 3
        assert [call.invocation for call in record.calls[:3]] == [1, 2, 3]
        assert (record.header["step"], record.header["samples"]) == (7, 96)
        assert record.header["stall_shutdown"] == 77_000_000_000
        assert record.header["heartbeat_timeout"] == 60_000_000_000
        marks = [event.text for event in record.events if event.type == EventType.MARK]
        assert marks == ["before the hang"]
    (waiting,) = records.records[1].open_calls
    assert waiting.name == "only here" and waiting.waits
    assert records.records[0].calls[0].last_rank in (0, 1)
    assert records.records[1].calls[0].last_rank == -1  # only rank 0 knows


def states(job: JobRecords) -> list[str | None]:
    return [process_state(record.header) for record in job.records.values()]


ENDS = """
import sys
import numpy as np
import tfring as hvd
from tfring.runtime._native import core
from tfring.observe.recorder.own import own_path

hvd.init()
core.allreduce(np.ones(4, np.float32), name="x", op=1)
print(own_path())
if len(sys.argv) > 1:
    raise ValueError("of the program")
"""


def test_the_record_goes_with_a_job_that_ends_well(tmp_path: Path) -> None:
    script = write_script(tmp_path, ENDS)
    path = Path(run_python(script).stdout.strip())
    assert path.name == "rank-0.record" and not path.parent.exists()
    path = Path(run_python(script, "fail").stdout.strip())
    record = read_record(path)
    path.unlink()
    path.parent.rmdir()
    assert record.state == RankState.FAILED and process_state(record.header) == "gone"
    assert run_python(script, TFRING_RECORD="0").stdout == "None\n"
