"""The critical path of a step, on records whose times are known."""

from __future__ import annotations

import itertools

import pytest
from made_records import US, gradient_name, made_job

from tfring.observe.recorder.job import load_job
from tfring.observe.timeline.critical import critical_path

BUCKET = 1
A, B = gradient_name(0), gradient_name(1)


def call(sequence, name, submitted, planned, ended, asked=None, step=1, **more):
    """A call; `asked` has when the last rank but one asked, when the last one did, and which."""
    values = {"name": name.encode(), "submitted": submitted, "planned": planned, "ended": ended}
    values |= {"sequence": sequence, "invocation": step, "flags": BUCKET, "bytes": 4096}
    if asked:
        values |= dict(zip(("second_last_asked", "last_asked", "last_rank"), asked, strict=True))
    return {**values, **more}


def plan(sequence, queued, started, ended):
    values = {"sequence": sequence, "queued": queued, "started": started, "ended": ended}
    return {**values, "calls": 1, "members": 2}


def shown(path):
    """The path as text and microseconds."""
    return [(part.text, part.rank, part.begin // US, part.end // US) for part in path]


def assert_without_gap(path):
    assert all(one.end == next_one.begin for one, next_one in itertools.pairwise(path))


def late_rank(folder, **more):
    """Step 1 ends at 200; in step 2 rank 1 calls at 700, 300 after rank 0."""
    first = [call(1, B, 90, 110, 200, (95, 100, 1)), call(1, B, 95, 110, 200)]
    calls = {
        0: [first[0], call(2, B, 400, 720, 900, (405, 710, 1), step=2)],
        1: [first[1], call(2, B, 700, 725, 910, step=2)],
    }
    plans = {
        0: [plan(1, 110, 111, 199), plan(2, 720, 730, 890)],
        1: [plan(1, 110, 111, 199), plan(2, 725, 740, 905)],
    }
    return made_job(folder, calls, plans, **more)


def test_a_late_rank_is_computed_for_and_then_waited_for(tmp_path):
    path = critical_path(late_rank(tmp_path), 2)
    assert shown(path) == [
        ("compute", 1, 200, 400),
        ("wait for rank 1", 1, 400, 700),
        ("negotiation", 1, 700, 740),
        ("transport", 1, 740, 910),
    ]
    assert_without_gap(path)


def test_a_batch_of_a_lock_waits_for_the_call_that_was_made_last(tmp_path):
    """All calls of a batch have one time at which a rank entered it."""
    entered = (400, 700, 1)
    calls = {
        0: [
            *(call(1, n, 90, 110, 200, (95, 100, 1)) for n in (A, B)),
            *(call(2, n, 390, 400, 900, entered, step=2) for n in (A, B)),
        ],
        1: [
            *(call(1, n, 95, 110, 200) for n in (A, B)),
            call(2, A, 410, 700, 910, step=2),
            call(2, B, 699, 700, 910, step=2),
        ],
    }
    plans = {
        0: [plan(1, 110, 111, 199), plan(2, 400, 701, 890)],
        1: [plan(1, 110, 111, 199), plan(2, 700, 740, 905)],
    }
    path = critical_path(made_job(tmp_path, calls, plans), 2)
    assert shown(path) == [
        ("compute", 1, 200, 390),
        ("wait for rank 1", 1, 390, 699),
        ("negotiation", 1, 699, 740),
        ("transport", 1, 740, 910),
    ]


def test_without_a_ranks_record_rank_0_knows_when_it_was_asked(tmp_path):
    late_rank(tmp_path)
    (tmp_path / "rank-1.record").unlink()
    path = critical_path(load_job([tmp_path]), 2)
    assert shown(path)[1:] == [
        ("wait for rank 1", 1, 405, 710),
        ("negotiation", 0, 710, 730),
        ("transport", 0, 730, 900),
    ]
    assert_without_gap(path)


def test_clocks_of_other_hosts_are_brought_together(tmp_path):
    path = critical_path(late_rank(tmp_path, shift={1: 5000}), 2)
    wait = next(part for part in path if part.kind == "wait")
    # What is between the request and the plan, 10 and 15 us, bounds how far the clocks are apart.
    assert wait.rank == 1 and abs((wait.end - wait.begin) // US - 300) <= 15
    assert_without_gap(path)


def test_a_plan_that_was_queued_leads_to_the_one_before(tmp_path):
    first = call(1, A, 100, 120, 500, (105, 110, 0))
    calls = {0: [first, call(2, B, 200, 220, 700, (205, 210, 0))]}
    plans = {0: [plan(1, 120, 130, 495), plan(2, 220, 496, 690)]}
    path = critical_path(made_job(tmp_path, calls, plans), 1)
    assert [(part.kind, part.name) for part in path] == [
        ("negotiation", A),
        ("transport", A),
        ("transport", B),
    ]
    assert (path[0].begin // US, path[-1].end // US) == (100, 700)
    assert_without_gap(path)


def test_data_move_once_the_last_rank_has_started(tmp_path):
    """Rank 1 is at an older plan of another process set still, which rank 0 has no part in."""
    calls = {
        0: [call(2, B, 100, 130, 600, (105, 120, 1))],
        1: [call(1, "x", 50, 60, 400, flags=0), call(2, B, 115, 130, 600)],
    }
    plans = {0: [plan(2, 130, 131, 590)], 1: [plan(1, 60, 61, 400), plan(2, 130, 401, 590)]}
    path = critical_path(made_job(tmp_path, calls, plans), 1)
    names = [(part.kind, part.name, part.begin // US, part.end // US) for part in path]
    assert ("transport", B, 401, 600) in names
    assert ("transport", "x", 100, 400) in names


@pytest.mark.parametrize("step", [1, 3])
def test_a_step_that_has_not_ended_or_is_not_there_has_none(step, tmp_path):
    job = made_job(tmp_path, {0: [call(0, B, 90, 0, 0)]}, {})
    assert critical_path(job, step) == ()
