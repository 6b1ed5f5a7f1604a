"""tfring warns of programs that reduce nothing or train with an unwrapped optimizer."""

from __future__ import annotations

from pathlib import Path

import pytest
from launcher_tools import run
from tiers import cases

PROGRAM = Path(__file__).parents[2] / "helpers" / "forgotten.py"
EXPECTED = {
    "reload": "trains its own model",
    "keras2": "but reduced none: it trained its own model",
}


@pytest.mark.parametrize("what", cases(EXPECTED, quick=("reload",)))
def test_what_was_forgotten_is_named(what: str, tmp_path: Path) -> None:
    pytest.importorskip("tfring.runtime._native")
    if what == "keras2":
        pytest.importorskip("tf_keras")
    done = run("-np", "2", "python", str(PROGRAM), what, str(tmp_path))
    output = done.stdout + done.stderr
    assert done.returncode == 0, output
    assert EXPECTED[what] in output
