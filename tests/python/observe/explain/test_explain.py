"""Explanations of records that no planted fault has: made up, without processes."""

from __future__ import annotations

import random
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from made_jobs import SECOND, START, call, event, job, record
from made_records import write_training

from tfring.observe.explain.causes import Cause, Explanation
from tfring.observe.explain.explain import EAGER_CIRCLE_END, explain
from tfring.observe.explain.processes import Seen
from tfring.observe.recorder.job import load_job
from tfring.observe.recorder.layout import CallFlags, EventType, RankState
from tfring.observe.recorder.reader import Call
from tfring.observe.recorder.stacks import KEEPS_LOCK, NO_STACKS
from tfring.observe.report.summary import make_report
from tfring.observe.report.text import write_sentences

RUNS = Seen("running", busy=False)
STACKS = """Thread [MainThread] (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 327 in wait
  File "/usr/lib/python3.11/queue.py", line 171 in get
  File "/job/data.py", line 12 in load_batch
  File "/job/train.py", line 40 in main

Thread [reader] (most recent call first):
  File "/job/data.py", line 3 in read
  File "/usr/lib/python3.11/threading.py", line 1002 in _bootstrap
"""


def steps(count: int, wait: float = 0.01) -> list[Call]:
    """Calls of one name, one a second, each of which has waited so long."""
    return [call("loss", n, n, n + wait) for n in range(1, count + 1)]


def hang(count: int, usual: float = 0.01) -> list[Call]:
    """Calls as `steps`, and one more that waits."""
    return [*steps(count, usual), call("loss", count + 1, count + 1)]


@pytest.mark.parametrize(("waited", "cause"), [(2.5, Cause.NOTHING), (3.5, Cause.NOT_CALLING)])
def test_a_wait_has_to_be_three_times_as_long_as_usual(waited: float, cause: Cause) -> None:
    now = 21 + waited
    found = explain(
        job([record(0, 2, hang(20, 1.0), now), record(1, 2, steps(20, 1.0), now)]),
        {0: RUNS, 1: RUNS},
    )
    assert found.cause is cause
    assert found.ranks == (() if cause is Cause.NOTHING else (1,))


@pytest.mark.parametrize(("usual", "cause"), [(0.01, Cause.NOT_CALLING), (1.0, Cause.NOTHING)])
def test_a_rank_that_is_missing_in_a_locked_schedule_is_found(usual: float, cause: Cause) -> None:
    # The lock gave each call its plan when it was made; the call then waited for the other rank.
    made = [replace(one, planned=one.submitted) for one in steps(20, usual)]
    waits = replace(call("loss", 21, 21), planned=START + 21 * SECOND)
    found = explain(
        job([record(0, 2, [*made, waits], 23.5), record(1, 2, made, 23.5)]),
        {0: RUNS, 1: RUNS},
    )
    assert found.cause is cause, found.text
    assert "rank 0 waits " in found.text.lower()


@pytest.mark.parametrize(
    ("waited", "busy", "cause"),
    [
        (55.0, True, Cause.NOTHING),
        (55.0, None, Cause.NOTHING),
        (55.0, False, Cause.NOT_CALLING),
        (65.0, True, Cause.NOT_CALLING),
    ],
)
def test_others_may_compile_for_three_times_as_long_as_who_waits_for_them(
    waited: float, busy: bool | None, cause: Cause
) -> None:
    # Both ranks get the weights; 20 s later rank 0 calls the first sum of gradients.
    weights = [call(f"weight{n}", 1, n / 10, n / 10 + 0.01) for n in range(1, 21)]
    now = 22.0 + waited
    first = [*weights, call("gradients", 1, 22.0)]
    made = [record(0, 2, first, now), record(1, 2, weights, now)]
    found = explain(job(made), {0: RUNS, 1: Seen("running", busy=busy)})
    assert found.cause is cause, found.text
    assert ("for the first time" in found.text) == (cause is Cause.NOTHING)


def test_how_long_a_first_call_has_waited_says_nothing_of_later_ones() -> None:
    weights = [call(f"weight{n}", 1, n / 10, n / 10 + 0.01) for n in range(1, 21)]
    compiled = call("loss", 1, 3, 63)  # rank 1 came 60 s later
    later = [call("loss", n, 70 + n, 70.01 + n) for n in range(2, 21)]
    hangs = call("loss", 21, 91)
    made = [
        record(0, 2, [*weights, compiled, *later, hangs], 95),
        record(1, 2, [*weights, compiled, *later], 95),
    ]
    found = explain(job(made), {0: RUNS, 1: RUNS})
    assert (found.cause, found.ranks) == (Cause.NOT_CALLING, (1,)), found.text


