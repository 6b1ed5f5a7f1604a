"""The wheel works in a clean virtual environment, where there is no compiler.

`make wheel-test` makes the wheel and runs this; TensorFlow is downloaded for it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.wheel

ROOT = Path(__file__).resolve().parents[2]
SUFFIXES = {".py", ".pyi", ".typed", ".html"}  # of the files of tfring/ that are no libraries
LIBRARIES = {"libtfring_runtime.so", "libtfring_cuda.so", "_tfring_ops.so", "_tfring_xla.so"}
SCRIPT = """
import tensorflow as tf
import tfring as hvd
hvd.init()
expected = sum(range(1, hvd.size() + 1))
eager = hvd.allreduce(tf.constant([1.0 + hvd.rank()]), op=hvd.Sum, name="x")
graph = tf.function(lambda x: hvd.allreduce(x, op=hvd.Sum, name="y"))
assert eager.numpy().tolist() == [expected], eager
assert graph(tf.constant([1.0 + hvd.rank()])).numpy().tolist() == [expected]
compiled = tf.function(lambda x: hvd.allreduce(x, op=hvd.Sum, name="z"), jit_compile=True)
assert compiled(tf.constant([1.0 + hvd.rank()])).numpy().tolist() == [expected]
print(f"sum over {hvd.size()} is {expected}")
"""


@pytest.fixture(scope="module")
def wheel() -> Path:
    path = os.environ.get("TFRING_TEST_WHEEL")
    if not path:
        pytest.skip("TFRING_TEST_WHEEL names no wheel: run `make wheel-test`")
    return Path(path)


@pytest.fixture(scope="module")
def venv(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("clean") / "venv"
    subprocess.check_call([sys.executable, "-m", "venv", str(folder)])
    run(folder, "python", "-m", "pip", "install", "--quiet", "--no-compile", f"{wheel}[cpu]")
    yield folder


def run(venv: Path, program: str, *arguments: str) -> str:
    """Runs a program of the environment; PATH holds nothing else, so no compiler either."""
    kept = ("HOME", "TMPDIR", "LANG")
    env = {name: os.environ[name] for name in kept if name in os.environ}
    env |= {name: value for name, value in os.environ.items() if name.startswith(("PIP_", "SSL_"))}
    env |= {"PATH": str(venv / "bin"), "TF_CPP_MIN_LOG_LEVEL": "2"}
    command = [str(venv / "bin" / program), *arguments]
    done = subprocess.run(
        command, env=env, cwd=venv, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def test_the_wheel_holds_what_it_should(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    libraries = {Path(name).name for name in names if name.startswith("tfring/_lib/")}
    assert libraries >= LIBRARIES
    assert any(name.startswith("_core.") for name in libraries)
    sources = (path for path in (ROOT / "tfring").rglob("*") if path.is_file())
    expected = {str(path.relative_to(ROOT)) for path in sources if path.suffix in SUFFIXES}
    assert expected - set(names) == set()
    assert not [name for name in names if name.startswith(("tests", "ops", "benchmarks"))]
    assert "linux" in wheel.name and "none-any" not in wheel.name


def test_one_rank(venv: Path) -> None:
    assert "sum over 1 is 1" in run(venv, "python", "-c", SCRIPT)


def test_two_ranks_under_the_launcher(venv: Path) -> None:
    script = venv / "script.py"
    script.write_text(SCRIPT, encoding="utf-8")
    launch = ("tfring", "run", "--no-merge-lines", "-np", "2")
    printed = run(venv, *launch, str(venv / "bin" / "python"), str(script))
    assert printed.count("sum over 2 is 3") == 2


def test_the_demo_needs_the_wheel_only(venv: Path) -> None:
    assert "The weights of the ranks are equal." in run(venv, "python", "-m", "tfring.demo")


def test_horovodrun_of_the_distribution_that_adds_it(venv: Path, tmp_path: Path) -> None:
    source = shutil.copytree(ROOT / "packages" / "tfring-horovod", tmp_path / "source")
    run(venv, "python", "-m", "pip", "install", "--quiet", "--no-deps", str(source))
    program = (
        "import tensorflow as tf, horovod.tensorflow as hvd; hvd.init(); "
        "print('sum is', float(hvd.allreduce(tf.constant(1.0 + hvd.rank()), op=hvd.Sum)))"
    )
    launch = ("-np", "2", "--no-merge-lines", str(venv / "bin" / "python"), "-c", program)
    assert run(venv, "horovodrun", *launch).count("sum is 3.0") == 2
    assert "sum is 1.0" in run(venv, "python", "-c", program)


def test_doctor(venv: Path) -> None:
    assert "tensorflow" in run(venv, "tfring", "doctor").lower()
