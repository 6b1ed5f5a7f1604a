"""The Dockerfile's and the conda recipe's own steps, run in plain environments."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

import tfring

ROOT = Path(__file__).resolve().parents[2]
DOCKERFILE = ROOT / "packages" / "docker" / "Dockerfile"
RECIPE = ROOT / "packages" / "conda" / "recipe.yaml"
PROJECT = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
# Packages of conda that have another name in pyproject.toml, or are no packages of Python.
OTHER_NAMES = {"tensorflow": "tensorflow-cpu"}
OF_CONDA = {"python", "pip"}
MOUNT = re.compile(r"--mount=type=bind,source=(\S+),target=(\S+)\s+")


def recipe() -> Any:
    return yaml.safe_load(RECIPE.read_text(encoding="utf-8"))


def requirements(*parts: str) -> dict[str, str]:
    """The recipe's requirements of packages of Python, with the names of pyproject.toml."""
    lines = [line for part in parts for line in recipe()["requirements"][part]]
    pairs = [line.partition(" ")[::2] for line in lines if not line.startswith("${{")]
    return {OTHER_NAMES.get(k, k): v for k, v in pairs if k not in OF_CONDA}


def test_the_recipe_has_version_and_requirements_of_the_project() -> None:
    assert recipe()["context"]["version"] == tfring.__version__
    for name, wanted in requirements("build", "host", "run").items():
        assert f'"{name}{wanted}"' in PROJECT, name


def instructions(stage: str) -> tuple[list[str], dict[str, str]]:
    """The RUN instructions of a stage of the Dockerfile, and its variables."""
    parser = pytest.importorskip("dockerfile_parse").DockerfileParser(str(DOCKERFILE))
    commands: list[str] = []
    variables: dict[str, str] = {}
    current = ""
    for part in parser.structure:
        kind, value = part["instruction"], part["value"]
        if kind == "FROM":
            current = value.split()[-1]
        elif current in ("base", stage) and kind in ("ARG", "ENV"):
            variables |= dict(pair.split("=", 1) for pair in value.split())
        elif current == stage and kind == "RUN":
            commands.append(value)
    assert len(commands) == 2, commands
    return commands, variables


class Container:
    """An environment with Python 3.11 and a shell, and nothing else in PATH."""

    def __init__(self, folder: Path, wheel: Path) -> None:
        if "-cp311-" not in wheel.name or sys.version_info[:2] != (3, 11):
            pytest.skip("the Dockerfile has Python 3.11")
        self.folder = folder
        self.wheels = folder / "wheels"
        self.wheels.mkdir()
        shutil.copy(wheel, self.wheels)
        subprocess.check_call([sys.executable, "-m", "venv", str(folder / "venv")])

    def run(self, command: str, variables: dict[str, str]) -> str:
        """Does what Docker would do for a RUN instruction; returns the output."""
        mounted = MOUNT.match(command)
        if mounted:
            assert mounted[1] == "dist/wheels"
            command = command[mounted.end() :].replace(mounted[2], str(self.wheels))
        assert "--mount" not in command
        kept = {k: v for k, v in os.environ.items() if k.startswith(("PIP_", "SSL_"))}
        path = str(self.folder / "venv" / "bin")
        env = {**kept, **variables, "PATH": path, "HOME": str(self.folder)}
        return run(["/bin/sh", "-c", command], env, self.folder)


def run(command: Sequence[str], env: dict[str, str], folder: Path, limit: int = 1800) -> str:
    done = subprocess.run(
        command, env=env, cwd=folder, capture_output=True, text=True, timeout=limit, check=False
    )
    assert done.returncode == 0, f"{command}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    return done.stdout


@pytest.fixture(name="container")
def make_container(tmp_path: Path) -> Container:
    path = os.environ.get("TFRING_TEST_WHEEL")
    if not path:
        pytest.skip("TFRING_TEST_WHEEL names no wheel: run `make wheel-test`")
    return Container(tmp_path, Path(path))


@pytest.mark.wheel
def test_the_steps_of_the_image_for_cpus(container: Container) -> None:
    (install, check), variables = instructions("cpu")
    container.run(install, variables)
    printed = container.run(check, variables)
    assert f"built for TensorFlow {variables['TENSORFLOW']}." in printed
    assert "2 ranks trained a model" in printed
    assert "The weights of the ranks are equal." in printed


@pytest.mark.wheel
def test_pip_finds_all_packages_of_the_image_for_gpus(container: Container) -> None:
    (install, check), variables = instructions("gpu")
    variables["PIP_DRY_RUN"] = "1"  # without the gigabytes themselves
    printed = container.run(install, variables)
    for name in ("tensorflow", "nvidia-nccl-cu12", "nvidia-cudnn-cu12", "ClusterShell", "tfring"):
        assert re.search(rf"Would install .*\b{name}-\d", printed), printed
    assert check == instructions("cpu")[0][1]


@pytest.mark.slow
def test_the_steps_of_the_recipe(tmp_path: Path) -> None:
    command = [sys.executable, "setup.py", "--quiet", "egg_info", f"--egg-base={tmp_path}"]
    subprocess.check_call([*command, "sdist", f"--dist-dir={tmp_path}"], cwd=ROOT)
    (archive,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(archive) as tar:
        tar.extractall(tmp_path)
    subprocess.check_call([sys.executable, "-m", "venv", str(tmp_path / "venv")])
    path = tmp_path / "venv" / "bin"
    kept = ("PIP_", "SSL_", "CCACHE_", "CMAKE_")
    env = {k: v for k, v in os.environ.items() if k.startswith(kept)}
    env |= {"PATH": f"{path}:/usr/bin:/bin", "HOME": str(tmp_path)}
    packages = [f"{k}{v}" for k, v in requirements("build", "host", "run").items()]
    run([f"{path}/python", "-m", "pip", "install", "--quiet", *packages], env, tmp_path)
    source = tmp_path / archive.name.removesuffix(".tar.gz")
    for line in recipe()["build"]["script"]:
        run(["bash", "-c", line.replace("${{ PYTHON }}", f"{path}/python")], env, source, 3600)
    env["PATH"] = str(path)
    imports, commands = recipe()["tests"]
    for module in imports["python"]["imports"]:
        run([f"{path}/python", "-c", f"import {module}"], env, tmp_path)
    run([f"{path}/python", "-m", "pip", "check"], env, tmp_path)
    printed = [run(["/bin/sh", "-c", line], env, tmp_path) for line in commands["script"]]
    assert "built for TensorFlow" in printed[0]
    assert "The weights of the ranks are equal." in printed[1]
