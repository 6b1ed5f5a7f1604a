"""Jobs with one thing wrong each are explained: right cause, right ranks, within seconds."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from launcher_tools import ROOT, environment

pytest.importorskip("tfring._native")

# The set may miss so many of its cases, which a busy machine makes look like others.
SCORE = 0.95
ANSWER_SECONDS = 5.0


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


def test_planted_faults_are_explained(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = outcomes(tmp_path)
    wrong = [case for case in found if not case["right"]]
    slowest = sorted(case["seconds"] for case in found if "seconds" in case)[-1]
    with capsys.disabled():
        print(f"\n{len(found) - len(wrong)} of {len(found)} planted faults are explained", end="")
        print(f", the slowest answer took {slowest:.1f} s ", end="")
    assert len(found) >= 40
    text = "\n".join(json.dumps(case) for case in wrong)
    assert len(wrong) <= (1 - SCORE) * len(found), text
    assert slowest < ANSWER_SECONDS, text
    healthy = [case for case in wrong if "NOTHING" in case["wanted"]]
    assert len(healthy) <= 1, text
