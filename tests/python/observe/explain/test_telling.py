"""When a hang is reported, and in which words."""

from __future__ import annotations

from made_jobs import SECOND

from tfring.observe.explain.at_trouble import Telling
from tfring.observe.explain.causes import Cause, Explanation

JOB = "6d83ae9d86a1f0c2"


LIMIT = 600 * SECOND


def hang(age: float, rank: int = 1, limit: int = LIMIT) -> Explanation:
    where = f"{rank} sleeps in f (train.py:20)"
    return Explanation(
        Cause.NOT_CALLING,
        (rank,),
        f"Rank {where}.",
        brief=f"rank {where}",
        age=int(age * SECOND),
        job=JOB,
        limit=limit,
    )


def test_a_hang_of_ten_minutes_has_a_paragraph_and_four_lines() -> None:
    telling = Telling(JOB, 10.0)
    said = [(t, line) for t in range(10, 600, 10) for line in telling.lines(hang(t), ["raw"], t)]
    assert said == [
        (
            10,
            "Rank 1 sleeps in f (train.py:20). The job ends in 9 min 50 s if nothing changes. "
            "`tfring explain 6d83ae` and `tfring stacks 6d83ae` show more.",
        ),
        (30, _line("30 s", "9 min 30 s")),
        (120, _line("2 min", "8 min")),
        (300, _line("5 min", "5 min")),
        (540, _line("9 min", "1 min")),
    ]


def _line(age: str, left: str) -> str:
    ends = f"the job ends in {left} if nothing changes"
    return f"still: rank 1 sleeps in f (train.py:20), {age}; {ends}; tfring explain 6d83ae"


def test_another_rank_and_another_stall_are_told_in_full() -> None:
    telling = Telling(JOB, 10.0)
    assert "ends in" not in telling.lines(hang(10, limit=0), [], 10.0)[0]
    assert telling.lines(hang(20), [], 20.0) == []
    assert telling.lines(hang(2, rank=2), [], 22.0)[0].startswith("Rank 2 sleeps")
    assert telling.lines(hang(12, rank=2), [], 32.0) == []
    # Nothing was heard for a while: that stall is over.
    assert telling.lines(hang(10, rank=2), [], 500.0)[0].startswith("Rank 2 sleeps")


def test_what_no_rule_knows_is_said_as_the_runtime_says_it_and_as_seldom() -> None:
    telling = Telling(JOB, 10.0)
    said = [t for t in range(10, 600, 10) if telling.lines(None, [f"stalls {t}"], t)]
    assert said == [10, 40, 130, 310, 550]
    assert telling.lines(hang(9), ["raw"], 600.0)[0].startswith("Rank 1 sleeps")


def test_a_hang_without_a_limit_is_said_every_half_hour() -> None:
    telling = Telling(JOB, 10.0)
    said = [t for t in range(10, 6000, 10) if telling.lines(hang(t, limit=0), [], t)]
    assert said == [10, 30, 120, 300, 540, 2340, 4140, 5940]
