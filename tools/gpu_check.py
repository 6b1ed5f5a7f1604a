"""Checks tfring on a GPU, step by step, within a budget of seconds.

It writes a line of JSON per step to standard output and to the named file, and a table in words
at the end. A step that failed or was killed gives a line, too, and the others go on. The
most telling steps come first: slot 1 needs no TensorFlow, slot 2 is `tfring doctor` and
one job of two ranks with TensorFlow, which starts again after a failed step. No step gets more
time than the budget has left; `--resume` goes on in another call. With GPU_CHECK_FAKE=1 (or
--fake) it runs on the fakes of the driver and of NCCL, which tests the steps and says nothing
about a GPU.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

ROOT = Path(__file__).resolve().parents[1]
HELPERS = ROOT / "tests" / "helpers"
JAX_PAIR = ROOT / "tools" / "gpu_check" / "jax" / "pair.py"
TF_STEPS = ROOT / "tools" / "gpu_check" / "tf" / "steps.py"
sys.path += [str(HELPERS), str(ROOT / "tools" / "gpu_check"), str(ROOT)]

import gpu_fake  # noqa: E402
import words  # noqa: E402

from tfring.runtime.gpu.nccl import nccl_of_package  # noqa: E402
from tfring.runtime.gpu.toolkit import find_toolkit  # noqa: E402

Line = dict[str, Any]
Emit = Callable[[Line], None]
STARTED: list[subprocess.Popen[str]] = []


@dataclass(frozen=True)
class Step:
    """One line of the table.

    Attributes:
        name: Its name.
        limit: Seconds after which it is killed.
        mode: The mode of a step in slot 2. With TensorFlow: "nccl"; "early", which is nccl with
            TFRING_ENABLE_ASYNC_COMPLETION; or "host". For tfring's command: "command". Else "".
        threads: Its ranks are threads of one process.
    """

    name: str
    limit: float
    mode: str = ""
    threads: bool = False


# The steps run in this order.
STEPS = (
    Step("facts", 20),
    Step("pack_bits", 30),
    Step("pack_speed", 40),
    Step("processes", 80),
    Step("launch", 40, threads=True),
    Step("overlap", 30, threads=True),
    Step("latency", 20),
    Step("death", 20),
    Step("hang", 20, threads=True),
    Step("abort_queued", 40),
    Step("jax_pair", 50),
    Step("threads", 60, threads=True),
    Step("compute_sanitizer", 40),
    Step("doctor", 40, "command"),
    Step("tf_import", 30, "nccl"),
    Step("tf_values_nccl", 60, "nccl"),
    Step("tf_xla_pair", 40, "nccl"),
    Step("tf_keras_default", 40, "nccl"),
    Step("tf_equivalence", 60, "nccl"),
    Step("tf_keras_fit", 30, "nccl"),
    Step("tf_forwarding", 20, "nccl"),
    Step("tf_done_late", 20, "nccl"),
    Step("tf_speed_nccl", 40, "nccl"),
    Step("tf_done_early", 20, "early"),
    Step("tf_values_staged", 60, "host"),
    Step("tf_speed_staged", 40, "host"),
)
START = 60.0  # seconds of a job, besides its first step, to import TensorFlow on all ranks
KILLED = "killed after"  # the beginning of the error of a step that took too long
LEAST = 3.0  # the fewest seconds for which a step is still started

# NCCL takes two ranks on one GPU only with this setting, and needs room for both kernels.
ONE_GPU = {"NCCL_MULTI_RANK_GPU_ENABLE": "1", "NCCL_MAX_CTAS": "4", "NCCL_NVLS_ENABLE": "0"}
# Streams of two ranks in one context must not share a queue or wait for a kernel to load.
THREADS = {"CUDA_DEVICE_MAX_CONNECTIONS": "32", "CUDA_MODULE_LOADING": "EAGER"}
# One GPU, with the first NCCL that takes two ranks on it.
FAKES = {"FAKE_CUDA_DEVICES": "1", "TFRING_FAKE_NCCL": "version=23007"}
FIRST_TO_SHARE = (2, 30)
# Variables of the tests: tfring would warn of unknown variables.
NOT_OF_TFRING = ("TFRING_FAKES_DIR", "TFRING_GPU_WHEEL_SITE")


class Budget:
    """The seconds that steps may still take.

    Args:
        in_all: The seconds of all calls.
        of_call: The seconds of this call.
        used: The seconds of `in_all` that earlier calls used.
    """

    def __init__(self, in_all: float, of_call: float, used: float) -> None:
        self._end_of_all = time.monotonic() + in_all - used
        self._end = min(self._end_of_all, time.monotonic() + of_call)
        self._in_all = in_all

    def left(self) -> float:
        return self._end - time.monotonic()

    def advice(self) -> str:
        """Returns how to run the steps for which no time was left."""
        if self._end_of_all - time.monotonic() > LEAST:
            return "go on with --resume"
        return f"go on with --resume and a --budget of more than {self._in_all:g} s"

    def limit(self, wanted: float) -> float:
        return min(wanted, self.left())


class Checks:
    """The state of all steps; it keeps results, because some steps depend on others."""

    def __init__(self, options: argparse.Namespace, budget: Budget, emit: Emit) -> None:
        self.fake = options.fake or os.environ.get("GPU_CHECK_FAKE") == "1"
        self.on = "double" if self.fake else "GPU"
        self.python: str = options.python
        self.build: Path = options.build.resolve()
        self.program = str(self.build / "tools/gpu_check/tfring_gpu_check")
        fakes = self.build / "fakes"
        self.driver = str(fakes / "libcuda.so.1") if self.fake else options.driver
        self.nccl = str(fakes / "libnccl.so.2") if self.fake else options.nccl
        self.budget = budget
        self.emit = emit
        self.cap: float = options.limit
        self.gpus = 1  # from the step `facts`, as the next field
        self.nccl_version = (0, 0)

    def line(self, step: Step, result: Line, start: float) -> Line:
        """Passes the line of a step on."""
        line = {"step": step.name, "on": self.on, "time": time.strftime("%Y-%m-%dT%H:%M:%S%z")}
        line |= {**result, "seconds": round(time.monotonic() - start, 3)}
        self.emit(line)
        return line

    def know(self, facts: Line) -> None:
        """Keeps the facts in the line of the step `facts` that other steps depend on."""
        self.gpus = int(facts.get("gpus", 1))
        version = str(facts.get("nccl", "")).split()[0:1]
        parts = version[0].split(".")[:2] if version else []
        self.nccl_version = (int(parts[0]), int(parts[1])) if len(parts) == 2 else (0, 0)

    def run(self, step: Step) -> None:
        """Runs one step of slot 1."""
        start = time.monotonic()
        limit = self.budget.limit(min(step.limit, self.cap))
        try:
            skipped = self._reason_to_skip(step)
            if skipped:
                result: Line = {"ok": True, "skipped": skipped}
            elif step.name == "doctor":
                result = self._doctor(limit)
            elif step.name == "jax_pair":
                result = self._jax_pair(limit)
            elif step.name == "compute_sanitizer":
                result = self._compute_sanitizer(step, limit)
            else:
                result = self._program(step, limit)
            if step.name == "facts":
                result |= find_toolkit(os.environ)
                self.know(result)
        except OSError as error:
            result = {"ok": False, "error": str(error)}
        self.line(step, result, start)

    def _reason_to_skip(self, step: Step) -> str:
        apart = self.gpus > 1 or self.nccl_version >= FIRST_TO_SHARE
        uses_nccl = step.mode in ("nccl", "early") and step.name != "tf_import"
        if (uses_nccl or step.name == "jax_pair") and not apart:
            return "two ranks on one GPU need NCCL 2.30 or newer"
        if step.name == "jax_pair" and self.fake:
            return "JAX needs more of CUDA than there are fakes of"
        if step.name == "tf_speed_nccl" and self.gpus < 2:
            return "two processes take turns on one GPU"
        if step.name == "tf_equivalence" and self.fake:
            return "TensorFlow's own kernels compute nothing on the fake"
        if step.name == "compute_sanitizer":
            if self.fake:
                return "it looks at what runs on a GPU"
            if _sanitizer() is None:
                return "there is no compute-sanitizer in PATH or /usr/local/cuda/bin"
        if step.mode and self.fake:
            try:
                gpu_fake.check()
            except gpu_fake.UnavailableError as error:
                return str(error)
        return ""

    def _shared(self) -> dict[str, str]:
        """The variables for two ranks on one GPU."""
        env = ONE_GPU if self.gpus == 1 else {}
        played = FAKES if self.fake else {}
        return env | {key: os.environ.get(key, value) for key, value in played.items()}

    def _program(self, step: Step, limit: float, *before: str, under: str = "") -> Line:
        env = {**os.environ, **self._shared(), **(THREADS if step.threads else {})}
        arguments = [f"--driver={self.driver}", f"--nccl={self._nccl()}"]
        arguments += ["--fakes"] if self.fake else []
        return _json_of([*before, self.program, *arguments, under or step.name], limit, env)

    def _nccl(self) -> str:
        return self.nccl or nccl_of_package() or ""

    def _jax_pair(self, limit: float) -> Line:
        library = str(self.build / "tools/gpu_check/libtfring_jax.so")
        command = [self.python, str(JAX_PAIR), library, self.driver, self._nccl()]
        return _json_of(command, limit, {**os.environ, **self._shared()})

    def _compute_sanitizer(self, step: Step, limit: float) -> Line:
        found: Line = {}
        for tool in ("memcheck", "racecheck"):
            command = [str(_sanitizer()), "--tool", tool, "--error-exitcode", "9"]
            line = self._program(step, limit / 2, *command, under="pack_bits")
            found[tool] = "nothing found" if line["ok"] else line.get("error", "failed")
            found |= {key: line[key] for key in ("output", "stderr") if key in line}
        return {
            "ok": all(found[tool] == "nothing found" for tool in ("memcheck", "racecheck"))
        } | found

    def _doctor(self, limit: float) -> Line:
        env = self._tensorflow_environment()
        env.pop("TFRING_FAKE_NCCL", None)  # it would warn of an unknown variable
        out, err, trouble = _run([self.python, "-m", "tfring", "doctor"], limit, env)
        wanted = ("CUDA driver:", "GPU ", "NCCL:", "XLA: ", "tensors on GPUs:", "TensorFlow:")
        lines = [" ".join(x.split()) for x in out.splitlines() if x.startswith(wanted)]
        wrong = [x for x in out.splitlines() if x.startswith("WRONG:")]
        line: Line = {"ok": trouble == "", "lines": lines, "wrong": wrong}
        if trouble:
            line["error"] = "; ".join(wrong) or f"{trouble}: {err[-1000:]}"
        return line

    def tensorflow(self, steps: Sequence[Step]) -> list[Step]:
        """Runs the steps of slot 2. Returns those for which no time was left."""
        todo = []
        for step in steps:
            skipped = self._reason_to_skip(step)
            if step.mode == "command" and self.budget.left() > LEAST:
                self.run(step)
            elif skipped:
                self.line(step, {"ok": True, "skipped": skipped}, time.monotonic())
            else:
                todo.append(step)
        while todo and self.budget.left() > LEAST:
            todo = self._job(todo)
        return todo

    def _job(self, steps: list[Step]) -> list[Step]:
        """Runs steps until one fails. Returns those that are left, none if TensorFlow fails."""
        modes = [f"{step.mode}:{step.name}" for step in steps]
        command = [self.python, "-m", "tfring", "run", "-np", "2", self.python, str(TF_STEPS)]
        with tempfile.TemporaryFile("w+") as errors:
            job = _Job([*command, *modes], self._tensorflow_environment(), errors)
            for at, step in enumerate(steps):
                start = time.monotonic()
                wanted = min(step.limit, self.cap) + (0 if at else START)
                line = job.next(step.name, self.budget.limit(wanted))
                if not line["ok"]:
                    # A failed rank may still be writing its error.
                    job.end(0.0 if line["error"].startswith(KILLED) else 3.0)
                    errors.seek(0)
                    line |= {"stderr": errors.read()[-2000:]}
                line = self.line(step, line, start)
                if line["ok"]:
                    continue
                rest = steps[at + 1 :]
                if step.name != "tf_import":
                    return rest
                for other in rest:
                    self.line(other, {"ok": True, "skipped": "tf_import failed"}, time.monotonic())
                return []
            start = time.monotonic()
            trouble = job.end(self.budget.limit(min(20.0, self.cap)))
            if trouble:
                self.line(Step("tf_end", 20), {"ok": False, "error": trouble}, start)
        return []

    def _tensorflow_environment(self) -> dict[str, str]:
        """The environment: TensorFlow with GPUs, tfring, the tests' helpers, no other launcher."""
        if self.fake:
            os.environ.setdefault("TFRING_FAKES_DIR", str(self.build / "fakes"))
            env = gpu_fake.environment()
        else:
            path = _path(self._site(), ROOT, HELPERS, os.environ.get("PYTHONPATH"))
            env = {**os.environ, "PYTHONPATH": path}
        env |= self._shared()
        env.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
        env["TF_FORCE_GPU_ALLOW_GROWTH"] = "true"  # so that two processes can share the GPU
        env["TFRING_X_CUDA_DRIVER"] = self.driver
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
        site = gpu_fake.site()
        return site if (site / "tensorflow").is_dir() else None


