"""The Pythons of this machine that wheels can be built for."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

VERSIONS = ("3.10", "3.11", "3.12", "3.13")
_QUESTION = (
    "import ensurepip, pathlib, sys, sysconfig, venv\n"
    "header = pathlib.Path(sysconfig.get_paths()['include'], 'Python.h')\n"
    "print(f'{sys.version_info[0]}.{sys.version_info[1]}', header.exists())"
)


def find(version: str) -> str | None:
    """Returns a Python of a version that has its headers and can make environments, or None.

    Looks at the running Python, in PATH and at the versions of pyenv.
    """
    own = [sys.executable] if sys.version_info[:2] == _numbers(version) else []
    in_path = shutil.which(f"python{version}")
    root = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    of_pyenv = sorted(root.glob(f"versions/{version}.*/bin/python{version}"))
    for candidate in [*own, *([in_path] if in_path else []), *map(str, of_pyenv)]:
        done = subprocess.run(
            [candidate, "-c", _QUESTION], capture_output=True, text=True, check=False
        )
        if done.stdout.split() == [version, "True"]:
            return candidate
    return None


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))
