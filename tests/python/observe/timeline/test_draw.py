"""The file for Perfetto: what is in it, read as JSON and by Perfetto's own trace processor."""

from __future__ import annotations

import gzip
import json

import numpy as np
import pytest
from made_records import gradient_name, made_job
from trace_processor import TraceProcessor

from tfring.observe.timeline import phases
from tfring.observe.timeline.draw import NAMED_LANES, draw
from tfring.observe.timeline.phases import PhaseSource

BUCKET, MARK, INIT = 1, 8, 1
BUCKET_NAME = gradient_name()
OTHERS = NAMED_LANES + 20


def call(sequence, name, submitted, planned, ended, **more):
    values = {"name": name.encode(), "submitted": submitted, "planned": planned, "ended": ended}
    return {**values, "sequence": sequence, "bytes": 4096, **more}


@pytest.fixture
def job(tmp_path):
    """Rank 1 calls last, its clock is 5 ms ahead, and it has many other calls at the same time."""
    asked = {"second_last_asked": 105, "last_asked": 210, "last_rank": 1}
    bucket = {"flags": BUCKET, "invocation": 1}
    many = [call(0, f"other/{i}", 100 + i, 0, 500 - i) for i in range(OTHERS)]
    calls = {
        0: [call(1, BUCKET_NAME, 100, 215, 300, **bucket, **asked)],
        1: [*many, call(1, BUCKET_NAME, 200, 225, 310, **bucket), call(0, "open", 320, 0, 0)],
    }
    plans = {
        0: [{"sequence": 1, "queued": 215, "started": 220, "ended": 290}],
        1: [{"sequence": 1, "queued": 225, "started": 230, "ended": 295}],
    }
    events = {
        0: [{"type": INIT, "time": 50, "text": b"rank 0 of 2"}],
        1: [{"type": MARK, "time": 400, "text": b"epoch 2"}],
    }
    return made_job(tmp_path, calls, plans, events, shift={1: 5000})


def test_what_the_file_says_of_itself(job, tmp_path):
    draw(job).write(tmp_path / "a.json.gz")
    with gzip.open(tmp_path / "a.json.gz", "rt") as file:
        found = json.load(file)
    about = found["otherData"]
    assert (about["job"], about["ranks"], about["missing_ranks"]) == ("made", 2, [])
    clock = about["clocks"]["rank 1"]
    assert abs(clock["offset_us"] + 5000) <= clock["error_us"] < 100
    assert [path.name for path in tmp_path.iterdir() if "a.json" in path.name] == ["a.json.gz"]


def test_perfetto_reads_it(job, tmp_path):
    draw(job).write(tmp_path / "a.json")
    lane = (
        "(select slice.*, thread.name as lane, process.name as process from slice "
        "join thread_track on slice.track_id = thread_track.id join thread using (utid) "
        "join process using (upid))"
    )
    with TraceProcessor(tmp_path / "a.json") as trace:

        def rows(columns, where, source=lane):
            return trace.query(f"select {columns} from {source} where {where} order by ts")

        names = rows("name", f"lane = '{BUCKET_NAME}' and process glob 'rank 0*'")
        assert [name for (name,) in names] == [
            "allreduce",
            "submitted, waits for rank 1",
            "negotiating",
            "queued",
            "running",
            "finishing",
        ]
        # Rank 1's clock was corrected: it called 100 us after rank 0.
        ((first,), (second,)) = rows("ts", f"name = 'allreduce' and lane = '{BUCKET_NAME}'")
        assert abs(second - first - 100_000) < 15_000
        exposed = rows("dur", "name = 'exposed communication' and process glob 'rank 0*'")
        assert exposed == [(200_000,)]
        marks = {name for (name,) in rows("name", "lane = 'events'")}
        assert marks == {"init", "epoch 2"}
        # An arrow from rank 1's call to where rank 0 ran it.
        assert trace.query(
            "select a.name as a, b.name as b from flow join slice a on a.id = flow.slice_out "
            "join slice b on b.id = flow.slice_in"
        ) == [("allreduce", "running")]
        lanes = trace.query(
            f"select count() from thread where name glob 'o*' or name = '{BUCKET_NAME}'"
        )
        assert lanes == [(1 + NAMED_LANES,)]  # of both ranks
        others = trace.query("select count() from slice where category = 'others' and depth = 0")
        assert others == [(OTHERS + 1 + 1 - NAMED_LANES,)]  # with the bucket and "open"
        assert trace.query("select max(value), min(value) from counter") == [
            (4096.0 * (OTHERS + 1), 0.0)
        ]
        # Perfetto has found nothing wrong.
        errors = "select name, value from stats where severity in ('error', 'data_loss')"
        assert trace.query(f"{errors} and value > 0") == []


def test_fit_its_input_and_callbacks_have_rows_of_their_own(job, tmp_path):
    noted = PhaseSource()
    noted.note(phases.CALLBACKS, 6, 90_000, 100_000)
    noted.note(phases.STEP, 7, 100_000, 200_000)
    noted.note(phases.INPUT, 7, 100_000, 140_000)
    noted.note(phases.EPOCH, 2, 100_000, 200_000)
    draw(job, {0: np.frombuffer(noted.take(), phases.PHASE)}).write(tmp_path / "a.json")
    found = json.loads((tmp_path / "a.json").read_text())["traceEvents"]
    lanes = {e["tid"]: e["args"]["name"] for e in found if e["name"] == "thread_name"}
    of_rank_0 = [lanes[e["tid"]] for e in found if e["name"] == "thread_name" and e["pid"] == 1]
    assert of_rank_0[:3] == ["fit", "input", "callbacks"]
    slices = [(lanes[e["tid"]], e["name"], e["dur"]) for e in found if e["ph"] == "X"]
    own = [one for one in slices if one[0] in ("fit", "input", "callbacks")]
    assert own == [  # the epoch holds the step, and so comes before it
        ("callbacks", "callbacks after step 6", 10),
        ("fit", "epoch 2", 100),
        ("fit", "step 7", 100),
        ("input", "input of step 7", 40),
    ]
    assert noted.take() == b""


def test_a_job_without_calls_has_a_file_too(tmp_path):
    job = made_job(tmp_path, {0: []}, {})
    draw(job).write(tmp_path / "a.json")
    found = json.loads((tmp_path / "a.json").read_text())
    assert {event["name"] for event in found["traceEvents"]} >= {"process_name"}
