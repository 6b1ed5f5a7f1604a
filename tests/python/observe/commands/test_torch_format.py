"""What PyTorch's flight recorder analyser gets, and, where it is installed, what it says."""

from __future__ import annotations

import importlib.util
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from launcher_tools import environment
from made_records import write_record

from tfring.__main__ import main
from tfring.observe.commands.torch_format import torch_traces
from tfring.observe.recorder.job import JobRecords, load_job
from tfring.observe.recorder.layout import DTYPES, KINDS
from tfring.observe.recorder.process_sets import members_of_sets

SIZE = 3
CALLS = dict[int, list[dict[str, Any]]]


def call(name: str, sequence: int = 0, kind: str = "allreduce", **more: Any) -> dict[str, Any]:
    """A call of two rows of three numbers; with a sequence it has run."""
    times = {"planned": 100 * sequence, "ended": 100 * sequence + 50} if sequence else {}
    shape = more.pop("shape", (2, 3))
    return {
        "name": name,
        "sequence": sequence,
        "submitted": 10,
        "invocation": 1,
        "kind": KINDS.index(kind),
        "dtype": DTYPES.index("float32"),
        "call_site": "train.py:40",
        "shapes": [*([len(shape), *shape, -1] if kind != "barrier" else []), *[-1] * 12][:12],
        **times,
        **more,
    }


def job_of(folder: Path, calls: CALLS, sets: str = "") -> JobRecords:
    events = [{"number": 1, "type": 7, "text": sets}] if sets else []
    for rank in range(SIZE):
        numbered = [{**one, "number": n} for n, one in enumerate(calls[rank], 1)]
        path = folder / f"rank-{rank}.record"
        write_record(path, rank, SIZE, numbered, events=events, started_wall=10**18)
    return load_job([folder])


def of_every_kind() -> CALLS:
    calls: CALLS = {}
    for rank in range(SIZE):
        ran = [
            call(kind, n, kind)
            for n, kind in enumerate(KINDS, 1)
            if kind not in ("send/recv", "allgather", "reducescatter")
        ]
        ran.append(call("rows", 20, "allgather", shape=(rank + 1, 4)))
        ran.append(call("parts", 21, "reducescatter", shape=(7, 2)))
        if rank in (0, 2):
            ran.append(call("in a set", 22, process_set=1))
            ran.append(call("to 0", 23, "send/recv", root=2, peer=0))
        # Every rank makes its calls in an order of its own.
        calls[rank] = ran[rank:] + ran[:rank]
    return calls


def summary(job: JobRecords) -> dict[int, list[tuple[str, int]]]:
    return {
        rank: [(e["frames"][0]["name"], e["collective_seq_id"]) for e in trace["entries"]]
        for rank, trace in torch_traces(job).items()
    }


def test_calls_of_one_name_have_one_number(tmp_path: Path) -> None:
    calls = {
        0: [call("a", 1), call("b", 2), call("waits", invocation=4)],
        1: [call("b", 2), call("a", 1)],
        2: [call("b", 2), call("waits", invocation=4), call("a", 1)],
    }
    a, b, waits = ("tensor 'a'", 1), ("tensor 'b'", 2), ("tensor 'waits'", 3)
    assert summary(job_of(tmp_path, calls)) == {0: [a, b, waits], 1: [a, b], 2: [a, b, waits]}


def test_calls_that_one_rank_has_overwritten_are_left_out(tmp_path: Path) -> None:
    calls = {rank: [call("old", 1), call("new", 2)][rank == 1 :] for rank in range(SIZE)}
    found = summary(job_of(tmp_path, calls))
    assert found == {rank: [("tensor 'new'", 1)] for rank in range(SIZE)}


