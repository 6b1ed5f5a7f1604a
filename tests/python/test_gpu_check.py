"""tools/gpu_check.py: what it makes of steps that end well, fail, crash, hang or are left out."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

TOOL = Path(__file__).resolve().parents[2] / "tools" / "gpu_check.py"
# Plays the compiled program.
PROGRAM = """#!/bin/sh
for step in "$@"; do :; done
case $step in
  facts) echo '{"step": "facts", "gpus": 1, "driver_cuda": 12080, "name": "Any", "capability": 90,
"peer_access": "none", "pack_kernels": "sm_90", "ok": true, "seconds": 0.1}' | tr '\\n' ' ' ;;
  load_nccl) echo 'a library says {"so": '
    echo '{"step": "load_nccl", "ok": false, "error": "there is no NCCL"}' ;;
  pack_bits) echo 'it crashes' >&2; kill -SEGV $$ ;;
  pack_speed) sleep 1000 ;;
  hang) echo '{"step": "hang", "seconds_to_error": 0.5, "message": "ended", "ok": true}' ;;
esac
"""
CHOSEN = ("facts", "load_nccl", "pack_bits", "pack_speed", "hang", "tf_values_nccl_2")


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], str, int]:
    """The lines by step, what follows them, and the exit code."""
    build = tmp_path_factory.mktemp("build")
    program = build / "tools" / "gpu_check" / "tfring_gpu_check"
    program.parent.mkdir(parents=True)
    program.write_text(PROGRAM)
    program.chmod(0o755)
    output = build / "lines"
    command = [sys.executable, str(TOOL), "--build", str(build), "--output", str(output)]
    result = subprocess.run(
        [*command, "--limit", "3", *CHOSEN], capture_output=True, text=True, timeout=120
    )
    lines = [json.loads(line) for line in output.read_text().splitlines()]
    assert [line["step"] for line in lines] == list(CHOSEN)
    printed, _, table = result.stdout.partition("\n\n")
    assert [json.loads(line) for line in printed.splitlines()] == lines
    return {line["step"]: line for line in lines}, table, result.returncode


def test_every_step_leaves_a_line(ran: tuple[dict[str, Any], str, int]) -> None:
    lines, _, code = ran
    assert code == 1
    assert lines["facts"]["ok"] and lines["hang"]["ok"]
    assert lines["load_nccl"]["error"] == "there is no NCCL"
    assert lines["pack_bits"]["error"] == "ended with -11"
    assert "it crashes" in lines["pack_bits"]["stderr"]
    assert lines["pack_speed"]["error"] == "killed after 3 s"


def test_what_one_gpu_cannot_show_is_left_out(ran: tuple[dict[str, Any], str, int]) -> None:
    assert "one GPU" in ran[0]["tf_values_nccl_2"]["skipped"]


def test_the_table_says_it_in_words(ran: tuple[dict[str, Any], str, int]) -> None:
    table = ran[1]
    for part in ("driver for CUDA 12.8", "the error came after 0.500 s: ended"):
        assert part in table
    assert table.splitlines()[-1] == "6 steps on the GPU: 3 failed, 1 skipped"


def test_an_unknown_step_is_an_error() -> None:
    result = subprocess.run(
        [sys.executable, str(TOOL), "pack_bit"], capture_output=True, text=True, timeout=60
    )
    assert result.returncode == 2
    assert "no step pack_bit; steps: facts doctor" in result.stderr
