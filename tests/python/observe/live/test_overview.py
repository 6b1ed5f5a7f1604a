"""The conclusions from rows, without a job."""

from __future__ import annotations

import io
import json
import math
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from made_records import entries, gradient_name, write_record
from rich.console import Console

import tfring
from tfring.observe.json_output import as_object
from tfring.observe.live.overview import Overview, make_overview
from tfring.observe.live.rows import Row, _efficiency, make_row, parse_row
from tfring.observe.live.table import (
    find_next_sort,
    make_page,
    needs_hosts,
    write_header,
    write_help,
)
from tfring.observe.live.threads import describe_stacks
from tfring.observe.recorder import layout
from tfring.observe.recorder.reader import read_record

SECOND = 1_000_000_000
NOW = 1000 * SECOND
HEAD = "(most recent call first):\n"


def row(rank: int, **more: Any) -> Row:
    written = {"job": "j", "size": 4, "rank": rank, "generation": 1, "host": "h"}
    written |= {"pid": 100 + rank, "state": int(layout.RankState.RUNNING)}
    record = {name: written.get(name, 0) for name in layout.HEADER.names or ()}
    record |= {name: more.pop(name) for name in list(more) if name in record and name != "step"}
    given: dict[str, Any] = {
        "record": record,
        "time": NOW,
        "process": "running",
        "step": 10,
        "cpu": 0.0,
        "memory": 1,
        "gpu": -1.0,
        "gpu_memory": 0,
        "asked": [],
        "members": list(range(int(record["size"]))),
        "waits_peer": -1,
        "waits_since": 0,
        "waits_in": "",
        "runs_in": "",
        "runs_since": 0,
        "late": [],
        "efficiency": -1.0,
        "trouble": "",
        "trouble_at": 0,
    }
    return Row(**{**given, **more})


def asked(name: str, seconds: float, process_set: int = 0, kind: str = "allreduce") -> Any:
    return [(process_set, name, 3, kind, "train.py:7", NOW - int(seconds * SECOND))]


def doing(*rows: Row) -> list[str]:
    return [view.doing for view in make_overview([], rows).ranks]


def test_who_waits_for_whom() -> None:
    waits = "waits 5 s for ranks 1 and 3 in allreduce of 'a' at train.py:7"
    found = doing(*(row(r, asked=asked("a", 5) if r in (0, 2) else []) for r in range(4)))
    assert found == [waits, "ranks 0 and 2 wait for it", waits, "ranks 0 and 2 wait for it"]


def test_who_waits_does_nothing_else() -> None:
    view = make_overview([], [row(0, asked=asked("a", 5), efficiency=0.9), row(1, efficiency=0.9)])
    assert [rank.exchange for rank in view.ranks] == [1.0, pytest.approx(0.1)]


def test_short_waits_are_no_news() -> None:
    assert doing(row(0, asked=asked("a", 1.9)), row(1)) == ["running", "running"]


def test_a_rank_in_another_collective_is_absent_and_waits_itself() -> None:
    found = doing(row(0, asked=asked("a", 5)), row(1, asked=asked("b", 4)))
    assert found[0].startswith("waits 5 s for rank 1 in") and "'b'" in found[1]
    assert found[1].startswith("waits 4 s for rank 0 in")


def test_a_rank_that_has_joined_is_not_blamed() -> None:
    joined = row(1, asked=asked("join", 5, kind="join"))
    assert doing(row(0, asked=asked("a", 5)), joined)[0].startswith("waits 5 s in allreduce")


def test_in_a_process_set_only_its_members_are_waited_for() -> None:
    waits = row(0, asked=asked("a", 5, process_set=2), members=[0, 2])
    joined = row(2, asked=asked("join", 5, process_set=1, kind="join"), members=[2])
    who = "waits 5 s for rank 2 in allreduce of 'a' at train.py:7"
    assert doing(waits, row(1), joined)[:2] == [who, "running"]
    unknown = "waits 5 s in allreduce of 'a' at train.py:7"
    assert doing(row(0, asked=asked("a", 5, process_set=2), members=[0]), row(2))[0] == unknown


def test_the_members_come_from_the_record(tmp_path: Path) -> None:
    call = {"number": 1, "process_set": 2, "name": "a", "invocation": 1, "submitted": 1}
    sets = {
        "number": 1,
        "type": layout.EventType.PROCESS_SETS,
        "text": "0: 0-3; 2: 1, 3",
        "time": 1,
    }
    path = tmp_path / "rank-1.record"
    write_record(path, 1, 4, calls=[call], events=[sets])
    assert make_row(read_record(path)).members == [1, 3]
    kind = layout.KINDS.index("send/recv")
    write_record(path, 1, 4, calls=[{**call, "kind": kind, "root": 0, "peer": 1}])
    assert make_row(read_record(path)).members == [0, 1]


