"""tfring warns of programs that reduce nothing or train with an unwrapped optimizer."""

from __future__ import annotations

from pathlib import Path

import pytest
from launcher_tools import run
from tiers import cases

PROGRAM = Path(__file__).parents[2] / "helpers" / "forgotten.py"
NAMED = "trains its own model"
AT_END = "but reduced none: it trained its own model"
EXPECTED = {
    "nothing": AT_END,
    "wrap": AT_END,
    "reload": NAMED,
    "right": "",
    "calls": "",
    "restored": "",
    "keras2": AT_END,
    "keras2 legacy": AT_END,
    "keras2 right": "",
}


@pytest.mark.parametrize("what", cases(EXPECTED, quick=("nothing", "reload", "right")))
def test_what_was_forgotten_is_named(what: str, tmp_path: Path) -> None:
    pytest.importorskip("tfring.runtime._native")
    if "keras2" in what:
        pytest.importorskip("tf_keras")
    done = run("-np", "2", "python", str(PROGRAM), what, str(tmp_path))
    output = done.stdout + done.stderr
    assert done.returncode == 0, output
    said = NAMED in output or AT_END in output
    assert said == bool(EXPECTED[what])
    assert EXPECTED[what] in output
