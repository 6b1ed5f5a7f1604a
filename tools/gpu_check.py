"""Checks tfring on a GPU, step by step, each in processes of its own with its own time limit.

A line of JSON per step goes to standard output and to the file that is named, and a table in words
ends it. A step that fails, or that had to be killed, is a line, too, and the others go on. Slot 1
needs no TensorFlow, slot 2 runs collectives and Keras, slot 3 XLA. With GPU_CHECK_DOUBLE=1 (or
--double): on the doubles of the driver and of NCCL, which shows that the steps work, and nothing
about a GPU.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
HELPERS = ROOT / "tests" / "helpers"
TF_STEPS = ROOT / "tools" / "gpu_check" / "tf" / "steps.py"
sys.path.append(str(HELPERS))

import gpu_double  # noqa: E402

sys.path.append(str(ROOT / "tools" / "gpu_check"))

import words  # noqa: E402


@dataclass(frozen=True)
class Step:
    """One line of the table.

    Attributes:
        name: Its name.
        limit: Seconds after which it is killed; of compute_sanitizer, for each of two tools.
        slot: 1: without TensorFlow; 2: with; 3: with XLA.
        function: Of TensorFlow's steps, the function in tools/gpu_check/tf.
        ranks: Of TensorFlow's steps; as many processes.
        operations: TFRING_GPU_OPERATIONS. "best": nccl if every rank can have a GPU of its own.
        early: TFRING_ENABLE_ASYNC_COMPLETION.
    """

    name: str
    limit: float
    slot: int = 1
    function: str = ""
    ranks: int = 0
    operations: str = "best"
    early: bool = False


# In the order in which they are run: what others need comes first.
STEPS = (
    Step("facts", 20),
    Step("doctor", 90),
    Step("load_nccl", 40),
    Step("pack_bits", 60),
    Step("pack_speed", 60),
    Step("latency", 30),
    Step("one_rank", 100),
    Step("threads", 120),
    Step("processes", 120),
    Step("death", 60),
    Step("hang", 60),
    Step("compute_sanitizer", 60),
    Step("tf_import", 120, 2, "tf_import", 1, "host"),
    Step("tf_values_staged", 240, 2, "tf_values", 1, "host"),
    Step("tf_values_nccl", 240, 2, "tf_values", 1, "nccl"),
    Step("tf_values_staged_2", 300, 2, "tf_values", 2, "host"),
    Step("tf_values_nccl_2", 300, 2, "tf_values", 2, "nccl"),
    Step("tf_forwarding", 120, 2, "tf_forwarding", 2),
    Step("tf_keras_fit", 180, 2, "tf_keras_fit", 2),
    Step("tf_done_late", 120, 2, "tf_done", 2),
    Step("tf_done_early", 120, 2, "tf_done", 2, early=True),
    Step("tf_speed_staged", 180, 2, "tf_speed", 2, "host"),
    Step("tf_speed_nccl", 180, 2, "tf_speed", 2, "nccl"),
    Step("tf_xla_pair", 180, 3, "tf_xla_pair", 2),
    Step("tf_keras_default", 180, 3, "tf_keras_default", 2),
    Step("tf_equivalence", 240, 3, "tf_equivalence", 2),
)


class Checks:
    """What all steps use; results are kept, because some steps depend on others."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.double = options.double or os.environ.get("GPU_CHECK_DOUBLE") == "1"
        self.on = "double" if self.double else "GPU"
        self.python: str = options.python
        self.build: Path = options.build.resolve()
        self.program = str(self.build / "tools/gpu_check/tfring_gpu_check")
        doubles = self.build / "doubles"
        self.driver = str(doubles / "libcuda.so.1") if self.double else options.driver
        self.nccl = str(doubles / "libnccl.so.2") if self.double else options.nccl
        self.gpus = 2 if self.double else 0  # from the step `facts`
        self.no_tensorflow = ""  # why its steps are left out

    def run(self, step: Step) -> dict[str, Any]:
        """Runs one step. Returns its line."""
        line: dict[str, Any] = {"step": step.name, "on": self.on}
        line["time"] = time.strftime("%Y-%m-%dT%H:%M:%S%z")
        start = time.monotonic()
        try:
            skipped = self._reason_to_skip(step)
            if skipped:
                line |= {"ok": True, "skipped": skipped}
            elif step.name == "doctor":
                line |= self._doctor(step)
            elif step.name == "compute_sanitizer":
                line |= self._compute_sanitizer(step)
            elif step.slot == 1:
                line |= self._program(step)
            else:
                line |= self._tensorflow(step)
        except OSError as error:
            line |= {"ok": False, "error": str(error)}
        line.setdefault("seconds", round(time.monotonic() - start, 3))
        if step.name == "facts":
            self.gpus = int(line.get("gpus", 0))
        if step.name == "tf_import" and not line["ok"]:
            self.no_tensorflow = "tf_import failed"
        return line

    def _reason_to_skip(self, step: Step) -> str:
        if step.slot > 1 and self.no_tensorflow:
            return self.no_tensorflow
        if step.operations == "nccl" and step.ranks > max(self.gpus, 1):
            return "one GPU, and tfring stages what two ranks of one GPU send each other"
        if step.name == "tf_equivalence" and self.double:
            return "TensorFlow's own kernels compute nothing on the double"
        if step.name == "compute_sanitizer":
            if self.double:
                return "it looks at what runs on a GPU"
            if _sanitizer() is None:
                return "there is no compute-sanitizer in PATH or /usr/local/cuda/bin"
        if step.slot > 1 and self.double:
            try:
                gpu_double.check()
            except gpu_double.UnavailableError as error:
                self.no_tensorflow = str(error)
                return str(error)
        return ""

    def _program(self, step: Step, *before: str, under: str = "") -> dict[str, Any]:
        env = dict(os.environ)
        if self.double:
            env["FAKE_CUDA_DEVICES"] = "2"
        elif self.gpus == 1:  # NCCL 2.30 and later takes two ranks on one GPU when it is told to
            env |= {"NCCL_MULTI_RANK_GPU_ENABLE": "1", "NCCL_MAX_CTAS": "4"}
            env["NCCL_NVLS_ENABLE"] = "0"
        arguments = [f"--driver={self.driver}", f"--nccl={self.nccl}"]
        arguments += ["--doubles"] if self.double else []
        return _json_of([*before, self.program, *arguments, under or step.name], step.limit, env)

    def _compute_sanitizer(self, step: Step) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for tool in ("memcheck", "racecheck"):
            command = [str(_sanitizer()), "--tool", tool, "--error-exitcode", "9"]
            line = self._program(step, *command, under="pack_bits")
            found[tool] = "nothing found" if line["ok"] else line.get("error", "failed")
            found |= {key: line[key] for key in ("output", "stderr") if key in line}
        return {
            "ok": all(found[tool] == "nothing found" for tool in ("memcheck", "racecheck"))
        } | found

    def _doctor(self, step: Step) -> dict[str, Any]:
        env = {**os.environ, "PYTHONPATH": _path(ROOT, os.environ.get("PYTHONPATH"))}
        env["TFRING_CUDA_DRIVER"] = self.driver
        if self.nccl:
            env["TFRING_NCCL_LIBRARY"] = self.nccl
        out, err, trouble = _run([self.python, "-m", "tfring", "doctor"], step.limit, env)
        wanted = ("CUDA driver:", "GPU ", "NCCL:", "tensors on GPUs:", "built: pack", "TensorFlow:")
        lines = [" ".join(x.split()) for x in out.splitlines() if x.startswith(wanted)]
        wrong = [x for x in out.splitlines() if x.startswith("WRONG:")]
        line: dict[str, Any] = {"ok": trouble == "", "lines": lines, "wrong": wrong}
        if trouble:
            line["error"] = "; ".join(wrong) or f"{trouble}: {err[-1000:]}"
        return line

    def _tensorflow(self, step: Step) -> dict[str, Any]:
        operations = step.operations
        if operations == "best":
            operations = "nccl" if step.ranks <= self.gpus else "host"
        env = self._tensorflow_environment()
        env["TFRING_GPU_OPERATIONS"] = operations
        env["TFRING_ENABLE_ASYNC_COMPLETION"] = "1" if step.early else "0"
        command = [self.python, str(TF_STEPS), step.function]
        if step.ranks > 1:
            run = [self.python, "-m", "tfring", "run", "-np", str(step.ranks)]
            command = [*run, *command]
        return {"operations": operations} | _json_of(command, step.limit, env)

    def _tensorflow_environment(self) -> dict[str, str]:
        """TensorFlow with GPUs, tfring and the tests' helpers; no name of another launcher."""
        if self.double:
            os.environ.setdefault("TFRING_DOUBLES_DIR", str(self.build / "doubles"))
            env = gpu_double.environment()
            env["CUDA_VISIBLE_DEVICES"] = "0"
        else:
            path = _path(self._site(), ROOT, HELPERS, os.environ.get("PYTHONPATH"))
            env = {**os.environ, "PYTHONPATH": path}
        env.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
        env["TF_FORCE_GPU_ALLOW_GROWTH"] = "true"  # two processes may share the GPU
        env["TFRING_CUDA_DRIVER"] = self.driver
        if self.nccl:
            env["TFRING_NCCL_LIBRARY"] = self.nccl
        return env

    def _site(self) -> Path | None:
        """The folder with TensorFlow's GPU wheel, unless TensorFlow with GPUs is installed."""
        named = os.environ.get("TFRING_GPU_WHEEL_SITE")
        installed = any(
            found.metadata["Name"] == "tensorflow" for found in importlib.metadata.distributions()
        )
        if not named and (installed or self.python != sys.executable):
            return None
        site = gpu_double.site()
        return site if (site / "tensorflow").is_dir() else None


