"""Steps of `make gpu-check` that need TensorFlow, on the fake."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import gpu_fake

TOOL = gpu_fake.ROOT / "tools" / "gpu_check.py"
STEPS = ("facts", "tf_import", "tf_xla_pair", "tf_done_early")


def test_steps_with_tensorflow() -> None:
    build = gpu_fake.fakes().parent
    result = subprocess.run(
        [sys.executable, str(TOOL), "--fake", "--build", str(build), *STEPS],
        env={**os.environ, "PYTHONPATH": f"{gpu_fake.ROOT}:{os.environ['PYTHONPATH']}"},
        capture_output=True,
        text=True,
        timeout=400,
    )
    lines = [json.loads(line) for line in result.stdout.splitlines() if line.startswith("{")]
    assert [line["step"] for line in lines] == list(STEPS)
    for line in lines:
        assert line["ok"] and "skipped" not in line, line
    assert lines[0]["gpus"] == 1  # which the two ranks share
    assert lines[1]["name"] == "Fake GPU" and lines[1]["ranks"] == 2
