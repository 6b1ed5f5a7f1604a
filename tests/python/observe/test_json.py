"""What commands print with --json is what their dataclasses, and so docs/json.md, say."""

from __future__ import annotations

import dataclasses
import importlib
import json
import os
import time
import types
import typing
from pathlib import Path
from typing import Any

import pytest
from made_records import write_record

from tfring.launch import doctor, installed
from tfring.launch.cli import MODULES, main
from tfring.observe.commands import profile as profile_command
from tfring.observe.explain.places import Frame
from tfring.observe.json_output import as_object
from tfring.observe.profile import Profile, Sample
from tfring.observe.recorder import catalog, places
from tfring.observe.recorder.layout import CallFlags, EventType
from tfring.observe.recorder.stacks import MAIN

SECOND = 1_000_000_000
JOB = "0123456789abcdef"
COMMANDS = {
    "run": ["--dry-run", "-np", "2", "-H", "localhost:1,other:1", "python", "train.py"],
    "doctor": [],
    "help": ["values"],
    "jobs": [],
    "top": ["--once", "--interval", "0.05"],
    "explain": [],
    "report": [],
    "stacks": [],
    "profile": [],
    "timeline": [],
    "records": ["--rank", "1"],
    "dump": [],
    "manifest": ["--image", "registry/train", "--nnodes", "2", "python", "train.py"],
}


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A job of two ranks that has trained some steps; rank 0 waits for rank 1."""
    monkeypatch.setattr(places, "MEMORY", tmp_path / "default")
    monkeypatch.chdir(tmp_path)
    base = places.default_folder()
    base.parent.mkdir()
    catalog.note_begin(JOB, ["python", "train.py"], base, launched=True)
    folder = base / f"{JOB}-0123456789ab"
    now = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
    for rank in range(2):
        calls = [gradients(step, now - (90 - step) * SECOND, rank) for step in range(1, 9)]
        if rank == 0:
            calls.append({"name": "loss", "invocation": 1, "submitted": now - 70 * SECOND})
        known = {"pid": os.getpid(), "job": folder.name, "started_monotonic": now - 100 * SECOND}
        lost = {"loss": float("nan"), "has_loss": 1, "epoch": 1, "epochs": 2, "step": 8}
        mark = {"type": EventType.MARK, "time": now, "text": "noted"}
        path = folder / f"rank-{rank}.record"
        write_record(path, rank, 2, calls, events=[mark], awake=now, **known, **lost)
    return folder


def gradients(step: int, ready: int, rank: int) -> dict[str, Any]:
    """The call by which a rank averages its gradients; rank 1 is always last."""
    times = {"submitted": ready + rank * SECOND // 10, "planned": ready + SECOND // 10}
    name = {"name": "tfring.optimizer.0.0.0", "invocation": step, "flags": CallFlags.BUCKET}
    return {**name, **times, "ended": ready + SECOND // 5, "last_rank": 1 if rank == 0 else -1}


def misfits(value: Any, kind: Any, where: str = "") -> list[str]:
    """Where a value from JSON differs from a type."""
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if dataclasses.is_dataclass(kind):
        hints = typing.get_type_hints(kind)
        if not isinstance(value, dict) or value.keys() != hints.keys():
            return [f"{where}: {value!r} has not the keys {list(hints)}"]
        return [one for key in hints for one in misfits(value[key], hints[key], f"{where}.{key}")]
    if origin in (typing.Union, types.UnionType):
        found = [misfits(value, part, where) for part in parts]
        return [] if [] in found else found[0]
    if origin in (list, tuple) and isinstance(value, list):
        many = origin is list or parts[-1] is Ellipsis
        kinds = [parts[0]] * len(value) if many else list(parts)
        if len(kinds) == len(value):
            pairs = enumerate(zip(value, kinds, strict=True))
            return [one for n, pair in pairs for one in misfits(*pair, f"{where}[{n}]")]
    if origin is dict and isinstance(value, dict):
        inside = value.items()
        return [one for key, v in inside for one in misfits(v, parts[1], f"{where}[{key!r}]")]
    right = (
        kind is Any
        or type(value) is kind
        or (kind is float and (type(value) is int or value in ("nan", "inf", "-inf")))
    )
    return [] if right else [f"{where}: {value!r} is no {kind}"]


@pytest.mark.parametrize("command", COMMANDS)
def test_an_object_is_what_its_dataclass_says(
    job: Path, command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stack = (Frame("/job/train.py", "7", "load"),)
    taken = {rank: Profile({MAIN: [Sample(stack, 1.0)]}) for rank in range(2)}
    monkeypatch.setattr(profile_command, "sample", lambda *given: taken)
    for check in ("binding", "tensorflow", "mpi", "gpus"):
        monkeypatch.setattr(installed, check, lambda findings: findings.show("a", "b"))
    assert main([command, "--json", *COMMANDS[command]]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    told = json.loads(line, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    answer = importlib.import_module(MODULES[command]).Answer
    assert misfits(told, answer) == []
    if "job" in told:
        assert told["job"] == JOB


def test_an_explanation_has_lines_evidence_and_a_next_step(
    job: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["cause"], told["ranks"], told["names"]) == ("NOT_CALLING", [1], ["loss"])
    assert [one["ranks"] for one in told["lines"]] == [[0], [1]]
    assert told["lines"][0]["doing"] == "waits in allreduce of tensor 'loss'"
    assert told["evidence"][0].startswith("Rank 0 waits in allreduce of tensor 'loss', for ")
    assert told["evidence"][0].endswith("; rank 1 has not made this call")
    assert told["next_step"] and told["next_step"] in told["text"]


def test_the_calls_of_a_rank_are_filtered(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def calls(*options: str) -> list[tuple[str, str, int]]:
        assert main(["records", "--json", *options]) == 0
        told = json.loads(capsys.readouterr().out)["calls"]
        return [(one["name"], one["state"], one["invocation"]) for one in told]

    assert calls("--state", "waits") == [("loss", "waits", 1)]
    assert calls("--name", "optimizer", "--last", "1") == [("tfring.optimizer.0.0.0", "OK", 8)]
    assert calls("--rank", "1", "--name", "loss") == []
    for wrong, says in (("--last=0", "use 1 to 8192"), ("--rank=2", "ranks that have one: 0, 1")):
        assert main(["records", wrong]) == 2
        assert says in capsys.readouterr().err
    assert main(["records"]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown[-1] == "9 of 9 calls of rank 0" and "allreduce of tensor 'loss'" in shown[-2]


def test_json_of_a_run_needs_a_dry_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--json", "python", "train.py"]) == 2
    assert "--json goes with --dry-run" in capsys.readouterr().err


def test_what_differs_from_a_dataclass_is_found() -> None:
    good = as_object(doctor.Answer([], {"a": ["b"]}))
    assert misfits(good, doctor.Answer) == []
    assert misfits({**good, "new": 1}, doctor.Answer)
    assert misfits({**good, "wrong": [1]}, doctor.Answer) == [".wrong[0]: 1 is no <class 'str'>"]
    assert misfits({**good, "facts": {"a": None}}, doctor.Answer)
    assert misfits(True, int) and misfits("x", float) and not misfits("nan", float | None)