def _path(*parts: Path | str | None) -> str:
    return os.pathsep.join(str(part) for part in parts if part)


def _sanitizer() -> str | None:
    folders = [os.environ.get("PATH"), "/usr/local/cuda/bin"]
    return shutil.which("compute-sanitizer", path=_path(*folders))


def _start(command: list[str], env: dict[str, str], errors: Any) -> subprocess.Popen[str]:
    """Starts a command in a new session, so that its processes can be ended with it."""
    process = subprocess.Popen(
        command,
        env={name: value for name, value in env.items() if name not in NOT_OF_TFRING},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=errors,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    STARTED.append(process)
    return process


def _end(number: int, _: object) -> None:
    """Ends this program at a signal, with its commands, which would hold the GPU."""
    for process in STARTED:
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)
    sys.exit(128 + number)


def _killed(limit: float) -> str:
    return f"{KILLED} {limit:.0f} s"


class _Job:
    """A command that prints lines of JSON, one per step, as it goes."""

    def __init__(self, command: list[str], env: dict[str, str], errors: IO[str]) -> None:
        self._process = _start(command, env, errors)
        self._lines: queue.SimpleQueue[Line | None] = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for text in self._process.stdout:
            line = _parse(text)
            if line is not None:
                self._lines.put(line)
        self._lines.put(None)

    def next(self, name: str, limit: float) -> Line:
        """The line of a step, or a line with the reason if there is none."""
        try:
            line = self._lines.get(timeout=max(limit, 0.0))
        except queue.Empty:
            return {"ok": False, "error": _killed(limit)}
        if line is None or line.get("step") != name:
            return {"ok": False, "error": self.end(5.0) or "the job ended too early"}
        return line

    def end(self, limit: float) -> str:
        """Waits for the end, or kills. Returns what went wrong, else ""."""
        try:
            code = self._process.wait(timeout=max(limit, 0.0))
            return f"the job ended with {code}" if code else ""
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            return _killed(limit)


