"""The distribution tfring-horovod: `horovod` and `horovodrun` in a whole environment.

An environment that has it, and takes tfring and TensorFlow from here. tests/python/test_wheel.py
installs it beside tfring's own wheel.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import launcher_tools as tools
import pytest

from tfring.version import __version__

PACKAGE = tools.ROOT / "packages" / "tfring-horovod"
PROGRAM = """
import tensorflow as tf, horovod, horovod.tensorflow as hvd
hvd.init()
total = hvd.allreduce(tf.constant(1.0 + hvd.rank()), op=hvd.Sum)
print("SUM", float(total), "of", hvd.size(), hvd.compression.Compression.none.__name__)
"""
COMMAND = ("python", "-c", PROGRAM)


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("environment")
    subprocess.check_call([sys.executable, "-m", "venv", "--without-pip", folder / "venv"])
    python = folder / "venv" / "bin" / "python"
    source = shutil.copytree(PACKAGE, folder / "source")  # a build leaves files there
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    build = ["wheel", "--no-build-isolation", "--no-deps", "--wheel-dir", folder, source]
    subprocess.check_call([*pip, *build])
    (wheel,) = folder.glob("tfring_horovod-*.whl")
    subprocess.check_call([*pip, "--python", python, "install", "--no-deps", wheel])
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    packages = folder / "venv" / "lib" / version / "site-packages"
    here = sysconfig.get_path("purelib")
    (packages / "here.pth").write_text(f"{tools.ROOT}\n{here}\n")
    yield folder / "venv"


def _finish(environment: Path, program: str, *words: str) -> subprocess.CompletedProcess[str]:
    path = f"{environment / 'bin'}:{os.environ['PATH']}"
    return tools.finish([environment / "bin" / program, *words], PATH=path)


def test_versions_are_those_of_tfring() -> None:
    text = (PACKAGE / "pyproject.toml").read_text()
    assert re.findall(r'version = "(.*?)"', text) == [__version__]
    assert re.findall(r'dependencies = \["(.*?)"\]', text) == [f"tfring=={__version__}"]


@pytest.mark.slow
def test_horovodrun_and_import_horovod(environment: Path) -> None:
    done = _finish(environment, "horovodrun", "-np", "2", "--no-merge-lines", *COMMAND)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("SUM 3.0 of 2 NoneCompressor") == 2, done.stdout
    done = _finish(environment, *COMMAND)
    assert done.returncode == 0, done.stderr
    assert "SUM 1.0 of 1 NoneCompressor" in done.stdout


@pytest.mark.slow
def test_options_of_horovodrun(environment: Path) -> None:
    hostfile = environment / "hosts"
    hostfile.write_text("localhost slots=2\n")
    say = ("python", "-c", "import horovod, os; print('RANK', os.environ['TFRING_X_RANK'])")
    for words in (["-H", "localhost:2"], ["-hostfile", str(hostfile)], ["--gloo", "-np", "2"]):
        done = _finish(environment, "horovodrun", *words, *say)
        assert done.returncode == 0, done.stderr
        assert "RANK 0" in done.stdout and "RANK 1" in done.stdout
    assert _finish(environment, "horovodrun", "--version").stdout == "0.28.1\n"
    done = _finish(environment, "horovodrun", "--mpi", "-np", "2", *say)
    assert done.returncode == 2 and "tfring run does not use MPI" in done.stderr


@pytest.mark.slow
def test_beside_horovod_itself_it_says_what_to_do(environment: Path) -> None:
    (packages,) = environment.glob("lib/python*/site-packages")
    other = packages / "horovod-0.28.1.dist-info"
    other.mkdir()
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: horovod\nVersion: 0.28.1\n")
    try:
        done = _finish(environment, "python", "-c", "import horovod")
        assert done.returncode == 1 and "pip uninstall horovod tfring-horovod" in done.stderr
        done = _finish(environment, "horovodrun", "-np", "1", "true")
        assert done.returncode == 2 and "pip uninstall horovod tfring-horovod" in done.stderr
    finally:
        shutil.rmtree(other)


def test_a_program_that_imports_horovod_loads_no_launcher() -> None:
    program = "import sys, horovod.tensorflow; assert 'tfring.launch' not in sys.modules"
    done = tools.finish([sys.executable, "-c", program], PYTHONPATH=f"{PACKAGE}:{tools.ROOT}")
    assert done.returncode == 0, done.stderr
