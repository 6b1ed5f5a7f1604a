"""Environments of clients: their packages, a wheel of this checkout, TensorFlow from .venv."""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LIMIT_SECONDS = 900  # for one command


class CheckError(Exception):
    """A command failed, or its output was wrong."""


class Environment:
    """A virtual environment, and a folder in which its programs run."""

    def __init__(self, folder: Path, name: str) -> None:
        self.work = folder / name / "work"
        self._venv = folder / name / "venv"
        self._wheels = folder / "wheels"

    def prepare(self) -> None:
        """Makes the environment with tfring unless it exists; empties the folder for programs."""
        shutil.rmtree(self.work, ignore_errors=True)
        self.work.mkdir(parents=True)
        if not (self._venv / "bin" / "python").exists():
            self.finish([sys.executable, "-m", "venv", str(self._venv)])
            self._share()
        self.pip("--force-reinstall", "--no-deps", *map(str, self._wheels.glob("*.whl")))

    def _share(self) -> None:
        """Adds the packages of this Python, which has TensorFlow, behind the environment's own."""
        made, shared = (
            Path(sysconfig.get_path("purelib", vars=base))
            for base in ({"base": str(self._venv)}, None)
        )
        (made / "shared.pth").write_text(f"{shared}\n")
        if not version("tensorflow") and (number := version("tensorflow-cpu")):
            # Other packages ask for `tensorflow`, which pip would install over tensorflow-cpu.
            named = made / f"tensorflow-{number}.dist-info"
            named.mkdir()
            lines = ("Metadata-Version: 2.1", "Name: tensorflow", f"Version: {number}", "")
            (named / "METADATA").write_text("\n".join(lines))

    def install(self, packages: Sequence[str]) -> str:
        """Installs packages; returns the reason if that is not possible, else "".

        Those that end with "!" are installed here also if .venv has them, and without what they
        require.
        """
        try:
            for package in packages:
                alone = ["--ignore-installed", "--no-deps"] if package.endswith("!") else []
                self.pip(*alone, package.rstrip("!"))
        except CheckError as error:
            lines = str(error).strip().splitlines()
            return next((line for line in lines if line.startswith("ERROR")), lines[-1])
        return ""

    def pip(self, *words: str) -> None:
        pip = ["-m", "pip", "install", "--quiet", "--no-compile", "--disable-pip-version-check"]
        self.python(*pip, *words)

    def python(self, *words: object) -> str:
        return self.finish([str(self._venv / "bin" / "python"), *map(str, words)])

    def finish(self, command: Sequence[str], **more: str) -> str:
        """Runs a command in the work folder; returns its output.

        Raises:
            CheckError: it failed; the message has the end of its output.
        """
        path = f"{self._venv / 'bin'}{os.pathsep}{os.environ['PATH']}"
        env = {
            **os.environ,
            "PATH": path,
            "TF_CPP_MIN_LOG_LEVEL": "2",
            "OMP_NUM_THREADS": "1",
            "TF_INTRA_OP_PARALLELISM_THREADS": "1",
            "TF_INTER_OP_PARALLELISM_THREADS": "2",
            **more,
        }
        env.pop("PYTHONPATH", None)
        try:
            done = subprocess.run(
                command,
                cwd=self.work,
                env=env,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=LIMIT_SECONDS,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise CheckError(f"{command}: {error}") from None
        if done.returncode != 0:
            raise CheckError(f"{command}: exit code {done.returncode}\n{done.stdout[-4000:]}")
        return done.stdout


def version(distribution: str) -> str:
    """Returns the version of a distribution of this Python; "" if it is not installed."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return ""


def make_wheels(folder: Path) -> None:
    """Makes wheels of tfring, with the libraries that `make build` has compiled, and of its names.

    Raises:
        CheckError: pip failed.
    """
    wheels, names = folder / "wheels", folder / "tfring-horovod"
    for old in (wheels, names):
        shutil.rmtree(old, ignore_errors=True)
    shutil.copytree(ROOT / "packages" / "tfring-horovod", names)
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-build-isolation", "--no-deps"]
    env = {**os.environ, "TFRING_PREBUILT": str(ROOT / "tfring" / "_lib")}
    command = [*build, "--wheel-dir", str(wheels), str(ROOT), str(names)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise CheckError(f"{command}: exit code {done.returncode}\n{done.stderr[-4000:]}")