def _run(command: list[str], limit: float, env: dict[str, str]) -> tuple[str, str, str]:
    """Runs a command. Returns its output, its errors, and how it failed ("" if it did not)."""
    process = _start(command, env, subprocess.PIPE)
    try:
        out, err = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        out, err = process.communicate()
        return out, err, _killed(limit)
    code = process.returncode
    return out, err, f"ended with {code}" if code else ""


def _parse(text: str) -> Line | None:
    """The JSON in a line of output, with or without a rank's prefix; None if there is none."""
    begin = text.find('{"')
    try:
        line = json.loads(text[begin:]) if begin >= 0 else None
    except ValueError:
        return None
    return line if isinstance(line, dict) and "ok" in line else None


def _json_of(command: list[str], limit: float, env: dict[str, str]) -> Line:
    """The line of JSON that a command prints, or one with an "error"."""
    out, err, trouble = _run(command, limit, env)
    lines = [line for text in out.splitlines() if (line := _parse(text)) is not None]
    line = lines[0] if lines else {"ok": False}
    if trouble and line.get("ok"):
        line |= {"ok": False, "error": trouble}
    if not line["ok"]:
        line.setdefault("error", trouble or "it printed no line of JSON")
        line |= {"stderr": err[-2000:]} if err else {}
        line |= {} if lines or not out else {"output": out[-2000:]}
    return line