def test_a_stack_says_on_which_line_a_rank_is() -> None:
    seen = {0: RUNS, 1: Seen("running", busy=True, stacks=STACKS)}
    found = explain(job([record(0, 2, hang(20), 30), record(1, 2, steps(20), 30)]), seen)
    assert found.ranks == (1,)
    where = "allreduce of tensor 'loss' (train.py:40)"
    assert found.text == (
        "Rank 1 waits for a queue in load_batch (data.py:12) and has called nothing for 10 s; "
        f"rank 0 waits for it in {where}, for 9 s. It is process 4001 on host a and called "
        f"{where} last."
    )
    assert found.brief == "rank 1 waits for a queue in load_batch (data.py:12)"
    assert found.age == 9 * SECOND
    assert "tfring stacks" not in found.text


def test_a_rank_that_cannot_say_where_it_is_is_said_so() -> None:
    seen = {0: RUNS, 1: Seen("running", busy=True, stacks=f"{NO_STACKS}{KEEPS_LOCK}, or ...")}
    found = explain(job([record(0, 2, hang(20), 30), record(1, 2, steps(20), 30)]), seen)
    assert f"It computes. Its current line is unknown, because {KEEPS_LOCK}." in found.text


def test_never_is_said_only_of_calls_that_are_all_recorded() -> None:
    branch = [*steps(20), call("validation", 1, 21)]
    for overwritten, said in ((0, "has never called"), (5, "still recorded, called")):
        lost = {"overwritten": overwritten}
        made = [record(0, 2, hang(20), 30, **lost), record(1, 2, branch, 30, **lost)]
        assert said in explain(job(made), {0: RUNS, 1: RUNS}).text


def test_ranks_without_a_record_are_named_where_all_others_have_called() -> None:
    records = [record(rank, 3, hang(20), 30) for rank in (0, 1)]
    found = explain(job(records), {})
    assert (found.cause, found.ranks) == (Cause.NOT_CALLING, (2,))
    assert "Rank 2 has no record here" in found.text


def test_a_rank_of_another_host_that_fell_silent_is_lost() -> None:
    text = "rank 1 (host b) was lost: has sent nothing for 30 s. See the log of that rank"
    lost = event(EventType.ABORT, 25, text, "Unavailable")
    failed = [
        *steps(20),
        call("loss", 21, 21, ended=START + 25 * SECOND, status="Unavailable"),
    ]
    found = explain(
        job(
            [
                record(0, 2, failed, 30, events=[lost], state=RankState.FAILED),
                record(1, 2, steps(20), 30, host="b"),
            ]
        ),
        {0: Seen("gone")},
    )
    assert (found.cause, found.ranks) == (Cause.LOST, (1,))
    assert "rank 1 (host b, process 4001) was lost: has sent nothing" in found.text.lower()


def test_what_hangs_for_two_reasons_is_told_both() -> None:
    branch = [*steps(20), call("validation", 1, 21)]
    calls = {0: hang(20), 1: branch, 2: hang(20), 3: steps(20)}
    seen = {**dict.fromkeys(range(3), RUNS), 3: Seen("stopped")}
    found = explain(job([record(rank, 4, own, 30) for rank, own in calls.items()]), seen)
    assert (found.cause, found.ranks) == (Cause.STOPPED, (3,))
    assert "Rank 1 has called 'validation', which ranks 0 and 2 have never called." in found.text
    assert "kill -CONT 4003" in found.text


def test_when_a_hang_ends_the_job_follows_from_its_limit() -> None:
    def found(other: Seen, limit: int = 600) -> Explanation:
        header = {"stall_shutdown": limit * SECOND, "heartbeat_timeout": 60 * SECOND}
        waits = record(0, 2, hang(20), 33, **header)
        ranks = [waits, record(1, 2, steps(20), 33, **header, awake=START + 21 * SECOND)]
        return explain(job(ranks), {0: other if other.state == "gone" else RUNS, 1: other})

    hangs = found(RUNS)
    assert hangs.cause is Cause.NOT_CALLING
    assert hangs.ends(hangs.age) == "The job ends in 9 min 48 s if nothing changes"
    assert found(RUNS, limit=0).ends(hangs.age) == ""
    # No heartbeat comes from one that is stopped: it is lost long before.
    stopped = found(Seen("stopped"))
    assert stopped.cause is Cause.STOPPED
    assert stopped.ends(stopped.age) == "The job ends in 48 s if nothing changes"
    assert not found(Seen("gone")).ends(hangs.age)


