"""The launcher's verdict on a failed job; whole jobs are in test_failed_jobs.py."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tfring.launch.agents.held_output import HOLD_SECONDS, HeldOutput
from tfring.launch.agents.rank import RankProcess
from tfring.launch.hosts.placement import Slot
from tfring.launch.reports.text import first_failure
from tfring.launch.reports.verdict import verdict
from tfring.observe.explain.causes import Cause, Explanation
from tfring.runtime.texts.errors import HEADER

RECORDS: Any = SimpleNamespace(last_seen=lambda rank: "train.py:40, after step 6")


def ended(
    rank: int, code: int, at: tuple[float, float] = (1.0, 1.0), text: str = "", **facts: Any
) -> RankProcess:
    """A rank that wrote `text` at the first time and ended at the second."""
    by_us = facts.pop("by_us", False)
    host: Any = SimpleNamespace(facts={rank: facts}, lost=lambda rank: "")
    process = RankProcess(Slot(rank, "h", rank, 3, 0, 1), host)
    if text:
        process.record_output("stderr", text.encode(), at[0])
        process.held.take(text.encode(), at[0])
    process.code, process.ended_by_launcher = code, by_us
    process.ended_at = at[1]
    return process


def failing(line: str, error: str) -> str:
    return f'{HEADER}\n  File "/job/train.py", line {line}\n    x()\n{error}\n'


def told(*processes: RankProcess, found: Explanation | None = None, job: str = "6d83ae") -> str:
    first = first_failure(list(processes))
    assert first is not None
    return verdict(processes, first, RECORDS, found, len(processes)).block(job)


BAD = failing("38, in on_train_batch_end", "KeyError: 'image_id'")
FOLLOWS = failing("58, in <module>", "CancelledError: rank 1 (host h) ended with an exception: K")


def test_one_rank_fails_and_the_others_are_counted() -> None:
    assert told(ended(0, 1, (1.1, 1.2), FOLLOWS), ended(1, 1, (1.0, 3.0), BAD)) == (
        "tfring: Rank 1 failed in train.py:38 (on_train_batch_end): KeyError: 'image_id'.\n"
        "        Rank 0 was stopped. More: tfring explain 6d83ae\n"
        "        The traceback of rank 1 (TFRING_TRACEBACK=full: all of it):\n"
        '          File "/job/train.py", line 38, in on_train_batch_end\n'
        "            x()"
    )


def test_the_first_traceback_counts_and_not_the_first_exit() -> None:
    slow = ended(1, 1, (1.0, 3.0), failing("1, in <module>", "ValueError: root"))
    quick = ended(0, 1, (1.2, 1.3), failing("2, in <module>", "SomeError: else"))
    assert first_failure([quick, slow]) is slow
    said = told(quick, slow).splitlines()
    assert said[:2] == [
        "tfring: Rank 1 failed in train.py:1: ValueError: root.",
        "        Rank 0, too, failed in train.py:2: SomeError: else. More: tfring explain 6d83ae",
    ]


def test_equal_errors_are_one_and_nobody_is_blamed() -> None:
    ranks = [ended(rank, 1, (1.0 + rank, 5.0), BAD) for rank in range(3)]
    said = told(*ranks, job="")
    assert said.startswith("tfring: All 3 ranks failed in train.py:38 (on_train_batch_end): KeyEr")
    assert said.count("KeyError") == 1 and "stopped" not in said
    own = [failing("1, in f", f"E: rank {rank}: the optimizer of rank {rank}") for rank in (0, 1)]
    said = told(ended(0, 1, text=own[0]), ended(1, 1, text=own[1]), job="")
    assert said.startswith("tfring: All 2 ranks failed in train.py:1 (f): E: the optimizer of ")
    assert "too" not in said
    said = told(*ranks[:2], ended(2, -15, by_us=True))
    assert said.startswith("tfring: Ranks 0 and 1 failed in train.py:38")
    assert "Rank 2 was stopped." in said
    said = told(*ranks[:2], ended(2, 1), job="")
    assert "Rank 2, too, ended with exit code 1." in said
    left = Explanation(Cause.EXCEPTION, (0,), "Rank 0 ended", what="Rank 0 ended")
    assert told(*ranks, found=left).startswith("tfring: All 3 ranks failed")


def test_a_killed_rank_failed_before_those_that_noticed() -> None:
    killed = ended(2, -9, (1.5, 1.5), kernel_log=True)
    noticed = ended(0, 1, (1.4, 1.8), failing("1, in f", "UnavailableError: somebody is gone"))
    assert first_failure([noticed, killed]) is killed
    assert told(noticed, killed) == (
        "tfring: Rank 2 was killed by SIGKILL from outside the job. The kernel's log shows no "
        "out-of-memory kill.\n"
        "        It was at train.py:40, after step 6.\n"
        "        Rank 0 was stopped. More: tfring explain 6d83ae"
    )
    unknown = told(ended(2, -9), job="")
    assert "job, or by the kernel for lack of memory. In that case `dmesg` on its host" in unknown


def test_memory_and_crashes() -> None:
    oom = "out of memory (it held 2.3 GiB; the limit of this container is 2.5 GiB)"
    assert told(ended(1, -9, oom=oom)).splitlines() == [
        f"tfring: Rank 1 was killed: {oom}.",
        "        It was at train.py:40, after step 6. Give the job more memory, or use a smaller "
        "batch. More: tfring explain 6d83ae",
    ]
    assert "Rank 1 crashed in C or C++: signal 11 (SIGSEGV)." in told(ended(1, -11))
    assert "Rank 1 was ended by SIGTERM (signal 15) from outside the job." in told(ended(1, -15))


def test_a_rank_that_leaves_is_told_in_the_words_of_the_records() -> None:
    how = "Rank 1 called sys.exit(3) in train.py:40"
    left = Explanation(Cause.LEFT, (1,), "", brief=how, what=f"{how}; ...", advice="Do not.")
    noticed = ended(0, 1, (1.0, 1.1), failing("1, in f", "E: rank 1 (host h) has shut down: x"))
    assert first_failure([noticed, ended(1, 3, (2.0, 2.0))]).rank == 1  # type: ignore[union-attr]
    assert told(noticed, ended(1, 3, (2.0, 2.0)), found=left) == (
        f"tfring: {how}, after step 6, while rank 0 still trained.\n"
        "        Do not.\n"
        "        Rank 0 was stopped. More: tfring explain 6d83ae"
    )
    # Also if it ended with 0, and is no failure by itself.
    assert told(noticed, ended(1, 0), found=left).startswith(f"tfring: {how}, after step 6, while")


def test_an_exit_code_alone() -> None:
    gone = Explanation(Cause.KILLED, (1,), "", what="Rank 1 is gone. Look at dmesg.")
    assert told(ended(1, 3), ended(0, -15, by_us=True), found=gone, job="") == (
        "tfring: Rank 1 ended with exit code 3, at train.py:40, after step 6, without an error of "
        "Python: by os._exit, or in a library.\n        Rank 0 was stopped."
    )


def test_ranks_that_the_launcher_ended_come_last() -> None:
    ours, theirs = ended(0, -15, by_us=True), ended(1, 7, (5.0, 5.0))
    assert first_failure([ours, theirs]) is theirs
    assert first_failure([ended(0, 0)]) is None


def test_a_traceback_is_held_until_the_rank_goes_on() -> None:
    held = HeldOutput()
    assert held.take(b"Training\nTrace", 0.0) == b"Training\n" and held.due == 0.2
    assert held.take(b"back (most recent call last):\n  File\n", 0.1) == b""
    assert held.due == 0.1 + HOLD_SECONDS
    assert held.take(b"ValueError: x\n", 0.3) == b"" and not held.goes_on(b"x", 0.4)
    # The updates of a progress bar are no part of it, however quickly they come.
    assert held.take(b"1/9\r", 1.0) == b"" and held.goes_on(b"x", 1.2)
    assert not held.goes_on(b"[tfring] info: rank 1 has left\n", 1.2)
    assert held.release().startswith(HEADER.encode()) and held.due is None
    assert held.take(b"no Traceback (most recent call last):\n", 9.0).startswith(b"no T")
    assert held.take(b"T", 9.1) == b"" and held.release() == b"T"
    # The rest of a line that is on the screen begins none.
    assert held.take(HEADER.encode() + b"\n", 9.2) == HEADER.encode() + b"\n"


@pytest.mark.parametrize(
    "says", ["Exception in thread Thread-1 (f):\n", "Exception ignored in: f\n"]
)
def test_a_traceback_that_ends_no_program_is_not_held(says: str) -> None:
    text = (says + BAD).encode()
    for cut in (len(text), len(says), len(says) + 4, 5):
        held = HeldOutput()
        assert held.take(text[:cut], 0.0) + held.take(text[cut:], 0.1) == text


def test_what_stands_around_the_last_traceback_is_shown() -> None:
    held = HeldOutput()
    around = [b"line between\n", b"WARNING: saved in /x\n"]
    logged = (failing("3, in f", "IndexError: handled")).encode() + around[0]
    noise = b"[tfring] error: rank 1 has gone\n"
    assert held.take(logged + BAD.encode() + around[1] + noise, 0.0) == b""
    assert held.settle() == logged + around[1]
    assert b"'image_id'" in held.kept and b"handled" not in held.kept


def test_a_traceback_that_a_rank_has_outlived_is_not_its_end() -> None:
    process = ended(0, 3, text=BAD)
    assert process.held.release()
    process.goes_on()
    process.record_output("stderr", b"retrying\n", 4.0)
    assert told(process, ended(1, 0), job="") == (
        "tfring: Rank 0 ended with exit code 3: see the output above."
    )
    # An exit code of 1 soon after it is that of an exception whose program took long to end.
    process.code, process.ended_at = 1, 5.0
    assert told(process, ended(1, 0), job="") == (
        "tfring: Rank 0 failed in train.py:38 (on_train_batch_end): KeyError: 'image_id'."
    )
    process.ended_at = 60.0
    assert "exit code 1: see" in told(process, ended(1, 0), job="")
    process.record_output("stderr", failing("3, in f", "ValueError: late").encode(), 59.0)
    assert "ValueError: late." in told(process, ended(1, 0), job="")


def test_a_traceback_header_that_arrives_in_two_pieces_is_seen() -> None:
    process = ended(0, 1, (9.0, 9.0))
    process.record_output("stderr", HEADER[:10].encode(), 1.0)
    process.record_output("stderr", HEADER[10:].encode() + b"X: y\n", 1.5)
    assert process.failed_at() == 1.5


def test_a_stall_is_told_in_the_words_of_the_records() -> None:
    what = "Rank 1 sleeps in load (data.py:3)."
    hangs = Explanation(Cause.NOT_CALLING, (1,), "", what=what, advice="Look there.")
    late = failing("1, in f", "DeadlineExceededError: tensor 'x' has waited 600 s")
    assert told(ended(0, 1, text=late), ended(1, 1, text=late), found=hangs).startswith(
        f"tfring: {what}\n        Look there.\n        Rank 0 was stopped. More"
    )
    # A rank has seen more while the others were there.
    late = late.rstrip() + ". At the last warning: Rank 1 reads. `tfring explain x` says more.\n"
    assert told(ended(0, 1, text=late), ended(1, 1, text=late), found=hangs).startswith(
        "tfring: Rank 1 reads.\n        Rank 0 was stopped. More"
    )
