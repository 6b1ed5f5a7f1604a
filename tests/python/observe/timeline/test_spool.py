"""A rank's data while a timeline is on: complete, bounded, and readable after a crash."""

from __future__ import annotations

import json
import os
import re
import resource
import signal

import numpy as np
import pytest
from made_records import write_records

from tfring.observe.recorder import layout
from tfring.observe.recorder.reader import RecordError, read_record
from tfring.observe.timeline import merge, spool
from tfring.observe.timeline.drain import Drain
from tfring.observe.timeline.phases import STEP, PhaseSource
from tfring.observe.timeline.spool import SpoolWriter, load_timeline, spool_path

SLOTS = 8


class FakeRank:
    """A rank whose record has few slots, so that they are used again soon; it counts its calls."""

    def __init__(self, folder, rank=0, limit=1 << 20, size=1):
        slots = {"call": SLOTS, "plan": SLOTS, "event": 0}
        calls = {one: [] for one in range(size)}
        self.record = write_records(folder, calls, {}, slots=slots)[rank]
        self.header = np.memmap(self.record, layout.HEADER, "r+", 0, (1,))
        offset = layout.HEADER_BYTES
        self.calls = np.memmap(self.record, layout.CALL, "r+", offset, (SLOTS,))
        header = read_record(self.record).header
        facts = {name: header[name] for name in spool.IDENTITY}
        facts |= {"record": str(self.record), "rank": rank, "began": 0}
        self.facts = facts
        self.spool = spool_path(folder / "job.json", rank)
        self.writer = SpoolWriter(self.spool, limit, facts)
        self.phases = PhaseSource()
        self.drain = Drain(self.record, self.writer, self.phases)

    def call(self, number, ended=True):
        slot = self.calls[number % SLOTS]
        slot["number"], slot["submitted"] = number, 1000 * number
        slot["ended"] = 1000 * number + 500 if ended else 0
        slot["name"] = b"x"
        self.header["calls"] = max(number, int(self.header["calls"][0]))


def numbers(path):
    (record,) = load_timeline([path]).job.records.values()
    return [call.number for call in record.calls]


def test_each_call_is_kept_once_when_it_has_ended(tmp_path):
    rank = FakeRank(tmp_path)
    rank.call(1)
    rank.call(2, ended=False)
    rank.drain.take()
    rank.drain.take()
    for number in range(3, 3 * SLOTS):
        rank.call(number, ended=number % SLOTS != 2)
        rank.drain.take()
    rank.call(2 * SLOTS + 2)
    rank.drain.take_all()
    rank.writer.close(done=True)
    rank.record.unlink()
    # The second slot was taken over twice before its call had ended.
    assert numbers(rank.spool) == [n for n in range(1, 3 * SLOTS) if n not in (2, SLOTS + 2)]


def test_a_killed_rank_leaves_what_was_drained_and_its_record_the_rest(tmp_path):
    rank = FakeRank(tmp_path)
    rank.call(1)
    rank.drain.take()
    for number in range(2, SLOTS):
        rank.call(number)
    rank.drain.take()
    rank.call(SLOTS)
    rank.call(SLOTS + 1, ended=False)
    rank.writer.close(done=False)
    assert not spool.is_done(rank.spool)
    (record,) = load_timeline([tmp_path / "job.json"]).job.records.values()
    assert [call.number for call in record.calls] == list(range(1, SLOTS + 2))
    assert [call.number for call in record.open_calls] == [SLOTS + 1]


def test_a_part_that_was_cut_off_is_left_out(tmp_path):
    rank = FakeRank(tmp_path)
    for number in (1, 2):
        rank.call(number)
        rank.drain.take()
    rank.writer.close(done=False)
    rank.record.unlink()
    whole = rank.spool.read_bytes()
    found = set()
    for length in (*range(200, len(whole), 97), len(whole)):
        rank.spool.write_bytes(whole[:length])
        try:
            found.add(tuple(numbers(rank.spool)))
        except RecordError as error:
            assert re.search("no spool|no record|holds nothing", str(error)), error
            found.add(())
    assert found == {(), (1,), (1, 2)}


def test_the_size_is_bounded_and_the_newest_stay(tmp_path):
    rank = FakeRank(tmp_path, limit=1 << 18)
    largest = 0
    for number in range(1, 1000):
        rank.call(number)
        rank.drain.take()
        files = [path for path in tmp_path.iterdir() if ".spool" in path.name]
        largest = max(largest, sum(path.stat().st_size for path in files))
    rank.writer.close(done=True)
    assert largest < (1 << 18) + 2 * 8192
    newest = load_timeline([rank.spool], most=10)
    assert [call.number for call in newest.job.records[0].calls] == list(range(990, 1000))
    kept = numbers(rank.spool)
    assert newest.left_out == len(kept) - 10
    assert kept == list(range(kept[0], 1000)) and 20 < len(kept) < 500


def test_what_ended_before_is_left_out(tmp_path):
    rank = FakeRank(tmp_path)
    rank.call(1)
    rank.call(2, ended=False)
    drain = Drain(rank.record, rank.writer, PhaseSource())
    rank.call(2)
    drain.take_all()
    rank.writer.close(done=True)
    assert numbers(rank.spool) == [2]


