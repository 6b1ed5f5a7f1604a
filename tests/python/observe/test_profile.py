"""`tfring profile`: a real job whose rank 1 is slow, and what is made of samples."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from launcher_tools import REPORT, finish, pids_in, start, write_script
from made_records import NOBODY, write_record

from tfring.launch.cli import main
from tfring.observe.explain.places import Frame
from tfring.observe.profile import (
    Line,
    Profile,
    Sample,
    _of_rank,
    describe_difference,
    find_shares,
    make_document,
    parse_samples,
)

native = pytest.importorskip("tfring.runtime._native")

SITE = "/usr/lib/python3.11/site-packages"
# Rank 1 sleeps in every step and rank 0 waits for it, in a function as TensorFlow makes them of
# our ops.
SLOW = """
    import time
    import numpy as np
    from tfring.runtime import topology
    from tfring import world
    from tfring.runtime._native import core

    world.init()
    rank = topology.rank()
    report(f"pid.{rank}", os.getpid())
    exec("def tfring_allreduce(one): return core.allreduce(one, name='g', op=1)")

    def callback():
        if rank == 1:
            time.sleep(0.05)  # the slow line

    while True:
        callback()
        tfring_allreduce(np.ones(4, np.float32))
"""


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of a job that runs; its records are in `records`."""
    folder = tmp_path_factory.mktemp("job")
    script = write_script(folder, SLOW, header=REPORT)
    records = str(folder / "records")
    process = start("-np", 2, sys.executable, script, folder, TFRING_RECORD_DIR=records)
    try:
        pids_in(folder, 2)
        yield folder
    finally:
        process.terminate()
        process.communicate()


def profiled(job: Path, **more: str) -> tuple[list[str], dict[str, object]]:
    """What the command prints, and the file that it writes."""
    file = job / "profile.json"
    (records,) = (job / "records").iterdir()
    command = [sys.executable, "-m", "tfring", "profile", str(records), "--seconds", "2"]
    done = finish([*command, "-o", str(file)], **more)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == (
        f"2 of 2 ranks: {file}. Open it at https://www.speedscope.app"
    )
    return done.stdout.splitlines(), json.loads(file.read_text())


@pytest.mark.parametrize("spied", [True, False])
def test_the_slow_line_of_a_rank_is_named(job: Path, spied: bool) -> None:
    if spied and shutil.which("py-spy") is None:
        pytest.skip("needs py-spy")
    lines, graphs = profiled(job, **({} if spied else {"PATH": "/nowhere"}))
    script = (job / "script.py").read_text()
    line = script[: script.index("# the slow line")].count("\n") + 1
    place = f"callback (script.py:{line})"
    assert lines[0].startswith("Rank 1 spends ") and f"of the time in {place}; rank 0 " in lines[0]
    assert ("pip install py-spy" in "".join(lines)) is not spied
    assert lines.index("Rank 0:") < lines.index("Rank 1:")
    assert "<module> (script.py" in lines[lines.index("Rank 0:") + 1]
    assert place in lines[lines.index("Rank 1:") + 1]
    names = [graph["name"] for graph in graphs["profiles"]]
    assert names == ["all ranks", "rank 0", "rank 1"]
    frames = [frame["name"] for frame in graphs["shared"]["frames"]]
    assert "callback" in frames and "rank 1" in frames and "accept" not in frames
    for graph in graphs["profiles"]:
        assert len(graph["samples"]) == len(graph["weights"]) > 10
        assert sum(graph["weights"]) == pytest.approx(graph["endValue"])


def frame(function: str, line: int = 1, path: str = "/job/train.py") -> Frame:
    return Frame(path, str(line), function)


FIT = frame("<module>", 20)
KERAS = frame("fit", 300, f"{SITE}/keras/src/trainer.py")
EXECUTE = frame("quick_execute", 50, f"{SITE}/tensorflow/python/execute.py")
CALLBACK = frame("on_batch_end", 13)
IN_FIT = ("<module>", "fit")


def profile(**threads: list[tuple[tuple[Frame, ...], float]]) -> Profile:
    return Profile({name: [Sample(*one) for one in some] for name, some in threads.items()})


def test_time_is_given_to_the_innermost_line_of_the_program() -> None:
    found = find_shares(
        profile(
            MainThread=[
                ((EXECUTE, KERAS, FIT), 6.0),
                ((CALLBACK, KERAS, FIT), 1.0),
                ((frame("get", 9, "/usr/lib/python3.11/queue.py"), CALLBACK, KERAS, FIT), 2.0),
                ((frame("run", 1, "<frozen runpy>"),), 1.0),
            ],
            TensorFlow=[
                ((frame("next_batch", 3), frame("call", 1, f"{SITE}/tensorflow/ops.py")), 4.0)
            ],
            reader=[((frame("read", 5), frame("run", 1, "/usr/lib/python3.11/threading.py")), 9.0)],
        )
    )
    assert [(line.text(), round(share, 3)) for line, share in found.items()] == [
        ("<module> (train.py:20), in keras", 0.6),
        ("next_batch (train.py:3), on a thread of TensorFlow's", 0.4),
        ("on_batch_end (train.py:13)", 0.3),
        ("no line of the program", 0.1),
    ]


OWN, KERAS_LINE = Line("on_batch_end (train.py:13)", ""), Line("<module> (train.py:20)", "in keras")


