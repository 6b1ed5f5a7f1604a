"""A rank's data while a timeline is on: complete, bounded, and readable after a crash."""

from __future__ import annotations

import errno
import json
import os

import numpy as np
import pytest
from made_records import write_records

from tfring.observe.recorder import layout
from tfring.observe.recorder.reader import RecordError, read_header
from tfring.observe.timeline import merge, spool
from tfring.observe.timeline.phases import STEP, PhaseSource
from tfring.observe.timeline.spool import SpoolWriter, load_timeline, spool_path

SLOTS = 8


class FakeRank:
    """A rank whose record has few slots, so that they are used again soon; it counts its calls."""

    def __init__(self, folder, rank=0, size=1, before=()):
        slots = {"call": SLOTS, "plan": SLOTS, "event": 0}
        calls = {one: [] for one in range(size)}
        self.record = write_records(folder, calls, {}, slots=slots)[rank]
        self.header = np.memmap(self.record, layout.HEADER, "r+", 0, (1,))
        offset = layout.HEADER_BYTES
        self.calls = np.memmap(self.record, layout.CALL, "r+", offset, (SLOTS,))
        for number, ended in before:
            self.call(number, ended)
        self.spool = spool_path(folder / "job.json", rank)
        self.phases = PhaseSource()
        self.writer = SpoolWriter(self.record, self.spool, 1, self.phases)

    def call(self, number, ended=True):
        slot = self.calls[(number - 1) % SLOTS]
        slot["number"], slot["submitted"] = number, 1000 * number
        slot["ended"] = 1000 * number + 500 if ended else 0
        slot["name"] = b"x"
        self.header["calls"] = max(number, int(self.header["calls"][0]))

    def end(self):
        self.writer.take()
        self.writer.close()


def numbers(path):
    (record,) = load_timeline([path]).job.records.values()
    return [call.number for call in record.calls]


def test_each_call_is_kept_once_also_of_a_killed_rank(tmp_path):
    rank = FakeRank(tmp_path, before=[(1, True), (2, False)])
    rank.call(2)
    for number in range(3, 3 * SLOTS):
        rank.call(number, ended=number != 3 * SLOTS - 1)
        rank.writer.take()
        rank.writer.take()
    assert not spool.is_done(rank.spool)
    rank.record.unlink()
    (record,) = load_timeline([tmp_path / "job.json"]).job.records.values()
    # What had ended before is not in it.
    assert [call.number for call in record.calls] == list(range(2, 3 * SLOTS))
    assert [call.number for call in record.open_calls] == [3 * SLOTS - 1]
    rank.end()
    assert spool.is_done(rank.spool)


def test_the_size_is_bounded_and_the_newest_stay(tmp_path):
    rank = FakeRank(tmp_path)
    for number in range(1, 3001):
        rank.call(number)
        rank.phases.note(STEP, number, 10 * number, 10 * number + 5)
        if number % SLOTS == 0:
            rank.writer.take()
    assert rank.spool.stat().st_size < (1 << 20) + 2 * layout.HEADER_BYTES
    kept = numbers(rank.spool)
    assert kept == list(range(kept[0], 3001)) and 1000 < len(kept) < 3000
    newest = load_timeline([rank.spool], most=2)
    assert [call.number for call in newest.job.records[0].calls] == [2999, 3000]
    assert newest.left_out == len(kept) - 2
    assert newest.phases[0].tolist() == [(n * 10, n * 10 + 5, n, STEP) for n in (2999, 3000)]


def test_nobody_waits_for_a_rank_whose_disk_is_full(tmp_path, monkeypatch):
    rank = FakeRank(tmp_path)
    rank.call(1)
    write = os.pwrite

    def full(file, data, at):
        if at > 0:
            raise OSError(errno.ENOSPC, "planted")
        return write(file, data, at)

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(OSError, match="planted"):
        rank.writer.take()
    rank.writer.close()
    assert spool.is_done(rank.spool)