@pytest.mark.parametrize(
    ("flags", "limit", "ends"),
    [
        (CallFlags(0), 600, "The job ends in 34 s if nothing changes"),
        (CallFlags.IN_RUN, 600, "The job ends in 9 min 49 s if nothing changes"),
        (CallFlags(0), 0, ""),
    ],
)
def test_ranks_that_wait_for_each_other_in_eager_calls_end_sooner(
    flags: CallFlags, limit: int, ends: str
) -> None:
    header = {"stall_shutdown": limit * SECOND}
    other = [*steps(20), replace(call("validation", 1, 22), flags=flags)]
    found = explain(
        job([record(0, 2, hang(20), 33, **header), record(1, 2, other, 33, **header)]),
        {0: RUNS, 1: RUNS},
    )
    assert found.cause is Cause.EXTRA_CALL
    assert found.ends(found.age) == ends


def test_the_share_of_the_input_is_told_of_a_slow_rank() -> None:
    asked = []
    for n in range(1, 41):
        begin = START + n * SECOND
        late = {"first_asked": begin, "second_last_asked": begin, "last_rank": 1}
        asked.append(call("loss", n, n, n + 0.5, last_asked=begin + SECOND // 2, **late))
    times = {"step_began": START + 40 * SECOND, "input_time": 24 * SECOND}
    found = explain(
        job([record(0, 2, asked, 41), record(1, 2, steps(40), 41, **times)]), {0: RUNS, 1: RUNS}
    )
    assert (found.cause, found.ranks) == (Cause.SLOW, (1,))
    assert "60% of its time waiting for input" in found.text


def test_the_calls_of_a_batch_of_a_lock_were_waited_for_once() -> None:
    asked = []
    for n in range(1, 41):
        begin = START + n * SECOND
        late = {"first_asked": begin, "second_last_asked": begin, "last_rank": 1}
        late["last_asked"] = begin + SECOND // 100
        made = [call(f"gradient {i}", n, n, n + 0.5, **late) for i in range(30)]
        asked += [replace(one, planned=begin) for one in made]
    found = explain(job([record(0, 2, asked, 41), record(1, 2, steps(40), 41)]), {0: RUNS, 1: RUNS})
    assert found.cause is Cause.NOTHING, found.text


def moments(ranks: int, hours: float, snapshots: int) -> list[tuple[float, list[list[Call]]]]:
    """Healthy training with uneven steps, seen at random moments: of each rank the newest calls."""
    dice = random.Random(7)
    length = hours * 3600
    looks = sorted(dice.uniform(60, length) for _ in range(snapshots))
    begin, step = 0.0, 0
    done: list[list[Call]] = [[] for _ in range(ranks)]
    found = []
    while looks:
        step += 1
        asked = [begin + dice.lognormvariate(-0.7, 0.5) for _ in range(ranks)]
        end = max(asked) + 0.01
        while looks and looks[0] < end:
            now = looks.pop(0)
            waiting = [[call("loss", step, at)] if at < now else [] for at in asked]
            found.append((now, [own[-300:] + one for own, one in zip(done, waiting, strict=True)]))
        order = sorted(asked)
        late = {
            "first_asked": START + round(order[0] * SECOND),
            "second_last_asked": START + round(order[-2] * SECOND),
            "last_asked": START + round(order[-1] * SECOND),
            "last_rank": asked.index(order[-1]),
        }
        for rank, at in enumerate(asked):
            done[rank].append(call("loss", step, at, end, **(late if rank == 0 else {})))
        begin = end
    return found


def test_an_hour_of_uneven_steps_is_no_alarm() -> None:
    for now, calls in moments(4, 1.0, 30):
        made = job([record(rank, 4, own, now) for rank, own in enumerate(calls)])
        found = explain(made, dict.fromkeys(range(4), RUNS))
        assert found.cause is Cause.NOTHING, (now, found.text)


def test_a_job_that_ended_well_is_over() -> None:
    left = [record(rank, 2, steps(5), 9, state=RankState.LEFT) for rank in (0, 1)]
    found = explain(job(left), {})
    assert found.cause is Cause.OVER
    assert "after 10 calls" in found.text


@pytest.mark.parametrize("flags", [CallFlags.COMPILED, CallFlags(0)])
def test_compiled_calls_that_wait_for_each_other_may_be_on_threads(flags: CallFlags) -> None:
    waits = [call(f"f{rank}", 1, 21, flags=flags) for rank in range(2)]
    records = [record(rank, 2, [*steps(20), waits[rank]], 30) for rank in range(2)]
    found = explain(job(records), {0: RUNS, 1: RUNS})
    assert found.names == ("f0", "f1")
    assert ("jit_compile=True" in found.text) == (flags is CallFlags.COMPILED)
    assert "Compare what leads to these lines" in found.text


def test_who_joins_a_process_set_is_still_needed_in_others() -> None:
    join = call("join", 1, 21, kind="join", process_set=1)
    records = [record(0, 2, hang(20), 30), record(1, 2, [*steps(20), join], 30)]
    sets = event(EventType.PROCESS_SETS, 0, "0: 0-1; 1: 0-1")
    found = explain(job([replace(one, events=[sets]) for one in records]), {0: RUNS, 1: RUNS})
    assert (found.cause, found.ranks) == (Cause.OTHER_ORDER, (0, 1))
    everywhere = replace(join, process_set=0)
    records[1] = record(1, 2, [*steps(20), everywhere], 30)
    found = explain(job([replace(one, events=[sets]) for one in records]), {0: RUNS, 1: RUNS})
    assert found.ranks != (0, 1)


@pytest.mark.parametrize(
    "slow_from", [100, 0, None], ids=["becomes slow", "always slow", "healthy"]
)
def test_a_rank_is_slow_by_a_change_or_all_along(tmp_path: Path, slow_from: int | None) -> None:
    own = 20 * np.random.default_rng(1).lognormal(0, 0.05, (3, 300))
    if slow_from is not None:
        own[2, slow_from:] += 10
    made = load_job([write_training(tmp_path, own, state=RankState.RUNNING)])
    found, report = explain(made, dict.fromkeys(range(3), RUNS)), make_report(made)
    if slow_from is None:
        assert found.cause is Cause.NOTHING
        assert report.always_slow is None and report.slowdowns == ()
        return
    assert (found.cause, found.ranks) == (Cause.SLOW, (2,))
    if slow_from:
        (change,) = report.slowdowns
        assert change.text() in found.text and abs(change.step - slow_from) <= 2
        assert report.always_slow is None
    else:
        assert "rank 2 (host here, process" in found.text and "slower than the others" in found.text
        assert report.always_slow == 2 and report.slowdowns == ()
        assert "Rank 2 was always slower than the others." in write_sentences(report)


@pytest.mark.parametrize(
    ("errors", "ranks", "text"),
    [
        (("ValueError: a", "ValueError: a"), (0, 1), "All 2 ranks ended with: ValueError: a."),
        (
            ("ValueError: a", "CancelledError: rank 0 (host h) ended with an exception: V"),
            (0,),
            "The other ranks cannot go on without it. Look at the traceback of that rank; the",
        ),
        (("ValueError: a", "KeyError: b"), (0,), "Look at the traceback of that rank."),
    ],
)
def test_nobody_is_blamed_for_what_ranks_did_by_themselves(
    errors: tuple[str, str], ranks: tuple[int, ...], text: str
) -> None:
    left, end = RankState.LEFT, EventType.SHUTDOWN
    ended = [
        record(rank, 2, steps(2), 9.0, events=[event(end, 5.0 + rank, error)], state=left)
        for rank, error in enumerate(errors)
    ]
    gone = Seen("gone")
    found = explain(job(ended), {0: gone, 1: gone})
    assert found.cause is Cause.EXCEPTION and found.ranks == ranks
    assert text in found.text
    assert ("cannot go on" in found.text) == ("Cancelled" in errors[1])


def test_the_limit_of_eager_calls_is_that_of_the_runtime():
    root = Path(__file__).parents[4]
    source = (root / "ops/runtime/protocol/negotiation/stall_reports.cc").read_text()
    found = re.search(r"kEagerCircleEnd = (\d+) \* kSecond", source)
    assert found and int(found[1]) * 10**9 == EAGER_CIRCLE_END
