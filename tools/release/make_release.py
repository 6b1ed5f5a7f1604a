"""Builds all that a release publishes into dist/release: `make release`.

    *.whl           a wheel for each Python, for all versions of TensorFlow
    tfring-X.tar.gz the sources
    sbom.spdx.json  each file of the wheels, with its hash and where it comes from
    NOTES.md        this version's part of CHANGELOG.md
    SHA256SUMS      of all of these

It builds the last commit, not the files of the checkout, with the tools and versions of TensorFlow
that this folder names with their hashes. `--twice` builds it in two folders and fails if a byte
differs. Then tools/wheels/check_wheels.py installs the wheels without a compiler and tests them.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import os
import re
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from collections.abc import Sequence
from pathlib import Path

import sbom

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
BUILD = ROOT / "build-release"
OUTPUT = ROOT / "dist" / "release"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minors", default="", help="versions of TensorFlow (default: all)")
    parser.add_argument("--pythons", default="", help="versions of Python (default: all)")
    parser.add_argument("--jobs", default="2")
    parser.add_argument("--twice", action="store_true", help="build twice and compare")
    args = parser.parse_args()
    commit, epoch = git("log", "-1", "--format=%H %ct").split()
    if git("status", "--porcelain", "--untracked-files=no"):
        print("There are changes that are not committed: the release is without them.")
    os.umask(0o022)  # the modes of files are in the wheels
    version = read_version()
    notes = read_notes(version)
    python = make_environment()
    built = []
    for name in ("first", "second")[: 1 + args.twice]:
        source = exported(commit, BUILD / name)
        made = [*build_wheels(source, python, epoch, args), build_sdist(source, python, epoch)]
        built.append(made)
    if args.twice and not equal(*built):
        return 1
    if names_the_folder(built[0]):
        return 1
    shutil.rmtree(OUTPUT, ignore_errors=True)
    OUTPUT.mkdir(parents=True)
    for file in built[0]:
        shutil.copy(file, OUTPUT)
    wheels = sorted(OUTPUT.glob("*.whl"))
    about = version, commit, int(epoch), read_compiler()
    (OUTPUT / "sbom.spdx.json").write_text(sbom.text(wheels, BUILD / "first", *about))
    (OUTPUT / "NOTES.md").write_text(notes, encoding="utf-8")
    sums = [f"{sha256(file)}  {file.name}\n" for file in sorted(OUTPUT.iterdir())]
    (OUTPUT / "SHA256SUMS").write_text("".join(sums), encoding="utf-8")
    print("".join(sums), end="")
    return 0


def git(*arguments: str) -> str:
    return subprocess.check_output(["git", "-C", str(ROOT), *arguments], text=True).strip()


def read_version() -> str:
    text = git("show", "HEAD:tfring/version.py")
    found = re.search(r'__version__ = "([^"]+)"', text)
    return found[1] if found else sys.exit("tfring/version.py has no __version__")


def read_notes(version: str) -> str:
    """Returns the section of CHANGELOG.md about a version, without its heading."""
    text = git("show", "HEAD:CHANGELOG.md") + "\n"
    heading = rf"^## (?:Unreleased \()?{re.escape(version)}\b.*\n"
    found = re.search(heading + r"((?:(?!^## ).*\n)*)", text, re.M)
    if found is None or not found[1].strip():
        sys.exit(f"CHANGELOG.md has no section about version {version}")
    return found[1].strip() + "\n"


def read_compiler() -> str:
    """Returns the first line that the C++ compiler says of itself."""
    return subprocess.check_output(["c++", "--version"], text=True).splitlines()[0]


def make_environment() -> str:
    """Makes an environment with the pinned tools; returns its Python."""
    folder = BUILD / "venv"
    python = str(folder / "bin" / "python")
    if not folder.exists():
        venv.create(folder, with_pip=True)
    install = [python, "-m", "pip", "install", "--quiet", "--require-hashes"]
    subprocess.check_call([*install, "-r", str(HERE / "tools.txt")])
    own = ["--no-deps", "--ignore-installed", f"--prefix={folder / 'mpich'}"]
    subprocess.check_call([*install, *own, "-r", str(HERE / "mpich.txt")])
    return python


def exported(commit: str, folder: Path) -> Path:
    """Writes the files of a commit into an empty folder; returns the folder."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    archive = subprocess.check_output(["git", "-C", str(ROOT), "archive", commit])
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        tar.extractall(folder)
    # Downloads of TensorFlow are kept for the next build: 0.3 GB for each version.
    kept = BUILD / "tensorflow"
    kept.mkdir(exist_ok=True)
    (folder / "build-wheels").mkdir()
    (folder / "build-wheels" / "tensorflow").symlink_to(kept)
    return folder


