"""Files that are not records, incomplete records, and the content of complete ones."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_records import write_record

from tfring.__main__ import main
from tfring.observe.recorder import files, layout
from tfring.observe.recorder.job import load_job
from tfring.observe.recorder.own import own_calls, own_path, set_own
from tfring.observe.recorder.processes import process_state
from tfring.observe.recorder.reader import (
    RecordError,
    find_last_sign,
    read_header,
    read_record,
)


def test_what_was_written_is_read(tmp_path: Path) -> None:
    shapes = [2, 2, 3, 0, 1, 5, *[-1] * 6]
    calls = [
        {"number": 9000, "name": "x" * 104, "kind": 2, "dtype": 12, "op": 4, "flags": 5},
        {"number": 7, "name": "y", "call_site": "train.py:40", "shapes": shapes, "tensors": 3},
    ]
    plans = [{"sequence": 3, "queued": 5, "ended": 9, "waits_peer": -1, "status": 10}]
    events = [{"number": 1, "type": 4, "code": 9, "text": "said \xe4"}]
    path = write_record(tmp_path / "r", 1, 3, calls, plans, events, step=5, host="h" * 64)
    record = read_record(path)
    assert (record.rank, record.size, record.header["step"]) == (1, 3, 5)
    assert record.host == "h" * 64
    first, second = record.calls
    assert (first.number, first.shapes, first.tensors) == (7, ((2, 3), (), (5,)), 3)
    assert first.text() == "allreduce of tensor 'y' (train.py:40)"
    assert first.waits and not first.runs
    assert (second.number, second.name) == (9000, "x" * 104)
    assert (second.kind, second.dtype, second.op) == ("broadcast", "float64", "Max")
    assert second.flags == layout.CallFlags.BUCKET | layout.CallFlags.UNNAMED
    assert record.plans[0].status == "Aborted"
    assert record.events[0].text == "said \xe4"
    assert record.events[0].code == "FailedPrecondition"
    assert len(record.ranks) == 3


def test_a_text_that_was_cut_within_a_letter_can_be_printed(tmp_path: Path) -> None:
    name = b"gr\xc3...\xa4ser"  # as the runtime cuts a long name with umlauts
    record = read_record(write_record(tmp_path / "r", calls=[{"number": 1, "name": name}]))
    assert record.calls[0].name.encode() == "gr\ufffd...\ufffdser".encode()


def test_entries_being_written_are_left_out(tmp_path: Path) -> None:
    path = write_record(tmp_path / "r", calls=[{"number": 1}, {"number": 2}])
    data = bytearray(path.read_bytes())
    data[layout.HEADER_BYTES : layout.HEADER_BYTES + 8] = bytes(8)  # the number of the first
    path.write_bytes(data)
    assert [call.number for call in read_record(path).calls] == [2]


def test_entries_that_change_while_they_are_read_are_as_before_or_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = {"first_asked": 5, "second_last_asked": 5, "last_asked": 6, "last_rank": 1}
    stays = {"number": 1, "name": "stays", "planned": 7, "sequence": 2, **asked}
    # What the file holds at three moments; `planned` is the last that is written of a plan.
    moments = [
        [stays, {"number": 2, "name": "rewritten"}, {"number": 3, "name": "x", **asked}],
        [stays, {"number": 2, "name": "torn"}, {"number": 3, "name": "x", "planned": 8, **asked}],
        [stays, {"number": 2 + 8192, "name": "new"}, {"number": 3, "name": "x", "planned": 8}],
    ]
    copies = [write_record(tmp_path / "r", calls=calls).read_bytes() for calls in moments]
    monkeypatch.setattr(files, "_copies", lambda path: tuple(copies))
    first, second = read_record(tmp_path / "r").calls
    assert (first.name, first.planned, first.first_asked, first.last_rank) == ("stays", 7, 5, 1)
    assert (second.name, second.planned, second.first_asked, second.last_rank) == ("x", 0, 0, -1)


def test_calls_made_while_the_file_is_read_are_left_out(tmp_path: Path) -> None:
    path = write_record(tmp_path / "r", calls=[{"number": n} for n in (1, 2, 4)])
    data = bytearray(path.read_bytes())
    field = layout.HEADER.fields["calls"][1]  # as it was before the entries were read
    data[field : field + 8] = (2).to_bytes(8, "little")
    path.write_bytes(data)
    assert [call.number for call in read_record(path).calls] == [1, 2]


def test_a_dump_has_what_the_record_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = [{"number": 1, "name": "x", "planned": 5, "last_asked": 4, "last_rank": 1}]
    for rank in range(2):
        events = [{"number": 1, "type": 1}]
        write_record(tmp_path / f"job/rank-{rank}.record", rank, 2, calls, events=events)
    monkeypatch.chdir(tmp_path)
    assert main(["dump", "job"]) == 0
    subprocess.run(["tar", "-xzf", "tfring-a-job.tgz"], check=True)
    for rank in range(2):
        name = f"rank-{rank}.record"
        copy, given = (read_record(Path(folder, name)) for folder in ("tfring-a-job", "job"))
        assert (copy.header, copy.calls, copy.events) == (given.header, given.calls, given.events)


def test_dumps_of_several_hosts_have_different_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for rank, host in enumerate(("node-a", "node-b")):
        write_record(tmp_path / f"{host}/rank-{rank}.record", rank, 2, host=host)
        assert main(["dump", host]) == 0
        assert f"1 of 2 ranks: tfring-a-job-{host}.tgz." in capsys.readouterr().out
        subprocess.run(["tar", "-xzf", f"tfring-a-job-{host}.tgz"], check=True)
    assert list(load_job(["tfring-a-job"]).records) == [0, 1]
    texts = sorted(path.name for path in Path("tfring-a-job").glob("*.txt"))
    assert texts == ["node-a.txt", "node-b.txt"]


def test_a_dump_does_not_write_over_the_record_of_a_rank_that_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_record(tmp_path / "job/rank-0.record", 0, 1)
    before = path.read_bytes()
    os.link(path, tmp_path / "link")  # the rank would die if its file became shorter
    assert main(["dump", "-o", str(tmp_path / "link"), str(path.parent)]) == 2
    assert "name another file" in capsys.readouterr().err
    assert path.read_bytes() == before


def test_what_a_terminal_would_obey_is_spelled_out(tmp_path: Path) -> None:
    name = "a\x1b[2J\r\x9b\x7f\tb\nc"
    event = {"number": 1, "type": 8, "text": name}
    record = read_record(write_record(tmp_path / "r", calls=[{"name": name}], events=[event]))
    plain = "a\\x1b[2J\\x0d\\x9b\\x7f\tb\nc"
    assert (record.calls[0].name, record.events[0].text) == (plain, plain)


def test_nobody_waits_for_a_pipe(tmp_path: Path) -> None:
    write_record(tmp_path / "rank-0.record", 0, 2)
    pipe = tmp_path / "rank-1.record"
    os.mkfifo(pipe)
    for read in (read_record, read_header):
        with pytest.raises(RecordError, match=r"rank-1\.record is no regular file"):
            read(pipe)
    with pytest.raises(RecordError, match="is no regular file"):
        load_job([tmp_path])


def test_foreign_cut_and_other_files_are_refused(tmp_path: Path) -> None:
    path = write_record(tmp_path / "r")
    data = path.read_bytes()
    for number, content in enumerate([b"", b"TFRI", b"\x7fELF" * 5000, bytes(len(data))]):
        foreign = tmp_path / f"foreign-{number}"
        foreign.write_bytes(content)
        with pytest.raises(RecordError, match=rf"foreign-{number} is no record"):
            read_record(foreign)
    for length in (layout.HEADER_BYTES, layout.HEADER_BYTES + 1000, len(data) - 1):
        path.write_bytes(data[:length])
        with pytest.raises(RecordError, match=rf"cut off: it has {length} bytes"):
            read_record(path)
    path.write_bytes(data[:100])
    with pytest.raises(RecordError, match="is no record"):
        read_record(path)


def test_other_versions_are_refused(tmp_path: Path) -> None:
    for fields in ({"version": 2}, {"call_bytes": 328}, {"rank_bytes": 40}):
        path = write_record(tmp_path / "r", **fields)
        with pytest.raises(RecordError, match="read it with the tfring that ran the job"):
            read_record(path)


def test_impossible_ranks_are_refused(tmp_path: Path) -> None:
    for rank, size, slots in ((-1, 2, 2), (2, 2, 2), (0, 2**31 - 1, 2)):
        path = write_record(tmp_path / "r", rank, size, ranks=[{}] * slots)
        with pytest.raises(RecordError, match=f"is damaged: .* rank {rank} of {size}"):
            read_record(path)


def damaged(folder: Path, **fields: Any) -> Path:
    """A record of little whose header says something else."""
    path = write_record(folder / "rank-0.record", 0, 1)
    header = np.frombuffer(path.read_bytes()[: layout.HEADER_BYTES], layout.HEADER).copy()
    for name, value in fields.items():
        header[name] = value
    with open(path, "r+b") as file:
        file.write(header.tobytes())
    return path


@pytest.mark.parametrize(
    "fields",
    [
        {"call_slots": 2**32 - 1},
        {"event_slots": 2**23},
        {"size": 2**31 - 1, "rank_slots": 0},
        {"size": 2**31 - 1, "rank_slots": 2**31 - 1},
    ],
)
def test_a_record_that_says_too_much_is_refused(tmp_path: Path, fields: dict[str, int]) -> None:
    path = damaged(tmp_path, **fields)
    with open(path, "r+b") as file:
        file.truncate(1 << 40)  # takes no room on the disk
    for read in (read_record, read_header):
        with pytest.raises(RecordError, match="is damaged: it says"):
            read(path)


def test_what_lies_behind_a_record_is_not_read(tmp_path: Path) -> None:
    path = write_record(tmp_path / "rank-0.record", 0, 1, calls=[{"number": 1}])
    with open(path, "r+b") as file:
        file.truncate(1 << 40)
    assert [call.number for call in read_record(path).calls] == [1]


@pytest.mark.parametrize("job", ["../../elsewhere", "/tmp/elsewhere", "..", "", "a\nb"])
def test_the_name_of_a_job_is_no_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], job: str
) -> None:
    """Dumps and timelines are named after it."""
    here = tmp_path / "a/b/c"
    here.mkdir(parents=True)
    monkeypatch.chdir(here)
    write_record(tmp_path / "records/rank-0.record", 0, 1, job=job)
    for command in ("dump", "timeline"):
        assert main([command, str(tmp_path / "records")]) == 2
        assert "is no number of a job" in capsys.readouterr().err
    assert sorted(tmp_path.iterdir()) == [tmp_path / "a", tmp_path / "records"]


def test_the_newest_generation_of_one_job_is_loaded(tmp_path: Path) -> None:
    write_record(tmp_path / "rank-0.record", 0, 3, started_wall=5)
    write_record(tmp_path / "rank-2.record", 2, 3, started_wall=5)
    older = write_record(tmp_path / "old", 0, 3, started_wall=4)
    job = load_job([tmp_path, older])
    assert list(job.records) == [0, 2] and job.missing == [1] and job.job == "a-job"
    assert job.records[0].path.name == "rank-0.record"
    other = write_record(tmp_path / "other", 1, 3, job="another")
    with pytest.raises(RecordError, match=r"several jobs: a-job, another"):
        load_job([tmp_path, other])
    with pytest.raises(
        RecordError, match="no file, folder or job has the name nothing; jobs here: none"
    ):
        load_job(["nothing"], base=tmp_path)


def test_whether_the_process_is_there(tmp_path: Path) -> None:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    try:
        own = {"pid": child.pid}
        assert process_state(read_record(write_record(tmp_path / "a", **own)).header) == "running"
        # A number that the system has given to another process since then.
        header = read_record(write_record(tmp_path / "b", **own, pid_started=1)).header
        assert process_state(header) == "gone"
    finally:
        child.kill()
        child.wait()
    assert process_state(read_record(tmp_path / "a").header) == "gone"
    for elsewhere in ({"boot": "of another host"}, {"pid_space": 1}):
        path = write_record(tmp_path / "c", pid=os.getpid(), **elsewhere)
        assert process_state(read_record(path).header) is None


def test_a_header_is_read_alone(tmp_path: Path) -> None:
    path = write_record(tmp_path / "r", rank=3, size=4)
    assert read_header(path) == read_record(path).header
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(RecordError, match="no record"):
        read_header(path)


def test_when_a_rank_is_last_known_to_have_run(tmp_path: Path) -> None:
    calls = [{"number": 1, "submitted": 3, "planned": 8, "ended": 5}]
    events = [{"number": 1, "type": 1, "time": 7}]
    times = {"awake": 4, "started_monotonic": 2}
    path = write_record(tmp_path / "r", calls=calls, events=events, **times)
    assert find_last_sign(read_record(path)) == 8
    running = read_record(write_record(tmp_path / "r", pid=os.getpid(), **times))
    assert find_last_sign(running) == running.read


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Path]:
    path = write_record(tmp_path / "r", calls=[{"number": n} for n in (9000, 8999, 9001)])
    set_own(str(path))
    yield path
    set_own(None)


def test_new_calls_come_in_order(own: Path) -> None:
    assert own_path() == own
    assert [own_calls(after)["number"].tolist() for after in (0, 8999)] == [
        [8999, 9000, 9001],
        [9000, 9001],
    ]
    own.unlink()
    assert own_calls(0) is None


def test_a_rank_without_a_record_and_a_forked_child_have_none(own: Path) -> None:
    child = os.fork()
    if child == 0:
        os._exit(0 if own_path() is None and own_calls(0) is None else 1)
    assert os.waitpid(child, 0)[1] == 0
    set_own(None)
    assert own_path() is None and own_calls(0) is None
