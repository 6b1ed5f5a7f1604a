"""The minor versions of TensorFlow that a wheel supports, and their headers and libraries."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

MINORS = ("2.16", "2.17", "2.18", "2.19", "2.20", "2.21", "2.22")
# Its wheel has the headers of XLA's FFI, which the wheels of 2.18 and 2.19 lack: docs/adr/0002.
XLA_HEADERS_OF = "2.20"
PINNED = Path(__file__).resolve().parents[1] / "release" / "tensorflows.txt"
_LINKED = ("libtensorflow_framework.so.2", "libtensorflow_cc.so.2")


def unpacked(minor: str, folder: Path, pinned: bool = False) -> Path:
    """Returns a folder with headers and libraries of a minor version; downloads them once.

    Takes the version that the running Python has installed, if it is this one.

    Args:
        minor: such as "2.18".
        folder: where downloads are kept.
        pinned: whether to take the version and hash of tools/release/tensorflows.txt, and no other.
    """
    own = None if pinned else _installed(minor)
    if own is not None:
        return own
    wanted = folder / minor
    if not wanted.exists() or (not pinned and is_candidate(wanted)):  # it may be released by now
        part = folder / f"{minor}.part"
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        # Any Python for which all these versions have a wheel; no code of the wheel runs.
        kind = ["--only-binary=:all:", "--python-version=3.11", "--no-cache-dir"]
        subprocess.check_call([*pip, *kind, f"--dest={part}", *_wanted(minor, part, pinned)])
        (wheel,) = part.glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(part, [name for name in archive.namelist() if _is_needed(name)])
        wheel.unlink()
        shutil.rmtree(wanted, ignore_errors=True)
        part.rename(wanted)
    return wanted


def requirement(minor: str) -> str:
    """Returns the requirement for pip: a release candidate if there is no release."""
    return f"tensorflow-cpu~={minor}.0.dev0"


def _wanted(minor: str, folder: Path, pinned: bool) -> list[str]:
    """Returns what pip is asked for: a requirement, or a file with one and its hash."""
    if not pinned:
        return [requirement(minor)]
    lines = PINNED.read_text(encoding="utf-8").splitlines()
    file = folder / "requirement.txt"
    file.write_text("".join(line for line in lines if f"=={minor}." in line), encoding="utf-8")
    return ["--require-hashes", "-r", str(file)]


def is_candidate(folder: Path) -> bool:
    """Whether a folder holds the headers of a release candidate."""
    return any(folder.glob("tensorflow_cpu-*rc*.dist-info"))


def _is_needed(name: str) -> bool:
    top, _, rest = name.partition("/")
    if top.endswith(".dist-info"):
        return rest == "METADATA"
    return top == "tensorflow" and (rest.startswith("include/") or rest in _LINKED)


def _installed(minor: str) -> Path | None:
    spec = importlib.util.find_spec("tensorflow")
    if spec is None or spec.origin is None:
        return None
    site = Path(spec.origin).parents[1]
    pattern = re.compile(rf"tensorflow(_cpu)?-{re.escape(minor)}\.[\w.]+\.dist-info")
    found = [path for path in site.iterdir() if pattern.fullmatch(path.name)]
    return site if found and (site / "tensorflow" / "include").is_dir() else None