def test_a_wait_in_the_middle_names_the_peer() -> None:
    middle = {"waits_peer": 3, "waits_since": NOW - 9 * SECOND, "waits_in": "allreduce of 'g'"}
    assert doing(row(0, **middle)) == ["waits 9 s for rank 3 in the middle of allreduce of 'g'"]


def test_a_rank_waits_in_a_call_of_a_locked_schedule(tmp_path: Path) -> None:
    # The lock gave it the plan at once; its peer has not made the call.
    path = tmp_path / "rank-0.record"
    write_record(path, 0, 2, calls=[{"number": 1, "name": "a", "submitted": 1, "planned": 2}])
    found = make_row(read_record(path))
    assert (found.runs_in, found.runs_since) == ("allreduce of tensor 'a'", 1)
    waits = {"runs_in": found.runs_in, "runs_since": NOW - 9 * SECOND}
    assert doing(row(0, **waits)) == ["waits 9 s in allreduce of tensor 'a'"]


def test_processes_that_do_not_run() -> None:
    running, left, failed = layout.RankState
    states = [("gone", running), ("gone", left), ("gone", failed), ("stopped", running)]
    found = doing(*(row(i, process=p, state=s) for i, (p, s) in enumerate(states)))
    assert found == ["gone", "has left", "has failed", "stopped"]


def test_rates() -> None:
    first = [row(0, late=[0, SECOND], samples=100), row(1, samples=50)]
    later = {"time": NOW + 2 * SECOND, "step": 16}
    second = [
        row(0, late=[0, 2 * SECOND], samples=300, **later),
        row(1, samples=150, **later),
    ]
    view = make_overview(first, second)
    assert [rank.steps for rank in view.ranks] == [3.0, 3.0]
    assert [rank.samples for rank in view.ranks] == [100.0, 50.0] and view.samples == 150.0
    assert [rank.awaited for rank in view.ranks] == [0.0, 0.5]
    assert view.missing == [2, 3] and "2 of 4 ranks on 1 host" in write_header(view)[0]
    # A process that was started anew has no rate yet.
    assert make_overview(first, [row(0, pid=7, **later)]).ranks[0].steps is None


def test_the_newest_trouble_is_shown() -> None:
    old, new = NOW - 90 * SECOND, NOW - 4 * SECOND
    rows = [row(0, trouble="old", trouble_at=old), row(1, trouble="new", trouble_at=new), row(2)]
    assert make_overview([], rows).trouble == "4 s ago on rank 1: new"


def test_the_only_absent_rank_is_awaited_all_the_time() -> None:
    view = make_overview([], [row(0, asked=asked("a", 5)), row(1)])
    assert [rank.awaited for rank in view.ranks] == [None, 1.0]


def test_rows_go_through_json() -> None:
    one = row(2, asked=asked("a", 5), late=[1, 2])
    assert parse_row(json.loads(json.dumps({**as_object(one), "new": 1}))) == one
    lost = training(0, loss=float("nan"))
    told = parse_row(json.loads(json.dumps(as_object(lost), allow_nan=False)))
    assert told.loss is not None and math.isnan(told.loss)
    with pytest.raises(ValueError, match="different version"):
        parse_row({"rank": 1})


def test_efficiency_is_the_time_without_exposed_communication() -> None:
    calls = entries(layout.CALL, [{"name": gradient_name(b % 2)} for b in range(12)])
    for step in range(6):
        for bucket in range(2):
            call = calls[2 * step + bucket]
            call["flags"], call["invocation"] = layout.CallFlags.BUCKET, step + 1
            # Steps of 100; the second bucket is ready at 60, and the last one reduced at 85.
            call["submitted"] = 100 * step + (60 if bucket else 40) + 1
            call["ended"] = 100 * step + (70 if bucket else 85) + 1
    assert _efficiency(calls) == pytest.approx(0.75)
    assert _efficiency(calls[:4]) == -1.0
    calls["flags"] = 0
    assert _efficiency(calls) == -1.0