# The variables of the tests, of which tfring would say that it knows none.
NOT_OF_TFRING = ("TFRING_DOUBLES_DIR", "TFRING_GPU_WHEEL_SITE")


def _path(*parts: Path | str | None) -> str:
    return os.pathsep.join(str(part) for part in parts if part)


def _sanitizer() -> str | None:
    folders = [os.environ.get("PATH"), "/usr/local/cuda/bin"]
    return shutil.which("compute-sanitizer", path=_path(*folders))


def _run(command: list[str], limit: float, env: dict[str, str]) -> tuple[str, str, str]:
    """Runs a command. Returns its output, its errors, and how it ended ("": well)."""
    env = {name: value for name, value in env.items() if name not in NOT_OF_TFRING}
    # A session of its own: a step's processes end with it.
    process = subprocess.Popen(
        command,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        out, err = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        out, err = process.communicate()
        return out, err, f"killed after {limit:.0f} s"
    code = process.returncode
    return out, err, f"ended with {code}" if code else ""


def _parse(text: str) -> dict[str, Any] | None:
    """The JSON in a line of output, which may follow a rank's prefix; None if there is none."""
    begin = text.find('{"')
    try:
        line = json.loads(text[begin:]) if begin >= 0 else None
    except ValueError:
        return None
    return line if isinstance(line, dict) and "ok" in line else None


def _json_of(command: list[str], limit: float, env: dict[str, str]) -> dict[str, Any]:
    """The line of JSON that a command prints, with an "error" if there is none.

    Of several lines, a rank's that failed is taken before others.
    """
    out, err, trouble = _run(command, limit, env)
    lines = [line for text in out.splitlines() if (line := _parse(text)) is not None]
    bad = [line for line in lines if not line.get("ok")]
    line: dict[str, Any] = {"ok": False}
    if lines:
        line = (bad or lines)[0]
    if trouble and line.get("ok"):
        line |= {"ok": False, "error": trouble}
    if not line["ok"]:
        line.setdefault("error", trouble or "it printed no line of JSON")
        line |= {"stderr": err[-2000:]} if err else {}
        line |= {} if lines or not out else {"output": out[-2000:]}
    return line


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", type=Path, default=ROOT / "build", help="CMake's folder")
    parser.add_argument("--output", type=Path, help="a file to append the lines to")
    parser.add_argument("--double", action="store_true", help="run on the doubles")
    parser.add_argument("--driver", default="libcuda.so.1", help="the CUDA driver")
    parser.add_argument("--nccl", default="", help="libnccl.so.2; default: as the runtime finds it")
    parser.add_argument("--python", default=sys.executable, help="has TensorFlow with GPUs")
    parser.add_argument("--limit", type=float, default=600, help="seconds that a step gets at most")
    parser.add_argument("--slot", type=int, action="append", help="1, 2 or 3; default: all")
    parser.add_argument("steps", nargs="*", help="default: all of the slots")
    options = parser.parse_args()
    unknown = set(options.steps) - {step.name for step in STEPS}
    if unknown:
        names = " ".join(step.name for step in STEPS)
        parser.error(f"no step {', '.join(sorted(unknown))}; steps: {names}")
    return options


def main() -> int:
    options = parse_arguments()
    checks = Checks(options)
    chosen = [
        replace(step, limit=min(step.limit, options.limit))
        for step in STEPS
        if (not options.steps or step.name in options.steps)
        and (not options.slot or step.slot in options.slot)
    ]
    if not checks.double and "facts" not in {step.name for step in chosen}:
        checks.run(STEPS[0])  # others depend on the number of GPUs
    lines = []
    for step in chosen:
        line = checks.run(step)
        lines.append(line)
        print(json.dumps(line), flush=True)
        if options.output:
            with options.output.open("a", encoding="utf-8") as file:
                print(json.dumps(line), file=file)
    print(words.table(lines), flush=True)
    return 0 if all(line["ok"] for line in lines) else 1


if __name__ == "__main__":
    sys.exit(main())
