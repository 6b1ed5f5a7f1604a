"""tools/gpu_check.py: what it makes of steps that end well, fail, crash, hang or are left out."""

from __future__ import annotations

import functools
import importlib.util
import json
import os
import select
import signal
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import gpu_fake
import pytest

TOOL = Path(__file__).resolve().parents[2] / "tools" / "gpu_check.py"
FOLDER = TOOL.with_suffix("")
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
  pack_speed)
    # More than a pipe holds: what follows comes when the tool reads.
    [ ! -p "$0.alive" ] || { head -c 1000000 /dev/zero; exec 9>"$0.alive"; }
    sleep 1000 ;;
  hang) echo '{"step": "hang", "seconds_to_error": 0.5, "message": "ended", "ok": true}' ;;
  processes|threads)
    echo "{\\"env\\": \\"$NCCL_MULTI_RANK_GPU_ENABLE $CUDA_DEVICE_MAX_CONNECTIONS\\",
\\"arguments\\": \\"$*\\", \\"kinds\\": 1, \\"ok\\": true}" | tr '\\n' ' ' ;;
esac
"""
# Plays Python with JAX, and `python -m tfring run` of a job with TensorFlow: of its steps one
# hangs, one fails and one dies, and its end hangs.
JOB = """#!/bin/sh
case $1 in *jax/pair.py)
  echo "{\\"env\\": \\"$NCCL_MULTI_RANK_GPU_ENABLE\\",
\\"arguments\\": \\"$*\\", \\"ok\\": true}" | tr '\\n' ' ' ;;
esac
[ "$3" = run ] && echo started >> "$0.starts"
for item in "$@"; do
  step=${item#*:}
  case $item in
    nccl:tf_xla_pair) sleep 1000 ;;
    nccl:tf_forwarding)
      echo "[1] {\\"step\\": \\"$step\\", \\"ok\\": false, \\"error\\": \\"rank 1: no\\"}"
      exit 1 ;;
    nccl:tf_done_late) exit 3 ;;
    nccl:*|early:*|host:*) echo "[0] {\\"step\\": \\"$step\\", \\"ok\\": true}" ;;
  esac
done
[ "$step" != tf_speed_staged ] || sleep 1000
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
    left = (
        "no time was left for launch hang tf_values_nccl: "
        "go on with --resume and a --budget of more than 6 s"
    )
    assert table.splitlines()[-1].endswith(left)
    # What the calls before have taken counts.
    lines, table, _ = machine.run("--resume", "--budget", "6", *CHOSEN, **new)
    assert list(lines) == ["facts", "pack_bits", "pack_speed"]
    assert table.splitlines()[-1].endswith(left)
    lines, table, _ = machine.run("--resume", "--budget", "60", "--call", "30", *CHOSEN, **new)
    assert list(lines) == list(CHOSEN)
    assert table.splitlines()[-1] == "6 steps on the GPU: 3 failed, 0 skipped"


def test_a_call_that_ends_before_the_budget_can_be_resumed_as_it_is(machine: Machine) -> None:
    _, table, _ = machine.run("--call", "4", "pack_speed", "hang", nccl="2.30.7")
    assert table.splitlines()[-1].endswith("no time was left for hang: go on with --resume")


def test_a_budget_with_which_no_step_starts_is_an_error() -> None:
    for option in ("--budget", "--call"):
        result = subprocess.run(
            [sys.executable, str(TOOL), option, "3"], capture_output=True, text=True, timeout=60
        )
        assert result.returncode == 2
        assert f"{option} 3 is too small: a step starts only with more than 3 s" in result.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_that_ends_the_tool_ends_the_step_too(machine: Machine, number: int) -> None:
    """What went on would hold the GPU while another call measures."""
    alive = machine.folder / "tools" / "gpu_check" / "tfring_gpu_check.alive"
    os.mkfifo(alive)
    command = [sys.executable, str(TOOL), "--build", str(machine.folder), "pack_speed"]
    env = {**os.environ, "NCCL_PLAYED": ""}
    # A shell's background job ignores Ctrl-C, and so does all that it starts.
    heed = functools.partial(signal.signal, number, signal.SIG_DFL)
    tool = subprocess.Popen(command, stdout=subprocess.DEVNULL, env=env, preexec_fn=heed)
    with alive.open("rb") as end:  # opens when the step does, ends when its last process has ended
        tool.send_signal(number)
        assert tool.wait(timeout=60) == 128 + number
        assert select.select([end], [], [], 30)[0]