def shown(view: Overview, width: int, most: int | None = None, **more: Any) -> list[str]:
    """The lines of the page; those of the table come after the note and the headings."""
    console = Console(width=width, file=io.StringIO())
    console.print(make_page(view, width, "the note", most, **more))
    return console.file.getvalue().splitlines()


def table(view: Overview, width: int, **more: Any) -> list[list[str]]:
    """The words of the headings and of each line of the table."""
    lines = shown(view, width, **more)
    return [line.split() for line in lines[lines.index("the note") + 1 :]]


def test_a_low_window_shows_the_ranks_in_trouble() -> None:
    ranks = [row(r, size=40, asked=asked("a", 5)) for r in range(40) if r != 30]
    view = make_overview(
        [], [*ranks[:5], row(30, size=40), *[row(r, size=40) for r in range(31, 40)]]
    )
    lines = shown(view, 80, 8)
    lines = lines[lines.index("the note") + 2 :]
    assert [line.split()[0] for line in lines[:8]] == ["0", "1", "2", "3", "4", "30", "31", "32"]
    assert all("waits 5 s" in line for line in lines[:5])
    assert lines[8] == "7 more ranks do not fit into the window"
    assert lines[9].startswith("no record here of ranks 5-29: ")


def test_a_wide_window_shows_all_of_a_state() -> None:
    view = make_overview([], [row(0, asked=asked("\x1b[31ma", 5)), row(1), row(2), row(3)])
    words = "waits 5 s for ranks 1, 2 and 3 in allreduce of '?[31ma' at train.py:7"
    assert words in shown(view, 190)[-4]


def training(rank: int, **more: Any) -> Row:
    """A rank in the second epoch of three."""
    fit = {"epoch": 2, "epochs": 3, "last_step": 300, "has_loss": 1, "loss": 0.5}
    return row(rank, **{"step": 120, **fit, **more})


