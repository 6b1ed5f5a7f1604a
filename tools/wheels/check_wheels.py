"""Installs wheels beside each TensorFlow, without a compiler, and tests them.

For each minor version: a new environment, `pip install`, `tfring doctor`, examples/keras_fit.py on
two ranks, the same with Keras 2, tests on two ranks, and those of Keras 3 also with the oldest that
this TensorFlow takes, or with those that --keras names. The environment takes up to 2 GB and is
removed before the next one is made. `make wheels-test MINORS="2.16 2.21"` does less, and `make
release` tests the wheels that it has made. At the end there is a table.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import make_wheels
import pythons
import tensorflows

ROOT = make_wheels.ROOT
FOLDER = make_wheels.FOLDER / "check"
LIMIT_SECONDS = 1800  # for one command
# Each Python gets some version of TensorFlow; the other versions get the newest Python.
PYTHONS = {"2.16": "3.10", "2.17": "3.11", "2.18": "3.12", "2.19": "3.11", "2.20": "3.12"}
TEST_TOOLS = ("pytest>=8", "scikit-learn>=1.4")
# On two ranks: the collective matrix, tapes, jit_compile=True, fit, Horovod's interface for TF1.
FEW = (
    "collectives/test_matrix.py",
    "training/test_tape.py",
    "ops/test_xla.py",
    "keras/test_fit.py",
    "shim/test_tf1.py",
)
TESTS = (
    *FEW,
    "keras/test_equivalence.py",
    "keras/test_callbacks.py",
    "keras/keras2/test_keras2.py",
)
PIP = ("-m", "pip", "install", "--quiet", "--no-compile", "--disable-pip-version-check")


class Environment:
    """A virtual environment; PATH has only its programs, no compiler."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.log: list[str] = []

    def run(self, program: str, *arguments: str, **variables: str) -> str:
        """Runs a program of the environment; returns its output.

        Raises:
            CheckError: it failed.
        """
        kept = ("HOME", "TMPDIR", "LANG")
        env = {name: os.environ[name] for name in kept if name in os.environ}
        env |= {k: v for k, v in os.environ.items() if k.startswith(("PIP_", "SSL_"))}
        env |= {"PATH": str(self._folder / "bin"), "CC": "/bin/false", "CXX": "/bin/false"}
        env |= {"TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": "-1", **variables}
        command = [str(self._folder / "bin" / program), *arguments]
        done = subprocess.run(
            command,
            env=env,
            cwd=FOLDER,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=LIMIT_SECONDS,
            check=False,
        )
        self.log.append(f"$ {' '.join(command)}\n{done.stdout}")
        if done.returncode != 0:
            raise CheckError(f"{program} ended with {done.returncode}:\n{done.stdout[-5000:]}")
        return done.stdout

    def on_two_ranks(self, *arguments: str, **variables: str) -> str:
        """Runs Python with arguments on two ranks."""
        python = str(self._folder / "bin" / "python")
        launch = ("run", "--no-merge-lines", "-np", "2", python)
        return self.run("tfring", *launch, *arguments, **variables)