def parse_arguments() -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", type=Path, default=ROOT / "build", help="CMake's folder")
    parser.add_argument("--output", type=Path, help="a file for the lines")
    parser.add_argument("--resume", action="store_true", help="go on after the lines in --output")
    parser.add_argument("--fake", action="store_true", help="run on the fakes")
    parser.add_argument("--driver", default="libcuda.so.1", help="the CUDA driver")
    parser.add_argument("--nccl", default="", help="libnccl.so.2; default: as the runtime finds it")
    parser.add_argument("--python", default=sys.executable, help="has TensorFlow with GPUs")
    parser.add_argument("--budget", type=float, default=600, help="seconds of all calls together")
    parser.add_argument("--call", type=float, default=500, help="seconds of this call")
    parser.add_argument("--limit", type=float, default=600, help="seconds that a step gets at most")
    parser.add_argument("--slot", type=int, choices=(1, 2), help="1 or 2; default: both")
    parser.add_argument("steps", nargs="*", help="default: all of the slots")
    options = parser.parse_args()
    unknown = set(options.steps) - {step.name for step in STEPS}
    if unknown:
        names = " ".join(step.name for step in STEPS)
        parser.error(f"no step {', '.join(sorted(unknown))}; steps: {names}")
    for name in ("budget", "call"):
        if (seconds := getattr(options, name)) <= LEAST:
            least = f"a step starts only with more than {LEAST:g} s"
            parser.error(f"--{name} {seconds:g} is too small: {least}")
    if options.resume and not options.output:
        parser.error("--resume goes on after the lines in --output: name that file")
    return options


