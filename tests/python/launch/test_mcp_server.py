"""`tfring mcp` through its protocol: on a job that hangs, one that is over, and wrong questions.

tests/python/observe/explain/test_planted_faults.py asks it for all planted faults.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
from launcher_tools import (
    LIMIT_SECONDS,
    alive,
    environment,
    run_command,
    wait_until,
    write_script,
)
from live_jobs import AFTER, DEADLOCK, LiveJob, live_job

from tfring.launch.cli import main
from tfring.observe.recorder.places import id_of

pytest.importorskip("tfring.runtime._native")
pytest.importorskip("mcp")

from assistant import ask, connected, refusal
from mcp import Client

TOOLS = ["doctor", "explain", "jobs", "records", "report", "stacks", "top"]
GOOD = """
import sys
import numpy as np
from tfring import world
from tfring.runtime._native import core

world.init()
for step in range(20):
    core.mark_step(step, 32 * step)
    core.allreduce(np.ones(100, np.float32), name="gradients", op=1)
world.shutdown()
"""


def with_server(
    question: Callable[[Client], Coroutine[Any, Any, None]], *prefix: str, **more: str
) -> None:
    """Asks a server in a process of its own."""

    async def run() -> None:
        async with connected(prefix, **more) as client:
            await question(client)

    asyncio.run(run())


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveJob]:
    """A job whose rank 1 waits for its own lock, and rank 0 for rank 1."""
    with live_job(tmp_path_factory.mktemp("job")) as running:
        (running.folder / "hang").touch()
        explained = lambda: json.loads(running.tfring("explain", "--json").stdout)  # noqa: E731
        assert wait_until(lambda: explained()["cause"] == "NOT_CALLING"), explained()
        yield running


def test_tools_say_when_to_use_them_and_that_they_only_read() -> None:
    async def question(client: Client) -> None:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert sorted(tools) == TOOLS
        for tool in tools.values():
            assert "Use it" in str(tool.description) and "Attributes:" in str(tool.description)
            assert tool.annotations is not None and tool.annotations.read_only_hint is True
        assert set(tools["records"].input_schema["properties"]) == {
            *("job", "rank", "name", "state", "last")
        }

    with_server(question)


def test_an_assistant_finds_out_why_a_job_hangs_and_changes_nothing(job: LiveJob) -> None:
    where = {0: f"script.py:{job.line_of(AFTER)}", 1: f"script.py:{job.line_of(DEADLOCK)}"}
    name = id_of(job.records.name)

    async def question(client: Client) -> None:
        listed = {one["id"]: one for one in (await ask(client, "jobs"))["jobs"]}
        assert listed[name]["state"] == "hangs" and listed[name]["ranks"] == 2
        told = await ask(client, "explain", job=name)
        assert (told["cause"], told["ranks"], told["names"]) == ("NOT_CALLING", [1], ["after"])
        assert {line["ranks"][0]: line["line"] for line in told["lines"]} == where
        assert told["lines"][1]["doing"] == "waits for a lock or another thread in take_the_lock"
        assert any("rank 1 has not made this call" in fact for fact in told["evidence"])
        by_command = json.loads(job.tfring("explain", "--json").stdout)
        same = ("job", "cause", "ranks", "names", "lines", "next_step")
        assert [told[key] for key in same] == [by_command[key] for key in same]
        stacks = await ask(client, "stacks", job=str(job.records))
        assert "in take_the_lock" in stacks["stacks"]["1"]
        seen = await ask(client, "top", job=name[:8])
        assert seen["ranks"][1]["doing"] == "rank 0 waits for it" and seen["verdict"]
        waits = await ask(client, "records", job=name, state="waits")
        assert [(call["name"], call["line"]) for call in waits["calls"]] == [("after", where[0])]
        assert (await ask(client, "records", job=name, rank=1, state="waits"))["calls"] == []
        assert (await ask(client, "report", job=name))["verdict"]

    with_server(question)
    assert job.process.poll() is None and all(map(alive, job.pids.values()))


def test_an_assistant_is_told_of_a_job_that_is_over(tmp_path: Path) -> None:
    program = write_script(tmp_path, GOOD)
    command = run_command("-np", 2, sys.executable, program)
    subprocess.run(command, cwd=tmp_path, env=environment(), timeout=LIMIT_SECONDS, check=True)

    async def question(client: Client) -> None:
        jobs = (await ask(client, "jobs"))["jobs"]
        (mine,) = (one for one in jobs if one["folder"] == str(tmp_path))
        assert (mine["state"], mine["ranks"]) == ("ended", 2)
        told = await ask(client, "explain", job=mine["id"])
        assert (told["cause"], told["ranks"], told["lines"]) == ("OVER", [], [])
        assert told["evidence"] and told["next_step"]
        report = await ask(client, "report", job=mine["id"])
        assert report["size"] == 2 and "2 ranks" in report["text"]
        assert [(rank["rank"], rank["state"]) for rank in report["ranks"]] == [
            (0, "ended"),
            (1, "ended"),
        ]
        assert "no records" in await refusal(client, "stacks", job=mine["id"])

    with_server(question)


def test_wrong_questions_are_answered_with_the_sentence_of_the_command(job: LiveJob) -> None:
    async def question(client: Client) -> None:
        for tool in ("explain", "report", "stacks", "top", "records"):
            said = await refusal(client, tool, job="no-such-job")
            assert "no file, folder or job has the name no-such-job" in said
            assert "/etc/passwd is no record of tfring" in await refusal(
                client, tool, job="/etc/passwd"
            )
            assert "there is no record of a job in /etc" in await refusal(client, tool, job="/etc")
            assert "no file, folder or job" in await refusal(client, tool, job="/dev/zero")
            assert await refusal(client, tool, job="x" * 100_000)
            assert await refusal(client, tool, job="a\0b")
            assert "valid string" in await refusal(client, tool, job=["a"])
        for last in (0, -1, 10**30):
            said = await refusal(client, "records", job=str(job.records), last=last)
            assert f"--last {last}: use 1 to 8192" in said
        for rank in (-1, 2, 10**30):
            said = await refusal(client, "records", job=str(job.records), rank=rank)
            assert f"rank {rank} has no record here" in said
        assert "explain has no argument job_id" in await refusal(client, "explain", job_id="a")
        assert "Unknown tool" in await refusal(client, "run")
        assert (await ask(client, "explain", job=str(job.records)))["cause"] == "NOT_CALLING"

    with_server(question)


def test_records_of_another_user_are_refused(tmp_path: Path, job: LiveJob) -> None:
    """A process without capabilities may not read what its mode forbids, also not root's."""
    file = tmp_path / "rank-0.record"
    file.write_bytes((job.records / "rank-0.record").read_bytes())
    file.chmod(0)
    drop = ["setpriv", "--bounding-set=-all", "--inh-caps=-all"] if os.getuid() == 0 else []

    async def question(client: Client) -> None:
        for given in (tmp_path, file):
            assert "Permission denied" in await refusal(client, "explain", job=str(given))
        assert (await ask(client, "explain", job=str(job.records)))["cause"] == "NOT_CALLING"

    with_server(question, *drop)


@pytest.mark.slow
def test_an_assistant_looks_at_the_installation() -> None:
    async def question(client: Client) -> None:
        told = await ask(client, "doctor")
        assert sys.executable in told["facts"]["Python"][0] and told["facts"]["runtime"]

    with_server(question)


def test_without_the_sdk_the_command_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "mcp.server", None)
    assert main(["mcp"]) == 2
    assert 'pip install "tfring[mcp]"' in capsys.readouterr().err