IN_CALLBACK = "of the time in on_batch_end (train.py:13); the others at most 2 %."


@pytest.mark.parametrize(
    ("slow", "text"),
    [
        ({1: 0.4}, f"Rank 1 spends 40 % {IN_CALLBACK}"),
        ({1: 0.4, 3: 0.5}, f"Ranks 1 and 3 spend at least 40 % {IN_CALLBACK}"),
        ({1: 0.2}, "The ranks spend their time on the same lines."),
        (
            {1: 0.4, 2: 0.4, 3: 0.4},
            "Rank 0 spends 98 % of the time in <module> (train.py:20), in keras; "
            "the others at most 60 %.",
        ),
    ],
)
def test_the_ranks_that_differ_are_named_with_the_line(slow: dict[int, float], text: str) -> None:
    own = {rank: slow.get(rank, 0.02) for rank in range(4)}
    assert (
        describe_difference({r: {KERAS_LINE: 1 - share, OWN: share} for r, share in own.items()})
        == text
    )


def test_a_wait_in_tfring_is_no_fault_of_the_rank_that_waits() -> None:
    waits = Line("<module> (train.py:21)", "in tfring")
    works = Line("<module> (train.py:20)", "in tensorflow")
    found = {0: {waits: 0.9, works: 0.1}, 1: {works: 0.6, waits: 0.4}}
    assert describe_difference(found) == (
        "Rank 1 spends 60 % of the time in <module> (train.py:20), in tensorflow; rank 0 10 %."
    )


def test_ranks_are_side_by_side_in_one_graph_and_each_has_its_own() -> None:
    main = [((CALLBACK, KERAS, FIT), 1.0), ((EXECUTE, KERAS, FIT), 2.0)]
    made = make_document(
        "job 6d83ae",
        {0: profile(MainThread=main), 2: profile(MainThread=main[:1], input=[((FIT,), 3.0)])},
    )
    frames = made["shared"]["frames"]
    named = [
        (g["name"], [[frames[i]["name"] for i in s] for s in g["samples"]], g["weights"])
        for g in made["profiles"]
    ]
    assert named == [
        (
            "all ranks",
            [
                ["rank 0", *IN_FIT, "on_batch_end"],
                ["rank 0", *IN_FIT, "quick_execute"],
                ["rank 2", *IN_FIT, "on_batch_end"],
            ],
            [1.0, 2.0, 1.0],
        ),
        ("rank 0", [[*IN_FIT, "on_batch_end"], [*IN_FIT, "quick_execute"]], [1.0, 2.0]),
        ("rank 2", [[*IN_FIT, "on_batch_end"]], [1.0]),
        ("rank 2, thread input", [["<module>"]], [3.0]),
    ]
    assert {"name": "on_batch_end", "file": "/job/train.py", "line": 13} in frames
    assert [graph["endValue"] for graph in made["profiles"]] == [4.0, 3.0, 1.0, 3.0]


def test_what_py_spy_writes_is_read_without_threads_of_tfring() -> None:
    frames = [
        {"name": "thread (7)", "file": "", "line": 0, "col": None},
        {"name": "f", "file": "/job/a.py", "line": 2, "col": None},
        {"name": "g", "file": "/job/a.py", "line": 5, "col": None},
    ]
    threads = ('Thread 7 "MainThread"', 'Thread 8 "tfring-stacks"', "Thread 0x7F12")
    one = {"samples": [[0, 1, 2]], "weights": [0.02]}
    found = parse_samples(
        {"shared": {"frames": frames}, "profiles": [{"name": name, **one} for name in threads]}
    )
    sample = Sample((Frame("/job/a.py", "5", "g"), Frame("/job/a.py", "2", "f")), 0.02)
    assert found == {"MainThread": [sample], "Thread 0x7F12": [sample]}


def test_a_job_whose_ranks_are_gone_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_record(tmp_path / "job" / "rank-0.record", 0, 1, pid=NOBODY)
    assert main(["profile", str(tmp_path / "job"), "-o", str(tmp_path / "file")]) == 2
    said = capsys.readouterr()
    assert "tfring profile: no rank can be sampled: its process 4194304 has ended" in said.err
    assert not said.out and not (tmp_path / "file").exists()


@pytest.mark.parametrize("option", ["--seconds=0", "--rate=nan", "--rate=2000"])
def test_impossible_options_are_refused(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profile", option]) == 2
    assert f"tfring profile: {option[:6]}" in capsys.readouterr().err


def test_a_rank_that_py_spy_may_not_trace_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stacks = 'Thread [MainThread] (most recent call first):\n  File "/job/a.py", line 2 in f\n'
    monkeypatch.setattr("tfring.observe.profile.process_state", lambda header: "running")
    monkeypatch.setattr("tfring.observe.profile.take_stacks", lambda records, timeout: {0: stacks})
    (tmp_path / "py-spy").symlink_to("/bin/false")
    monkeypatch.setenv("PATH", str(tmp_path))
    record = SimpleNamespace(header={}, pid=os.getpid())
    found = _of_rank(record, 0.2, 20)
    assert not found.spied and not found.failure
    assert {one.stack for one in found.threads["MainThread"]} == {(Frame("/job/a.py", "2", "f"),)}
    assert sum(one.seconds for one in found.threads["MainThread"]) >= 0.2