def ended_rank(folder, rank, size):
    folder.mkdir(exist_ok=True)
    one = FakeRank(folder, rank, size=size)
    one.call(1)
    one.end()
    return one


def make_file(path, rank):
    merge.make_file(path, read_header(rank.record))


def test_ranks_of_other_hosts_make_a_file_of_their_own(tmp_path, caplog):
    one = ended_rank(tmp_path, 1, size=2)
    path = tmp_path / "job.json"
    make_file(path, one)
    name = f"job.{os.uname().nodename}.json"
    assert not path.exists() and (tmp_path / name).exists()
    assert f"{name} lacks 1 of 2 ranks" in caplog.text
    # Brought together with rank 0's, they are one timeline.
    zero = ended_rank(tmp_path / "host0", 0, size=2)
    job = load_timeline([one.spool, zero.spool]).job
    assert (sorted(job.records), job.missing) == ([0, 1], [])


def test_where_hosts_share_a_folder_rank_0_makes_the_file(tmp_path):
    ranks = [ended_rank(tmp_path, rank, size=2) for rank in range(2)]
    path = tmp_path / "job.json"
    make_file(path, ranks[1])
    assert not list(tmp_path.glob("job*.json"))
    make_file(path, ranks[0])
    make_file(path, ranks[1])  # rank 1 comes when rank 0 is through
    assert [file.name for file in tmp_path.glob("job*")] == ["job.json"]


def test_of_several_jobs_of_one_run_the_newest_is_finished(tmp_path):
    path = tmp_path / "job.json"
    ended_rank(tmp_path, 0, size=2)
    path.touch()
    merge.clear(path)
    assert not list(tmp_path.glob("job*"))
    for began in range(2):
        rank = FakeRank(tmp_path, began, size=2)
        rank.header["started_monotonic"], rank.header["job"] = began, f"job-{began}".encode()
        rank.end()
    assert merge.finish(path)
    assert json.loads(path.read_text())["otherData"]["missing_ranks"] == [0]
    assert not merge.finish(path)


def test_of_many_calls_the_newest_are_drawn_and_all_stay(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(merge, "_MOST_CALLS", 3)
    rank = FakeRank(tmp_path)
    for number in range(1, 6):
        rank.call(number)
    rank.end()
    make_file(tmp_path / "job.json", rank)
    assert "2 more are in job.json.rank-*.spool" in caplog.text
    assert rank.spool.exists()


def test_spools_of_others_do_no_harm(tmp_path):
    """In a folder where anybody can write, say, or left by another version."""
    path = tmp_path / "job.json"
    one = ended_rank(tmp_path, 0, size=1)
    others = [spool_path(path, rank) for rank in range(5, 7)]
    others[0].write_text("\n")
    os.mkfifo(others[1])
    merge.remove_spools_above(path, 1)
    make_file(path, one)
    assert json.loads(path.read_text())["otherData"]["ranks"] == 1
    assert not merge.finish(tmp_path / "none.json")
    merge.clear(path)
    assert all(other.exists() for other in others) and not path.exists()


def test_a_device_is_not_replaced(tmp_path):
    rank = ended_rank(tmp_path, 0, size=1)
    pipe = tmp_path / "job.json"
    os.mkfifo(pipe)
    link = tmp_path / "link.json"
    link.symlink_to(pipe)
    for do in (merge.clear, lambda path: make_file(pipe, rank)):
        with pytest.raises(FileExistsError, match=r"job\.json is no regular file"):
            do(link)
    assert pipe.is_fifo()


def test_another_job_that_writes_the_same_timeline_is_said(tmp_path):
    rank = ended_rank(tmp_path, 0, size=1)
    path = tmp_path / "job.json"
    ours = {**read_header(rank.record), "job": "ours"}
    with pytest.raises(RecordError, match=r"job\.json\.rank-0\.spool .* another job uses"):
        merge.make_file(path, ours)
    assert not path.exists() and rank.spool.exists()