def test_an_entry_has_what_pytorch_writes(tmp_path: Path) -> None:
    calls = of_every_kind()
    calls[1].append(call("waits", 0, dtype=DTYPES.index("bfloat16")))
    traces = torch_traces(job_of(tmp_path, calls, sets="0: 0-2; 1: 0, 2"))
    waits = traces[1]["entries"][-1]
    assert (waits["state"], waits["retired"], waits["input_dtypes"]) == (
        "scheduled",
        False,
        ["BFloat16"],
    )
    assert waits["time_created_ns"] == 10**18 + 10
    assert waits["time_discovered_started_ns"] is None
    entries = {e["frames"][0]["name"]: e for e in traces[2]["entries"]}
    done = entries["tensor 'allreduce'"]
    assert (done["state"], done["duration_ms"]) == ("completed", 50e-6)
    assert (done["profiling_name"], done["input_sizes"]) == ("nccl:all_reduce", [[2, 3]])
    assert done["frames"][0] == {"name": "tensor 'allreduce'", "filename": "train.py", "line": 40}
    assert entries["tensor 'rows'"]["input_sizes"] == [[1, 4]]  # of the lowest rank
    assert entries["tensor 'rows'"]["output_sizes"] == [[3, 4]]
    assert entries["tensor 'parts'"]["input_sizes"] == [[9, 2]]
    assert entries["tensor 'parts'"]["output_sizes"] == [[3, 2]]
    assert entries["tensor 'to 0'"]["profiling_name"] == "nccl:send 1->0"
    assert traces[0]["pg_config"] == {
        "0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2]"},
        "1": {"name": "1", "desc": "process set", "ranks": "[0, 2]"},
        "0.2.0": {"name": "0.2.0", "desc": "send/recv", "ranks": "[0, 2]"},
    }
    assert list(traces[1]["pg_config"]) == ["0"]
    status = traces[1]["pg_status"]["0"]
    assert status["last_enqueued_collective"] > status["last_completed_collective"] > 0
    assert not {"tensor 'join'", "tensor 'add_process_set'"} & set(entries)


def test_members_of_process_sets(tmp_path: Path) -> None:
    calls = {0: [call("x", process_set=2)], 1: [], 2: [call("x", process_set=2)]}
    told = job_of(tmp_path / "a", calls, sets="0: 0-2; 1: 1, 2; 2: 0-2")
    assert members_of_sets(told) == {0: (0, 1, 2), 1: (1, 2), 2: (0, 1, 2)}
    cut = job_of(tmp_path / "b", calls, sets="0: 0-2; 1: 1,...2: 0-2")
    assert members_of_sets(cut) == {0: (0, 1, 2), 2: (0, 2)}


def dumped(folder: Path, calls: CALLS, sets: str = "") -> Path:
    job_of(folder / "records", calls, sets)
    traces = folder / "torch"
    assert main(["dump", "--torch", "-o", str(traces), str(folder / "records")]) == 0
    return traces


def test_the_command_writes_a_file_for_each_rank(tmp_path: Path) -> None:
    traces = dumped(tmp_path, of_every_kind())
    assert sorted(path.name for path in traces.iterdir()) == [
        f"nccl_trace_rank_{rank}" for rank in range(SIZE)
    ]
    trace = pickle.loads((traces / "nccl_trace_rank_1").read_bytes())
    assert trace["version"] == "2.7" and len(trace["entries"]) == 9


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({}, []),
        ({0: [call("x")], 2: [call("x")]}, ["Not all ranks joining", "missing ranks: {1}"]),
        (
            {rank: [call("x", shape=(rank // 2 + 2, 3))] for rank in range(SIZE)},
            ["Culprit rank 2", "'[[2, 3]]' does not match found input sizes: '[[3, 3]]'"],
        ),
        (
            {rank: [call("x", 0, KINDS[2 * (rank == 1)])] for rank in range(SIZE)},
            ["Culprit rank 1", "'all_reduce' does not match found collective type: 'broadcast'"],
        ),
    ],
)
def test_what_pytorchs_analyser_says(tmp_path: Path, change: CALLS, said: list[str]) -> None:
    if importlib.util.find_spec("torch") is None:
        pytest.skip("needs PyTorch, whose analyser is tried")
    calls = {rank: of_every_kind()[rank] + change.get(rank, []) for rank in range(SIZE)}
    traces = dumped(tmp_path, calls, sets="0: 0-2; 1: 0, 2")
    analyser = [sys.executable, "-m", "torch.distributed.flight_recorder.fr_trace", str(traces)]
    done = subprocess.run(
        analyser, capture_output=True, text=True, env=environment(), timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    text = done.stdout + done.stderr
    for part in [*said, *(["tensor 'x' at train.py:40"] if said else [])]:
        assert part in text, text
    if not said:
        assert "mismatch" not in text.lower() and "error" not in text.lower(), text
