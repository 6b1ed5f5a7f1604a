"""`tfring top`, `stacks` and `dump` on a job in which a rank holds a lock that it waits for."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from launcher_tools import finish, wait_until
from live_jobs import AFTER, DEADLOCK, LiveJob, live_job

from tfring.observe.recorder.job import load_job
from tfring.observe.recorder.places import id_of
from tfring.observe.recorder.reader import read_record
from tfring.observe.recorder.stacks import take_stacks

native = pytest.importorskip("tfring.runtime._native")


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveJob]:
    with live_job(tmp_path_factory.mktemp("job")) as running:
        (running.folder / "hang").touch()

        def waits() -> bool:
            calls = read_record(running.records / "rank-0.record").open_calls
            return [call.name for call in calls if call.waits] == ["after"]

        assert wait_until(waits)
        yield running


def test_stacks_name_the_function_and_the_line(job: LiveJob) -> None:
    done = job.tfring("stacks")
    assert done.returncode == 0, done.stderr
    ranks = done.stdout.split("Rank 1:")
    line = job.line_of(DEADLOCK)
    innermost = ranks[1].split("innermost call first:")[1].splitlines()[1]
    assert innermost.endswith(f'script.py", line {line} in take_the_lock')
    assert f"line {job.line_of(AFTER)} in <module>" in ranks[0]


def test_the_view_says_who_waits_for_whom(job: LiveJob) -> None:
    def rows() -> list[str]:
        done = job.tfring("top", "--once", "--json", "-n", "0.1")
        return [row["doing"] for row in json.loads(done.stdout)["ranks"]]

    wanted = f"for rank 1 in allreduce of 'after' at script.py:{job.line_of(AFTER)}"
    assert wait_until(lambda: wanted in rows()[0]), rows()
    assert rows()[1] == "rank 0 waits for it"
    page = job.tfring("top", "--once", "-n", "0.1").stdout
    line = f"script.py:{job.line_of(DEADLOCK)}"
    assert page.startswith(f"Rank 1 waits for a lock or another thread in take_the_lock ({line})")
    first, second = re.findall(r"^ +[01] .*$", page, re.M)
    assert wanted in first and "100 %" in second and "rank 0 waits for it" in second


def test_records_and_stacks_are_kept(job: LiveJob, tmp_path: Path) -> None:
    file, name = tmp_path / "kept.tgz", f"tfring-{id_of(job.records.name)}"
    done = job.tfring("dump", "--output", str(file))
    assert done.stdout.splitlines() == [
        f"2 of 2 ranks: {file}. Attach it to a ticket.",
        f"To look into it: tar -xzf {file} && tfring explain {name}",
    ]
    finish(["tar", "-xzf", str(file), "-C", str(tmp_path)])
    records = load_job([tmp_path / name]).records
    assert [call.name for call in records[0].open_calls] == ["after"]
    text = (tmp_path / name / f"{records[0].host}.txt").read_text()
    assert text.startswith("Rank 1 waits for a lock or another thread in take_the_lock (script.py:")
    assert f"line {job.line_of(AFTER)} in <module>" in text.split("Rank 0:")[1]


def test_several_askers_at_once_get_whole_answers(job: LiveJob) -> None:
    records = load_job([job.records]).records
    with ThreadPoolExecutor(4) as pool:
        texts = [found[1] for found in pool.map(take_stacks, [records] * 4)]
    assert all(text.count(" in take_the_lock\n") == 1 for text in texts)
    assert all(text.startswith("Thread [MainThread] ") for text in texts)


def test_a_rank_that_does_not_listen_is_described(job: LiveJob, tmp_path: Path) -> None:
    record = load_job([job.records]).records[1]
    there, away = record.path.with_suffix(".socket"), tmp_path / "away"
    there.rename(away)
    try:
        assert "TFRING_STACKS is 0" in take_stacks({1: record})[1]
    finally:
        away.rename(there)
    assert "take_the_lock" in take_stacks({1: record})[1]


def test_a_killed_rank_is_gone(job: LiveJob) -> None:
    """The last of this file: the job ends."""
    os.kill(job.pids[1], signal.SIGKILL)
    job.process.wait(60)
    done = job.tfring("stacks")
    assert done.stdout.count("has ended") == 2
    view = json.loads(job.tfring("top", "--once", "--json", "-n", "0.1").stdout)
    assert [row["doing"] for row in view["ranks"]] == ["has failed", "gone"]
    assert "s ago on rank 0" in view["trouble"]
