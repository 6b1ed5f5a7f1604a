"""tools/gpu_check.py: what it makes of steps that end well, fail, crash, hang or are left out."""

from __future__ import annotations

import importlib.util
import json
import os
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
"peer_access": "none", "pack_kernels": "sm_90", "nccl": "NCCL in any.so", "ok": true}' |
    tr '\\n' ' ' | sed s/NCCL/$NCCL_PLAYED/ ;;
  launch) echo 'a library says {"so": '
    echo '{"step": "launch", "ok": false, "error": "there is no NCCL"}' ;;
  pack_bits) echo 'it crashes' >&2; kill -SEGV $$ ;;
  pack_speed) sleep 1000 ;;
  hang) echo '{"step": "hang", "seconds_to_error": 0.5, "message": "ended", "ok": true}' ;;
  processes|threads)
    echo "{\\"env\\": \\"$NCCL_MULTI_RANK_GPU_ENABLE $CUDA_DEVICE_MAX_CONNECTIONS\\",
\\"arguments\\": \\"$*\\", \\"kinds\\": 1, \\"ok\\": true}" | tr '\\n' ' ' ;;
esac
"""
# Plays `python -m tfring run` of a job with TensorFlow: one of its steps hangs, one fails.
JOB = """#!/bin/sh
echo started >> "$0.starts"
for item in "$@"; do
  step=${item#*:}
  case $item in
    nccl:tf_xla_pair) sleep 1000 ;;
    nccl:tf_forwarding)
      echo "[1] {\\"step\\": \\"$step\\", \\"ok\\": false, \\"error\\": \\"rank 1: no\\"}"
      exit 1 ;;
    nccl:*|early:*|host:*) echo "[0] {\\"step\\": \\"$step\\", \\"ok\\": true}" ;;
  esac
done
"""
CHOSEN = ("facts", "pack_bits", "pack_speed", "launch", "hang", "tf_values_nccl")
Ran = tuple[dict[str, dict[str, Any]], str, int]


class Machine:
    """A build folder whose programs are played."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.job = folder / "python"
        self.output = folder / "lines"
        program = folder / "tools" / "gpu_check" / "tfring_gpu_check"
        program.parent.mkdir(parents=True)
        for path, text in ((program, PROGRAM), (self.job, JOB)):
            path.write_text(text)
            path.chmod(0o755)

    def run(self, *arguments: str, nccl: str = "2.28.9", **environment: str) -> Ran:
        """Returns the lines of the file by step, the table, and the exit code."""
        command = [sys.executable, str(TOOL), "--build", str(self.folder)]
        command += ["--output", str(self.output), "--python", str(self.job)]
        result = subprocess.run(
            [*command, *arguments],
            env={**os.environ, "NCCL_PLAYED": nccl, **environment},
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert result.stdout, result.stderr
        lines = [json.loads(line) for line in self.output.read_text().splitlines()]
        printed, _, table = result.stdout.rpartition("\n\n")
        new = [json.loads(line) for line in printed.splitlines()]
        assert new == lines[len(lines) - len(new) :]
        return {line["step"]: line for line in lines}, table, result.returncode


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    return Machine(tmp_path_factory.mktemp("build")).run("--limit", "3", *CHOSEN)


def test_every_step_leaves_a_line(ran: Ran) -> None:
    lines, _, code = ran
    assert code == 1
    assert list(lines) == list(CHOSEN)
    assert lines["facts"]["ok"] and lines["hang"]["ok"]
    assert lines["launch"]["error"] == "there is no NCCL"
    assert lines["pack_bits"]["error"] == "ended with -11"
    assert "it crashes" in lines["pack_bits"]["stderr"]
    assert lines["pack_speed"]["error"] == "killed after 3 s"


def test_what_one_gpu_cannot_show_is_left_out(ran: Ran) -> None:
    assert "NCCL 2.30" in ran[0]["tf_values_nccl"]["skipped"]


def test_the_table_says_it_in_words(ran: Ran) -> None:
    table = ran[1]
    for part in ("driver for CUDA 12.8", "the error came after 0.500 s: ended"):
        assert part in table
    assert table.splitlines()[-1] == "6 steps on the GPU: 3 failed, 1 skipped"


def test_a_step_gets_what_is_left_of_the_budget_and_another_call_goes_on(machine: Machine) -> None:
    new = {"nccl": "2.30.7"}
    lines, table, code = machine.run("--budget", "6", *CHOSEN, **new)
    assert list(lines) == ["facts", "pack_bits", "pack_speed"] and code == 1
    assert lines["pack_speed"]["error"] in ("killed after 5 s", "killed after 6 s")
    left = "no time was left for launch hang tf_values_nccl: go on with --resume"
    assert table.splitlines()[-1].endswith(left)
    # What the calls before have taken counts.
    lines, table, _ = machine.run("--resume", "--budget", "6", *CHOSEN, **new)
    assert list(lines) == ["facts", "pack_bits", "pack_speed"]
    assert table.splitlines()[-1].endswith(left)
    lines, table, _ = machine.run("--resume", "--budget", "60", "--call", "30", *CHOSEN, **new)
    assert list(lines) == list(CHOSEN)
    assert table.splitlines()[-1] == "6 steps on the GPU: 3 failed, 0 skipped"


def test_all_steps_without_tensorflow_fit_into_one_call_even_if_all_of_them_hang() -> None:
    spec = importlib.util.spec_from_file_location("gpu_check", TOOL)
    assert spec is not None and spec.loader is not None
    tool = importlib.util.module_from_spec(spec)
    sys.modules["gpu_check"] = tool
    spec.loader.exec_module(tool)
    assert sum(step.limit for step in tool.STEPS if not step.mode) <= 500


def test_a_job_with_tensorflow_starts_again_after_a_step_that_hangs_or_fails(
    machine: Machine,
) -> None:
    lines, _, _ = machine.run("--slot", "2", "--limit", "2", nccl="2.30.7")
    failed = {step: line["error"] for step, line in lines.items() if not line["ok"]}
    assert failed == {"tf_xla_pair": "killed after 2 s", "tf_forwarding": "rank 1: no"}
    assert lines["tf_values_nccl"]["ok"] and lines["tf_values_staged"]["ok"]
    assert "take turns" in lines["tf_speed_nccl"]["skipped"]
    assert len(Path(f"{machine.job}.starts").read_text().splitlines()) == 3


def test_two_ranks_of_one_gpu_have_the_settings_and_the_nccl_that_they_need(
    machine: Machine, tmp_path: Path
) -> None:
    nccl = tmp_path / "site" / "nvidia" / "nccl" / "lib" / "libnccl.so.2"
    nccl.parent.mkdir(parents=True)
    nccl.touch()
    path = os.pathsep.join([str(tmp_path / "site"), os.environ.get("PYTHONPATH", "")])
    lines, _, _ = machine.run("processes", "threads", PYTHONPATH=path)
    assert lines["processes"]["env"] == "1 " and lines["threads"]["env"] == "1 32"
    assert f"--nccl={nccl}" in lines["processes"]["arguments"]


def test_an_unknown_step_is_an_error() -> None:
    result = subprocess.run(
        [sys.executable, str(TOOL), "pack_bit"], capture_output=True, text=True, timeout=60
    )
    assert result.returncode == 2
    assert "no step pack_bit; steps: facts pack_bits" in result.stderr
