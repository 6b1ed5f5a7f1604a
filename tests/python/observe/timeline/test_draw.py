"""The file for Perfetto: what is in it."""

from __future__ import annotations

import gzip
import json

import numpy as np
import pytest
from made_records import gradient_name, made_job

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


def drawn(job, tmp_path, *given):
    """The events of the file; slices and marks with the names of their lanes."""
    draw(job, *given).write(tmp_path / "a.json")
    found = json.loads((tmp_path / "a.json").read_text())["traceEvents"]
    lanes = {e["tid"]: e["args"]["name"] for e in found if e["name"] == "thread_name"}
    return [{**e, "lane": lanes.get(e.get("tid"))} for e in found]


def test_each_call_has_its_phases_and_arrows_from_the_last_rank(job, tmp_path):
    found = drawn(job, tmp_path)
    slices = [e for e in found if e["ph"] == "X"]
    assert [e["name"] for e in slices if e["lane"] == BUCKET_NAME and e["pid"] == 1] == [
        "allreduce",
        "submitted, waits for rank 1",
        "negotiating",
        "queued",
        "running",
        "finishing",
    ]
    # Rank 1's clock was corrected: it called 100 us after rank 0.
    first, second = (
        e["ts"] for e in slices if (e["name"], e["lane"]) == ("allreduce", BUCKET_NAME)
    )
    assert abs(second - first - 100) < 15
    exposed = [e["dur"] for e in slices if e["name"] == "exposed communication" and e["pid"] == 1]
    assert exposed == [200]
    assert {e["name"] for e in found if e["lane"] == "events" and e["ph"] == "i"} == {
        "init",
        "epoch 2",
    }
    # An arrow from rank 1's call to where rank 0 ran it.
    (start,) = (e for e in slices if "flow_out" in e)
    (end,) = (e for e in slices if "flow_in" in e)
    assert start["bind_id"] == end["bind_id"]
    assert (start["name"], start["pid"], end["name"], end["pid"]) == ("allreduce", 2, "running", 1)


def test_most_names_share_a_lane(job, tmp_path):
    found = drawn(job, tmp_path)
    lanes = {e["args"]["name"] for e in found if e["name"] == "thread_name" and e["pid"] == 2}
    assert len(lanes - {"steps", "events"}) == NAMED_LANES
    others = {e["id"] for e in found if e.get("cat") == "others"}
    assert len(others) == OTHERS + 1 + 1 - NAMED_LANES  # with the bucket and "open"
    counts = [e["args"]["bytes"] for e in found if e["ph"] == "C"]
    assert (max(counts), min(counts)) == (4096 * (OTHERS + 1), 0)


def test_fit_its_input_and_callbacks_have_rows_of_their_own(job, tmp_path):
    noted = PhaseSource()
    noted.note(phases.CALLBACKS, 6, 90_000, 100_000)
    noted.note(phases.STEP, 7, 100_000, 200_000)
    noted.note(phases.INPUT, 7, 100_000, 140_000)
    noted.note(phases.EPOCH, 2, 100_000, 200_000)
    found = drawn(job, tmp_path, {0: np.frombuffer(noted.take(), phases.PHASE)})
    of_rank_0 = [e["lane"] for e in found if e["name"] == "thread_name" and e["pid"] == 1]
    assert of_rank_0[:3] == ["fit", "input", "callbacks"]
    slices = [(e["lane"], e["name"], e["dur"]) for e in found if e["ph"] == "X"]
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