def _lines_of(output: Path) -> list[Line]:
    """The lines of earlier calls. Drops a broken last line, also from the file."""
    texts = output.read_text(errors="replace").splitlines()
    if texts and _parse(texts[-1]) is None:
        texts.pop()
    whole = output.with_name(f"{output.name}.whole")
    whole.write_text("".join(f"{text}\n" for text in texts))
    whole.replace(output)  # at once: a second interruption must not lose lines
    return [json.loads(text) for text in texts]


def main() -> int:
    options = parse_arguments()
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) != signal.SIG_IGN:  # set by nohup for SIGHUP
            signal.signal(number, _end)
    lines: list[Line] = []
    if options.resume and options.output.is_file():
        lines = _lines_of(options.output)
    elif options.output:
        options.output.write_text("")

    def emit(line: Line) -> None:
        lines.append(line)
        print(json.dumps(line), flush=True)
        if options.output:
            with options.output.open("a", encoding="utf-8") as file:
                print(json.dumps(line), file=file)

    budget = Budget(options.budget, options.call, sum(line["seconds"] for line in lines))
    checks = Checks(options, budget, emit)
    before = {line["step"]: line for line in lines}
    if "facts" in before:
        checks.know(before["facts"])
    chosen = [
        step
        for step in STEPS
        if step.name not in before
        and (not options.steps or step.name in (*options.steps, "facts"))
        and (options.slot in (None, 2 if step.mode else 1) or step.name == "facts")
    ]
    unstarted = [step for step in chosen if not step.mode]
    while unstarted and budget.left() > LEAST:
        checks.run(unstarted.pop(0))
    unstarted += checks.tensorflow([step for step in chosen if step.mode])
    print(words.table(lines, [step.name for step in unstarted], budget.advice()), flush=True)
    return 0 if all(line["ok"] for line in lines) and not unstarted else 1


if __name__ == "__main__":
    sys.exit(main())
