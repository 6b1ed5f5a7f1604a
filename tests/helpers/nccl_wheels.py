"""The real libnccl.so.2 from PyPI, which can be loaded on a machine without a GPU."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import pytest

_PACKAGE = "nvidia-nccl-cu12"
_INSIDE = "nvidia/nccl/lib/libnccl.so.2"
# The oldest that TensorFlow's extra "and-cuda" takes, and the one that pip takes today.
REQUIREMENTS = {"oldest": f"{_PACKAGE}==2.27.7", "newest": f"{_PACKAGE}>=2.27.7,<3"}
_ROOT = Path(__file__).resolve().parents[2]


def _folder(which: str) -> Path:
    return Path(os.environ.get("TFRING_NCCL_DOWNLOADS", _ROOT / "build-gpu" / "nccl")) / which


def _download(requirement: str, folder: Path) -> str:
    """Keeps the library and the name of the wheel. Returns the reason if it cannot, else ""."""
    with tempfile.TemporaryDirectory() as wheels:
        command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download"]
        command += ["--quiet", "--no-deps", "--only-binary=:all:", "--dest", wheels, requirement]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=600)
        except subprocess.TimeoutExpired:
            return f"pip took more than 600 s for {requirement}"
        if done.returncode != 0:
            lines = done.stderr.strip().splitlines() or ["pip said nothing"]
            return f"pip cannot download {requirement}: {lines[-1]}"
        (wheel,) = Path(wheels).glob("*.whl")
        folder.mkdir(parents=True, exist_ok=True)
        part = folder / "part"
        with zipfile.ZipFile(wheel) as archive:
            part.write_bytes(archive.read(_INSIDE))
        (folder / "wheel").write_text(wheel.name)
        part.rename(folder / "libnccl.so.2")  # last, so that the folder is complete or missing
    return ""


def real_nccl(which: str) -> tuple[Path, int]:
    """Returns the library's path and the number that ncclGetVersion must return.

    Skips the test with the reason if the library is missing.

    Args:
        which: A key of REQUIREMENTS.
    """
    folder = _folder(which)
    if not (folder / "libnccl.so.2").exists():
        problem = _download(REQUIREMENTS[which], folder)
        if problem:
            pytest.skip(problem)
    major, minor, patch = (folder / "wheel").read_text().split("-")[1].split(".")[:3]
    return folder / "libnccl.so.2", int(major) * 10000 + int(minor) * 100 + int(patch)
