"""`tfring explain` finds the cause and the ranks of jobs with one fault each, within seconds.

So does an assistant that has the tools of `tfring mcp` alone.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from launcher_tools import ROOT, environment

from tfring.observe.explain.ends import _LOST
from tfring.observe.explain.explain import STACKS_SECONDS
from tfring.observe.explain.processes import WATCH_SECONDS
from tfring.observe.recorder.job import load_job
from tfring.observe.recorder.layout import EventType

pytest.importorskip("tfring.runtime._native")
pytest.importorskip("mcp")

# The cases that may be missed, because a busy machine makes them look like others.
SCORE = 0.95
# The limit for an answer in seconds. Time of other processes does not count.
ANSWER_SECONDS = 5.0
# These have to be right, whatever the score: what is left after a SIGKILL of all ranks, and causes
# that are read from the texts of the runtime's errors.
SURE = {
    "all_killed",
    "all_killed_in_a_hang",
    "exception",
    "exception_on_rank_0",
    "failed_step",
    "fewer_batches",
    "shutdown_on_one_rank",
    "alltoall_without_a_joined_rank",
}


def outcomes(folder: Path, *names: str) -> list[dict[str, Any]]:
    """Runs planted faults, all of them without names."""
    runner = ROOT / "tests" / "helpers" / "planted_runner.py"
    done = subprocess.run(
        [sys.executable, str(runner), str(folder), *names],
        capture_output=True,
        text=True,
        env=environment(),
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def told_as_lost(folder: Path, survivor: int) -> list[str]:
    """Ranks that the runtime of a survivor has called lost, as explanations read it.

    On this host the explanation looks at the processes themselves instead.
    """
    events = load_job([folder]).records[survivor].events
    texts = [event.text for event in events if event.type is EventType.ABORT]
    return [match[1] for text in texts if (match := _LOST.search(text))]


def test_what_the_texts_of_errors_say_is_explained(tmp_path: Path) -> None:
    found = outcomes(tmp_path, *sorted(SURE), "killed_between_calls")
    assert {case["case"] for case in found} == SURE | {"killed_between_calls"}
    wrong = [c for c in found if c["case"] in SURE and not (c["right"] and c["by_mcp"])]
    assert not wrong, "\n".join(map(json.dumps, wrong))
    assert told_as_lost(tmp_path / "killed_between_calls", survivor=0) == ["1"]


@pytest.mark.alone
@pytest.mark.slow
def test_planted_faults_are_explained(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = outcomes(tmp_path)
    wrong = [case for case in found if not case["right"]]
    wrong_by_mcp = [case for case in found if not case["by_mcp"]]
    slowest = max(case.get("seconds", 0.0) for case in found)
    computing = max(case.get("computing", 0.0) for case in found)
    with capsys.disabled():
        print(f"\n{len(found) - len(wrong)} of {len(found)} planted faults are explained", end="")
        print("".join(f", not {case['case']} ({case.get('cause')})" for case in wrong), end="")
        print(f", the slowest answer took {slowest:.1f} s; by the server of assistants", end="")
        print(f" {len(found) - len(wrong_by_mcp)}", end="")
        print("".join(f", not {case['case']}" for case in wrong_by_mcp), end=" ")
    assert len(found) >= 40
    text = "\n".join(json.dumps(case) for case in [*wrong, *wrong_by_mcp])
    assert len(wrong) <= (1 - SCORE) * len(found), text
    assert len(wrong_by_mcp) <= (1 - SCORE) * len(found), text
    assert computing + WATCH_SECONDS + STACKS_SECONDS < ANSWER_SECONDS, text
    assert {case["case"] for case in found} >= SURE
    assert not SURE & {case["case"] for case in [*wrong, *wrong_by_mcp]}, text
    assert told_as_lost(tmp_path / "killed_between_calls", survivor=0) == ["1"]
    healthy = [case for case in wrong if "NOTHING" in case["wanted"]]
    assert len(healthy) <= 1, text