def environment(python: str, epoch: str) -> dict[str, str]:
    """Returns the variables of a build: none of the user's that could change what it writes.

    So no compiler options, and no ccache, with which the second build would be a copy of the first.
    """
    kept = ("HOME", "TMPDIR", "PYENV_ROOT")
    env = {name: os.environ[name] for name in kept if name in os.environ}
    for name, value in os.environ.items():
        if name.startswith(("PIP_", "SSL_")) or name.lower().endswith("_proxy"):
            env[name] = value
    path = f"{Path(python).parent}{os.pathsep}{os.environ['PATH']}"
    fixed = {"LC_ALL": "C.UTF-8", "TZ": "UTC", "PYTHONHASHSEED": "0", "CCACHE_DISABLE": "1"}
    return {**env, **fixed, "PATH": path, "SOURCE_DATE_EPOCH": epoch}


def build_wheels(source: Path, python: str, epoch: str, args: argparse.Namespace) -> list[Path]:
    """Builds the wheels from exported sources."""
    command = [python, str(source / "tools" / "wheels" / "make_wheels.py"), "--pinned"]
    command += [f"--minors={args.minors}", f"--pythons={args.pythons}", f"--jobs={args.jobs}"]
    subprocess.check_call(command, env=environment(python, epoch))
    return sorted((source / "dist" / "wheels").glob("*.whl"))


def build_sdist(source: Path, python: str, epoch: str) -> Path:
    """Builds the archive of the sources, with the same bytes each time."""
    command = [python, "setup.py", "--quiet", "sdist", "--dist-dir=dist/sdist"]
    subprocess.check_call(command, cwd=source, env=environment(python, epoch))
    (made,) = (source / "dist" / "sdist").glob("*.tar.gz")
    plain = io.BytesIO()
    with tarfile.open(made) as old, tarfile.open(fileobj=plain, mode="w") as new:
        for member in sorted(old.getmembers(), key=lambda member: member.name):
            member.mtime, member.uid, member.gid = int(epoch), 0, 0
            member.uname = member.gname = ""
            member.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
            member.pax_headers = {}
            new.addfile(member, old.extractfile(member) if member.isfile() else None)
    made.write_bytes(gzip.compress(plain.getvalue(), mtime=int(epoch)))
    return made


def equal(first: Sequence[Path], second: Sequence[Path]) -> bool:
    """Prints whether two builds have the same files with the same bytes."""
    names = [[file.name for file in files] for files in (first, second)]
    if names[0] != names[1]:
        print(f"FAILED: the builds made different files: {names[0]} and {names[1]}")
        return False
    same = True
    for one, other in zip(first, second, strict=True):
        sums = sha256(one), sha256(other)
        verdict = "equal" if sums[0] == sums[1] else "FAILED: DIFFERENT"
        same = same and verdict == "equal"
        print(f"{verdict}: {one.name}: {sums[0]}, {sums[1]}")
    return same


def names_the_folder(wheels: Sequence[Path]) -> bool:
    """Prints which files of wheels have the name of the build's folder in them.

    They would be different if they were built in another folder, which two builds here do not show.
    """
    found = []
    for wheel in wheels:
        if wheel.suffix == ".whl":
            with zipfile.ZipFile(wheel) as archive:
                names = archive.namelist()
                found += [name for name in names if str(BUILD).encode() in archive.read(name)]
    for name in found:
        print(f"FAILED: {name} has the name of a folder of this machine in it: {BUILD}")
    return bool(found)


def sha256(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


if __name__ == "__main__":
    sys.exit(main())