def ended_rank(folder, rank, size):
    folder.mkdir(exist_ok=True)
    one = FakeRank(folder, rank, size=size)
    one.call(1)
    one.drain.take_all()
    one.writer.close(done=True)
    return one


def test_ranks_of_other_hosts_make_a_file_of_their_own(tmp_path, caplog):
    one = ended_rank(tmp_path, 1, size=2)
    path = tmp_path / "job.json"
    merge.make_file(path, 1, one.facts)
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
    merge.make_file(path, 1, ranks[1].facts)
    assert not list(tmp_path.glob("job*.json"))
    merge.make_file(path, 0, ranks[0].facts)
    assert [file.name for file in tmp_path.glob("job*")] == ["job.json"]
    merge.make_file(path, 1, ranks[1].facts)  # rank 1 comes when rank 0 is through
    assert [file.name for file in tmp_path.glob("job*")] == ["job.json"]


def test_of_several_jobs_of_one_run_the_newest_is_finished(tmp_path):
    ranks = [ended_rank(tmp_path, rank, size=2) for rank in range(2)]
    path = tmp_path / "job.json"
    path.touch()
    merge.clear(path)
    assert not list(tmp_path.glob("job*"))
    for began, rank in enumerate(ranks):
        facts = {**rank.facts, "job": f"job {began}", "began": began}
        writer = SpoolWriter(rank.spool, 1 << 20, facts)
        writer.add("header", bytes(rank.header))
        writer.close(done=True)
    assert merge.finish(path)
    assert json.loads(path.read_text())["otherData"]["missing_ranks"] == [0]
    assert not merge.finish(path)


def test_of_many_calls_the_newest_are_drawn_and_all_stay(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(merge, "_MOST_CALLS", 3)
    rank = FakeRank(tmp_path)
    for number in range(1, 6):
        rank.call(number)
    rank.drain.take_all()
    rank.writer.close(done=True)
    merge.make_file(tmp_path / "job.json", 0, rank.facts)
    assert "2 more are in job.json.rank-*.spool" in caplog.text
    assert rank.spool.exists()


def test_what_fit_notes_is_kept(tmp_path):
    rank = FakeRank(tmp_path)
    for step in range(1, 4):
        rank.phases.note(STEP, step, 10 * step, 10 * step + 5)
        rank.drain.take()
    rank.writer.close(done=True)
    found = load_timeline([rank.spool], most=2).phases[0]
    assert found.tolist() == [(20, 25, 2, STEP), (30, 35, 3, STEP)]


def test_other_files_are_no_spools(tmp_path):
    path = tmp_path / "a"
    path.write_text('{"a": 1}\n')
    assert not spool.is_spool(path)
    with pytest.raises(RecordError, match="no spool"):
        spool.read_spool(path)


def test_spools_of_others_do_no_harm(tmp_path, caplog):
    """In a folder where anybody can write, say, or left by another version."""
    path = tmp_path / "job.json"
    one = ended_rank(tmp_path, 0, size=1)
    others = [spool_path(path, rank) for rank in range(5, 8)]
    others[0].write_text(json.dumps({"format": spool.FORMAT, "rank": 5}) + "\n")
    others[1].write_text("\n")
    os.mkfifo(others[2])
    with pytest.raises(RecordError, match="different version"):
        spool.read_facts(others[0])
    merge.remove_spools_above(path, 1)
    merge.make_file(path, 0, one.facts)
    assert json.loads(path.read_text())["otherData"]["ranks"] == 1
    assert not merge.finish(tmp_path / "none.json")
    merge.clear(path)
    assert all(other.exists() for other in others) and not path.exists()


def test_nobody_waits_for_a_rank_whose_disk_is_full(tmp_path):
    rank = FakeRank(tmp_path)
    rank.call(1)
    rank.drain.take()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        size = rank.spool.stat().st_size
        resource.setrlimit(resource.RLIMIT_FSIZE, (size + 100, hard))
        rank.call(2)
        with pytest.raises(OSError):
            rank.drain.take()
        rank.writer.give_up()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)
    rank.record.unlink()
    assert spool.is_done(rank.spool)
    assert numbers(rank.spool) == [1]


def test_a_device_is_not_replaced(tmp_path):
    rank = ended_rank(tmp_path, 0, size=1)
    pipe = tmp_path / "job.json"
    os.mkfifo(pipe)
    for link in (pipe, tmp_path / "link.json"):
        if link != pipe:
            link.symlink_to(pipe)
        for do in (merge.clear, lambda path: merge.make_file(pipe, 0, rank.facts)):
            with pytest.raises(FileExistsError, match=r"job\.json is no regular file"):
                do(link)
    assert pipe.is_fifo()


def test_another_job_that_writes_the_same_timeline_is_said(tmp_path):
    rank = ended_rank(tmp_path, 0, size=1)
    path = tmp_path / "job.json"
    with pytest.raises(RecordError, match=r"job\.json\.rank-0\.spool .* another job uses"):
        merge.make_file(path, 0, {**rank.facts, "job": "ours"})
    assert not path.exists() and rank.spool.exists()