def test_what_people_look_for_in_fit_has_room_in_80_columns() -> None:
    busy = {"input_time": SECOND, "callback_time": SECOND // 2, "samples": 640, "cpu": 3.0}
    later = {"time": NOW + 2 * SECOND, "step": 140, "memory": 3 << 30, "gpu": 93.0, **busy}
    before = [training(rank, size=2, samples=320, cpu=1.0) for rank in range(2)]
    now = [training(rank, size=2, efficiency=0.75, **later) for rank in range(2)]
    view = make_overview(before, now)
    first, speed = write_header(view)
    assert first == "job j   2 ranks on 1 host   epoch 2 of 3   step 140 of 300   16 s left"
    assert speed.split("   ")[:2] == ["loss 0.5000", "320 samples/s"]
    assert speed.split("   ")[2:] == ["input 50 %", "callbacks 25 %", "exchange 25 %"]
    names, zero, _ = table(view, 80)
    assert " ".join(names[:6]) == "rank epoch step loss samples/s input"
    assert " ".join(names[6:]) == "exchange CPU memory GPU state"
    text = "0 2/3 140 0.5000 160 50 % 25 % 100 % 3.00 GiB 93 % running"
    assert " ".join(zero) == text
    assert all(len(line.rstrip()) <= 80 for line in shown(view, 80))
    wide = " ".join(table(view, 160)[0])
    assert "host epoch step loss step/s" in wide and "callbacks awaited" in wide
    assert "GPU mem" in wide


def test_what_is_not_known_is_a_dash() -> None:
    _, zero = table(make_overview([], [row(0, size=1, step=-1, memory=0)]), 80)
    assert zero == ["0", *["-", "-", "-", "-", "-", "-", "-", "-", "-"], "running"]
    lost = training(0, size=1, loss=float("nan"))
    assert "nan" in table(make_overview([], [lost]), 80)[1]


def test_lines_are_sorted_by_a_column_the_largest_first() -> None:
    memory = (5, 7, 0, 6)
    view = make_overview([], [row(rank, memory=bytes << 20) for rank, bytes in enumerate(memory)])
    names, *lines = table(view, 80, sort="memory")
    assert [line[0] for line in lines] == ["1", "3", "0", "2"]  # of rank 2 nothing is known
    assert "memory*" in names
    losses = (0.5, float("nan"), 0.7)
    known = [training(rank, size=3, loss=loss) for rank, loss in enumerate(losses)]
    _, *lines = table(make_overview([], known), 80, sort="loss")
    assert [line[0] for line in lines] == ["2", "0", "1"]
    assert find_next_sort("rank", 80, 1) == "epoch" and find_next_sort("rank", 80, -1) == "state"
    assert find_next_sort("memory", 80, 1) == "GPU" and find_next_sort("host", 80, 1) == "epoch"
    assert find_next_sort("rank", 80, 1, hosts=True) == "host"


def test_many_ranks_of_several_hosts_become_one_line_for_each_host() -> None:
    def rank(number: int, **more: Any) -> Row:
        return training(number, size=8, host=f"h{number // 4}", memory=1 << 30, **more)

    rows = [rank(number, loss=float(number)) for number in range(7)]
    view = make_overview([], [*rows, rank(7, loss=7.0, process="stopped")])
    assert len(table(view, 160)) == 9
    assert needs_hosts(view, 7) and not needs_hosts(view, 8)
    _, *lines = [line.split() for line in shown(view, 160, 4, hosts=True)[3:]]
    assert [line[:2] for line in lines] == [["0-3", "h0"], ["4-7", "h1"]]
    assert " 2/3 120 1.500 " in " ".join(lines[0]) and "4.00 GiB" in " ".join(lines[0])
    assert " ".join(lines[1]).endswith("1 stopped, 3 running")
    names, *_ = [line.split() for line in shown(view, 80, 4, hosts=True)[3:]]
    assert names[:3] == ["rank", "host", "epoch"]  # in a narrow window, too
    one = make_overview([], [row(number, size=8, host="h") for number in range(8)])
    assert not needs_hosts(one, 4)  # one line would say less
    assert len(table(one, 80, hosts=True)) == 2


def test_the_help_names_each_key_and_column() -> None:
    assert "exchange   share of the time that it waits for other ranks" in write_help()


def test_ranks_at_the_same_lines_appear_once() -> None:
    def stacks(line: int) -> str:
        return (
            f'Thread [MainThread] {HEAD}  File "a.py", line {line} in f\n'
            '  File "a.py", line 9 in <module>\n\n'
            f'Thread [loader] {HEAD}  File "a.py", line 1 in helper\n'
            '  File "threading.py", line 9 in _bootstrap_inner\n'
        )

    text = describe_stacks({0: stacks(2), 1: stacks(3), 2: stacks(2), 3: "no stacks"})
    same, other, none = text.split("\n\n")
    assert same.splitlines() == [
        "Ranks 0 and 2:",
        "  main thread, innermost call first:",
        '    File "a.py", line 2 in f',
        '    File "a.py", line 9 in <module>',
        "  thread loader, innermost call first:",
        '    File "a.py", line 1 in helper',
    ]
    assert other.startswith("Rank 1:") and "line 3 in f" in other
    assert none == "Rank 3:\n  no stacks"


def test_frames_of_libraries_are_folded_so_that_those_of_the_program_stand_out() -> None:
    site = "/usr/lib/python3.11/site-packages"
    ours = os.path.join(os.path.dirname(tfring.__file__), "keras", "hook.py")
    stacks = {
        0: f"Thread [MainThread] {HEAD}"
        '  File "<string>", line 55 in tfring_allreduce\n'
        f'  File "{site}/tensorflow/python/execute.py", line 53 in quick_execute\n'
        f'  File "{site}/keras/src/trainer.py", line 320 in fit\n'
        f'  File "{ours}", line 5 in reduce\n'
        '  File "/job/tensorflow/train.py", line 12 in train\n'
        f'  File "{site}/numpy/core.py", line 1 in sum\n'
        f'  File "{site}/keras/src/trainer.py", line 3 in go\n'
    }
    assert describe_stacks(stacks).splitlines()[1:] == [
        "  main thread, innermost call first:",
        "    ... 4 frames of tfring, tensorflow and keras (--all shows them)",
        '    File "/job/tensorflow/train.py", line 12 in train',
        '    File "numpy/core.py", line 1 in sum',
        "    ... 1 frame of keras (--all shows them)",
    ]
    assert describe_stacks(stacks, whole=True).count("File ") == 7


def test_what_is_wrong_comes_first_and_takes_its_lines_from_the_table() -> None:
    view = make_overview([], [row(rank) for rank in range(8)])
    lines = shown(replace(view, verdict="Rank 1 sleeps. " * 12, trouble="the runtime"), 90, 6)
    assert lines[0].startswith("Rank 1 sleeps.") and lines[2].startswith("job j")
    assert "the runtime" not in "".join(lines)  # it knows less
    assert "4 more ranks do not fit into the window" in "".join(lines)
    assert "the runtime" in "".join(shown(replace(view, trouble="the runtime"), 90, 6))