@pytest.mark.parametrize("cut", [20, -1])
def test_a_last_line_that_was_cut_off_does_no_harm(machine: Machine, cut: int) -> None:
    """The cut takes most of the line, or only its end of line."""
    machine.run("facts", "hang")
    whole = machine.output.read_text().splitlines(keepends=True)
    whole[1] = whole[1].replace('"ok": true', '"ok": true, "of": "an earlier call"')
    machine.output.write_text(whole[0] + whole[1][:cut])
    lines, table, code = machine.run("--resume", "facts", "hang", "threads")
    assert list(lines) == ["facts", "hang", "threads"] and code == 0, table
    assert machine.output.read_text().startswith(whole[0])
    assert (whole[1] in machine.output.read_text()) == (cut == -1)


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
    assert failed == {
        "tf_xla_pair": "killed after 2 s",
        "tf_forwarding": "rank 1: no",
        "tf_done_late": "the job ended with 3",
        "tf_end": "killed after 2 s",
    }
    assert lines["tf_values_nccl"]["ok"] and lines["tf_values_staged"]["ok"]
    assert "take turns" in lines["tf_speed_nccl"]["skipped"]
    assert len(Path(f"{machine.job}.starts").read_text().splitlines()) == 4


def test_two_ranks_of_one_gpu_have_the_settings_and_the_nccl_that_they_need(
    machine: Machine, tmp_path: Path
) -> None:
    nccl = tmp_path / "site" / "nvidia" / "nccl" / "lib" / "libnccl.so.2"
    nccl.parent.mkdir(parents=True)
    nccl.touch()
    path = os.pathsep.join([str(tmp_path / "site"), os.environ.get("PYTHONPATH", "")])
    new = {"nccl": "2.30.7"}
    lines, _, _ = machine.run("processes", "threads", "jax_pair", PYTHONPATH=path, **new)
    assert lines["processes"]["env"] == "1 " and lines["threads"]["env"] == "1 32"
    assert f"--nccl={nccl}" in lines["processes"]["arguments"]
    library = machine.folder / "tools" / "gpu_check" / "libtfring_jax.so"
    assert lines["jax_pair"]["arguments"].endswith(f"pair.py {library} libcuda.so.1 {nccl}")
    assert lines["jax_pair"]["env"] == "1"


def test_the_step_with_jax_is_skipped_without_jax() -> None:
    command = [sys.executable, str(FOLDER / "jax" / "pair.py"), "none", "none", "none"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert json.loads(result.stdout) == {"ok": True, "skipped": "there is no JAX for GPUs"}


def without_network(command: list[str]) -> list[str]:
    """The command in a namespace that has no network, where that is allowed."""
    for unshare in (["unshare", "--net"], ["unshare", "--net", "--map-root-user"]):
        if subprocess.run([*unshare, "true"], capture_output=True).returncode == 0:
            return [*unshare, *command]
    return command


def test_all_is_played_from_its_parts_on_a_machine_without_network(
    machine: Machine, tmp_path: Path
) -> None:
    """Parts of 256 KiB; TensorFlow is a file of random bytes, and its job is played."""
    site, parts, home = tmp_path / "site", tmp_path / "parts", tmp_path / "home"
    (site / "tensorflow").mkdir(parents=True)
    (site / "tensorflow" / "weights").write_bytes(os.urandom(600_000))
    (site / "tfring").mkdir()
    env = {**os.environ, "BUILD": str(machine.folder), "PART_BYTES": "262144"}
    pack = [str(FOLDER / "pack.sh"), str(parts), "--site", str(site)]
    subprocess.run(pack, env=env, capture_output=True, check=True)
    first, tensorflow = (sorted(parts.glob(f"{name}.*")) for name in ("first", "tensorflow"))
    assert len(tensorflow) == 3 and max(p.stat().st_size for p in parts.iterdir()) == 262144
    env = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "NCCL_PLAYED": "2.30.7"}
    env |= {"GPU_CHECK_HOME": str(home)}

    def bring(part: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = without_network([str(parts / "run-part"), str(part), *arguments])
        return subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)

    for part in first:
        ran = bring(part, "--limit", "1", "facts", "pack_speed", "hang")
    assert "3 steps on the GPU: 1 failed" in ran.stdout, ran
    # After a cut the same call goes on after the lines.
    lines = (home / "lines.jsonl").read_text()
    ran = bring(first[-1], "--limit", "1", "facts", "pack_speed", "hang")
    assert "3 steps on the GPU: 1 failed" in ran.stdout, ran
    assert (home / "lines.jsonl").read_text() == lines
    whole = tensorflow[1].read_bytes()
    tensorflow[1].write_bytes(whole[:1000])
    broken = bring(tensorflow[1])
    assert broken.returncode == 1 and "differs from SHA256SUMS: tensorflow.01" in broken.stderr
    tensorflow[1].write_bytes(whole)
    # In any order.
    assert "to come: tensorflow.00 tensorflow.01\n" in bring(tensorflow[2]).stdout
    assert "to come: tensorflow.01\n" in bring(tensorflow[0]).stdout
    library = tmp_path / "nvidia" / "cudnn" / "lib" / "libcudnn.so.9"
    library.parent.mkdir(parents=True)
    library.touch()
    env["PYTHONPATH"] = str(tmp_path)
    ran = bring(tensorflow[1], "--python", str(machine.job), "tf_import", "tf_values_staged")
    assert "5 steps on the GPU: 1 failed, 0 skipped" in ran.stdout, ran
    assert (home / "links" / "libcudnn.so.9").resolve() == library
    assert (home / "site" / "tensorflow" / "weights").stat().st_size == 600_000


