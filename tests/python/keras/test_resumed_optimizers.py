"""One process restores what a different one saved: each optimizer, in each way to use it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from launcher_tools import ROOT, run, run_python

pytest.importorskip("tfring.runtime._native")
pytest.importorskip("tf_keras")

PROGRAM = ROOT / "tests" / "helpers" / "resumed_optimizers.py"


@pytest.mark.slow
def test_another_process_with_more_ranks_has_all_values(tmp_path: Path) -> None:
    path = {"PYTHONPATH": f"{ROOT}:{PROGRAM.parent}"}
    first = run_python(PROGRAM, tmp_path, "save", **path)
    assert first.returncode == 0, first.stderr[-2000:]
    second = run("-np", 2, "python", PROGRAM, tmp_path, "restore", **path)
    assert second.returncode == 0, (second.stdout + second.stderr)[-2000:]
    saved = sorted(tmp_path.glob("*/*/save-0.npz"))
    assert len(saved) > 10
    wrong = [
        f"{file.parent.relative_to(tmp_path)}: variable {key} on rank {rank}"
        for file in saved
        for rank in range(2)
        for key in differing(file, file.with_name(f"restore-{rank}.npz"))
    ]
    assert not wrong, "\n".join(wrong)


def differing(one: Path, other: Path) -> list[str]:
    before, after = np.load(one), np.load(other)
    assert before.files == after.files
    assert len(before.files) > 8, "weights and more"
    return [key for key in before.files if not np.array_equal(before[key], after[key])]