class CheckError(Exception):
    """A check of a wheel failed."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--wheels", type=Path, default=make_wheels.WHEELS, help="their folder")
    parser.add_argument("--minors", default="")
    parser.add_argument("--keras", default="", help="minor versions of Keras 3, as 3.1 3.8")
    parser.add_argument("--few", action="store_true", help="leave out the longer tests")
    args = parser.parse_args()
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    for name in ("tests", "examples", "tools/wheels", "pyproject.toml"):  # a folder without tfring/
        source, copied = ROOT / name, FOLDER / "checkout" / name
        copied.parent.mkdir(parents=True, exist_ok=True)
        shutil.copytree(source, copied) if source.is_dir() else shutil.copy(source, copied)
    failed, rows = [], []
    for minor in (args.minors or " ".join(tensorflows.MINORS)).split():
        row: dict[str, Any] = {"TensorFlow": minor}
        try:
            chosen = choose_wheel(minor, args.wheels.resolve())
            check_minor(minor, *chosen, row, args.keras.split(), FEW if args.few else TESTS)
        except (CheckError, subprocess.SubprocessError) as error:
            failed.append(minor)
            print(f"FAILED: TensorFlow {minor}: {error}", flush=True)
            row["failed"] = "yes"
        rows.append(row)
    print_table(rows)
    return 1 if failed else 0


def check_minor(
    minor: str,
    wheel: Path,
    python: str,
    row: dict[str, Any],
    keras: Sequence[str],
    tests: Sequence[str],
) -> None:
    """Runs all checks of one minor version; writes the results into `row`."""
    row |= {"Python": python, "wheel": f"{wheel.stat().st_size / 1e6:.2f} MB"}
    folder = FOLDER / "venv"
    shutil.rmtree(folder, ignore_errors=True)
    subprocess.check_call([str(pythons.find(python)), "-m", "venv", str(folder)])
    environment = Environment(folder)
    checkout = FOLDER / "checkout"
    example = str(checkout / "examples" / "keras_fit.py")
    saved = f"--checkpoint={FOLDER / 'digits.keras'}"
    try:
        timed(row, "install", lambda: install(environment, minor, wheel, row))
        timed(row, "doctor", lambda: ask_doctor(environment, minor, row))
        timed(row, "fit", lambda: fit(environment, row, "keras_fit", example, saved))
        if not is_candidate(row):
            timed(row, "fit, Keras 2", lambda: fit_keras2(environment, minor, row))
        timed(row, "tests", lambda: run_tests(environment, row, "passed", tests))
        if not is_candidate(row):
            run_with_keras(environment, row, keras or [oldest_keras(environment)], tests)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        (make_wheels.FOLDER / f"check-{minor}.log").write_text("\n".join(environment.log))


def choose_wheel(minor: str, wheels: Path) -> tuple[Path, str]:
    """Returns the wheel of a folder for a minor version, and its Python version."""
    by_python = {}
    for wheel in wheels.glob("*.whl"):
        digits = re.search(r"-cp3(\d+)-", wheel.name)
        if digits:
            by_python[f"3.{digits[1]}"] = wheel
    chosen = PYTHONS.get(minor)
    if chosen not in by_python:
        fits = [p for p in by_python if p != "3.13" or minor in ("2.20", "2.21", "2.22")]
        if not fits:
            raise CheckError(f"no wheel for a Python that has it in {wheels}: make wheels")
        chosen = max(fits, key=lambda version: int(version.partition(".")[2]))
    return by_python[chosen], chosen


def install(environment: Environment, minor: str, wheel: Path, row: dict[str, Any]) -> None:
    """Installs the wheel as users do, in one command, and then the needs of the tests."""
    wanted = tensorflows.requirement(minor)
    environment.run("python", *PIP, str(wheel), wanted, *TEST_TOOLS)
    asked = "import keras, tensorflow as tf; print(tf.__version__, keras.__version__)"
    printed = environment.run("python", "-c", asked).split()
    row["TensorFlow"], row["Keras"] = printed[-2], printed[-1]
    if not is_candidate(row):
        environment.run("python", *PIP, "--no-deps", f"tf_keras=={minor}.*")


def is_candidate(row: dict[str, Any]) -> bool:
    """Whether this TensorFlow is a release candidate: it has no Keras 2, and its own Keras."""
    return "rc" in row["TensorFlow"]


def ask_doctor(environment: Environment, minor: str, row: dict[str, Any]) -> None:
    """Checks that `tfring doctor` finds the libraries of this TensorFlow and no problem."""
    printed = environment.run("tfring", "doctor")
    if f"load; built for TensorFlow {minor}." not in printed:
        raise CheckError(f"doctor does not say that the ops of {minor} load:\n{printed}")
    compiled = re.search(r"jit_compile=True: +possible", printed) is not None
    if compiled != (minor not in ("2.16", "2.17")):
        raise CheckError(f"doctor does not say what is expected of jit_compile=True:\n{printed}")
    row["jit_compile"] = "yes" if compiled else "no"


def fit(environment: Environment, row: dict[str, Any], name: str, *program: str, **v: str) -> None:
    """Checks that a model learns on two ranks, and that both have the same weights."""
    printed = environment.on_two_ranks(*program, **v)
    found = re.search(r"test accuracy ([\d.]+), .* weights (\w+) (\w+) \(all equal\)", printed)
    if found is None or float(found[1]) < 0.95 or found[2] != found[3]:
        raise CheckError(f"{name} ended with another result than expected:\n{printed[-3000:]}")
    row[f"accuracy, {name}"] = found[1]
    row[f"weights, {name}"] = f"{found[2]} = {found[3]}"


def fit_keras2(environment: Environment, minor: str, row: dict[str, Any]) -> None:
    """The same with Keras 2 as tf.keras."""
    program = str(FOLDER / "checkout" / "tools" / "wheels" / "keras2_fit.py")
    fit(environment, row, "keras2_fit", program, TF_USE_LEGACY_KERAS="1")


def oldest_keras(environment: Environment) -> str:
    """Returns the oldest minor version of Keras that the installed TensorFlow takes."""
    asked = "import importlib.metadata as m; print(*m.requires('tensorflow-cpu'), sep='\\n')"
    found = re.search(r"^keras\b.*>=\s*(\d+\.\d+)", environment.run("python", "-c", asked), re.M)
    if found is None:
        raise CheckError("TensorFlow's package does not say which Keras it needs")
    return found[1]


def run_with_keras(
    environment: Environment, row: dict[str, Any], versions: Sequence[str], tests: Sequence[str]
) -> None:
    """Runs the tests of Keras 3 with other versions of it; the last one stays installed."""
    errors = []
    for version in versions:
        name = f"passed, Keras {version}"
        try:
            environment.run("python", *PIP, f"keras=={version}.*")
            run_tests(environment, row, name, [test for test in tests if test.startswith("keras/")])
        except CheckError as error:
            row[name] = "failed"
            errors.append(f"Keras {version}: {error}")
        print(f"TensorFlow {row['TensorFlow']}: {name}: {row[name]}", flush=True)
    if errors:
        raise CheckError("\n".join(errors))


def run_tests(
    environment: Environment, row: dict[str, Any], name: str, names: Sequence[str]
) -> None:
    """Runs some test files on two ranks."""
    folder = FOLDER / "checkout" / "tests" / "parallel"
    files = [str(folder / name) for name in names]
    printed = environment.on_two_ranks("-m", "pytest", "-q", "-p", "no:cacheprovider", *files)
    found = re.search(r"(\d+) passed.*", printed)
    if found is None:
        raise CheckError(f"no test passed:\n{printed[-3000:]}")
    row[name] = found[1]


def timed(row: dict[str, Any], name: str, step: Callable[[], None]) -> None:
    """Runs a step and keeps its time."""
    started = time.monotonic()
    step()
    row[name] = f"{time.monotonic() - started:.0f} s"
    print(f"TensorFlow {row['TensorFlow']}: {name}: {row[name]}", flush=True)


def print_table(rows: Sequence[dict[str, Any]]) -> None:
    """Prints a table with a column for each minor version."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    for name in names:
        cells = [str(row.get(name, "-")) for row in rows]
        print(f"| {name} | {' | '.join(cells)} |")
        if name == names[0]:
            print("|" + "---|" * (len(rows) + 1))


if __name__ == "__main__":
    sys.exit(main())