# Loads the library for JAX: which custom calls it has, and from where its libraries come.
HANDLERS = """
import ctypes, sys
library = ctypes.CDLL(sys.argv[1])
library.tfring_handler.restype = ctypes.c_void_p
for platform in (b"CUDA", b"Host"):
    names = (b"tfring_start", b"tfring_done", b"tfring_collective")
    print(*[bool(library.tfring_handler(name, platform)) for name in names])
maps = open("/proc/self/maps").read()
print({line.split()[-1] for line in maps.splitlines() if "tfring_runtime" in line}.pop())
print("tensorflow" in maps)
"""


@pytest.mark.slow
def test_the_steps_of_slot_1_run_from_their_parts_on_the_fakes_though_some_hang(
    tmp_path: Path,
) -> None:
    build = gpu_fake.fakes().parent
    if not (build / "tools/gpu_check/tfring_gpu_check").is_file():
        pytest.skip("the program is not built: run `make gpu-build`")
    parts = tmp_path / "parts"
    env = {**os.environ, "BUILD": str(build)}
    pack = [str(FOLDER / "pack.sh"), str(parts), "--fake"]
    subprocess.run(pack, env=env, capture_output=True, check=True)
    env = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    env |= {"GPU_CHECK_HOME": str(tmp_path / "home"), "GPU_CHECK_FAKE": "1"}
    env |= {"TFRING_FAKE_NCCL": "version=23007,hang_kernel=50"}
    command = [str(parts / "run-part"), str(parts / "first.00"), "--budget", "60", "--limit", "10"]
    ran = subprocess.run(
        without_network(command), env=env, capture_output=True, text=True, timeout=120
    )
    lines = {line["step"]: line for line in map(json.loads, ran.stdout.splitlines()[:13])}
    wrong = {step: line["error"] for step, line in lines.items() if not line["ok"]}
    assert wrong == {"processes": "killed after 10 s", "threads": "killed after 10 s"}, ran.stdout
    assert lines["launch"]["ok"] and "no time was left" not in ran.stdout
    program = tmp_path / "home" / "tree" / "build" / "tools" / "gpu_check"
    command = [sys.executable, "-c", HANDLERS, str(program / "libtfring_jax.so")]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60)
    runtime = str(program / "libtfring_runtime.so")
    said = ["True True True", "False False True", runtime, "False"]
    assert ran.stdout.splitlines() == said, ran


def test_kernels_for_other_gpus_are_overwritten() -> None:
    sys.path.append(str(FOLDER))
    import slim

    def entry(kind: int, architecture: int) -> bytes:
        head = struct.pack("<HHIQ", kind, 1, 64, 8).ljust(28, b"\1")
        return head + struct.pack("<I", architecture).ljust(36, b"\1") + b"machines"

    entries = [entry(2, 80), entry(2, 90), entry(1, 90)]
    body = b"".join(entries)
    data = bytearray(b"\0" * 8 + struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(body)) + body)
    assert slim.slim(data, 0, len(data), 90) == 16
    kept = [data[24 + 72 * i + 64 : 24 + 72 * i + 72] for i in range(3)]
    assert kept == [bytes(8), b"machines", bytes(8)]


def test_an_unknown_step_is_an_error() -> None:
    result = subprocess.run(
        [sys.executable, str(TOOL), "pack_bit"], capture_output=True, text=True, timeout=60
    )
    assert result.returncode == 2
    assert "no step pack_bit; steps: facts pack_bits" in result.stderr
