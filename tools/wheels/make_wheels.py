"""Builds one wheel for each Python, with an op library for each minor version of TensorFlow.

All files are in build-wheels/ and are rebuilt only if their sources changed:

    tensorflow/2.18/    headers and libraries of that version, from its own package
    runtime/, ops-2.18/ CMake builds; lib/ has the libraries as in the wheel
    python-3.11/        the binding for that Python, and its wheel before auditwheel

The wheels go to dist/wheels/. `make wheels MINORS="2.18 2.21" PYTHONS=3.11` builds less. Two
builds of one commit with the same tools are equal, byte for byte. `--pinned` takes the tools and
the versions of TensorFlow that tools/release names with their hashes.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pythons
import tensorflows

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "build-wheels"
LIBRARIES = FOLDER / "lib"
RUNTIME = LIBRARIES / "libtfring_runtime.so"
WHEELS = ROOT / "dist" / "wheels"
BUDGET = 6_000_000  # bytes of a wheel
PLATFORM = "manylinux_2_34"  # when built on Debian 12; a newer system needs a newer platform
# Without debug symbols, and without the name of this folder in error messages.
STRIPPED = (
    "-DCMAKE_SHARED_LINKER_FLAGS=-s",
    "-DCMAKE_MODULE_LINKER_FLAGS=-s",
    f"-DCMAKE_CXX_FLAGS=-ffile-prefix-map={ROOT}=.",
)
OPTIONS = ("-DCMAKE_BUILD_TYPE=Release", *STRIPPED)
# So that the wheels also run with GCC 11's libstdc++ (tools/wheels/older_wait.cc).
OLDER = "-DTFRING_OLDER_LIBSTDCXX=ON"
BUILD_TOOLS = ("pip>=23.1", "setuptools>=77", "wheel", "pybind11>=2.13")
PINNED_TOOLS = ("--require-hashes", "-r", str(ROOT / "tools" / "release" / "tools.txt"))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minors", default=" ".join(tensorflows.MINORS))
    parser.add_argument("--pythons", default=" ".join(pythons.VERSIONS))
    parser.add_argument("--jobs", default="2")
    parser.add_argument("--pinned", action="store_true", help="the tools of tools/release")
    args = parser.parse_args()
    tools = PINNED_TOOLS if args.pinned else BUILD_TOOLS
    os.environ.setdefault("SOURCE_DATE_EPOCH", commit_time())  # the time of all files in a wheel
    minors = (args.minors or " ".join(tensorflows.MINORS)).split()
    wanted = (args.pythons or " ".join(pythons.VERSIONS)).split()
    FOLDER.mkdir(exist_ok=True)
    build_runtime(args.jobs)
    for minor in minors:
        build_ops(minor, args.jobs, args.pinned)
    for folder in LIBRARIES.glob("tensorflow-*"):
        if folder.name.removeprefix("tensorflow-") not in minors:
            shutil.rmtree(folder)
    shutil.rmtree(WHEELS, ignore_errors=True)
    made = [w for v in wanted if (w := build_wheel(v, args.jobs, tools)) is not None]
    for wheel in made:
        print(f"{wheel.stat().st_size:>9} bytes: {wheel}")
    return check(made)


def commit_time() -> str:
    """Returns the time of the last commit, in seconds since 1970; that of 2026 without git."""
    done = subprocess.run(
        ["git", "-C", str(ROOT), "log", "-1", "--format=%ct"],
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.strip() or "1767225600"


def build_runtime(jobs: str) -> None:
    """Builds the runtime, and the plug-ins for the MPIs of the Python that runs this."""
    parts = ["-DTFRING_BUILD_OPS=OFF", "-DTFRING_BUILD_BINDINGS=OFF", "-DTFRING_PACK_BINARIES=ON"]
    cmake("runtime", [*parts, f"-DTFRING_OUTPUT_DIR={LIBRARIES}"], jobs)


def build_ops(minor: str, jobs: str, pinned: bool) -> None:
    """Builds the op libraries for a minor version of TensorFlow."""
    folder = FOLDER / "tensorflow"
    tensorflow = tensorflows.unpacked(minor, folder, pinned)
    headers = tensorflow
    if minor in ("2.18", "2.19"):
        headers = tensorflows.unpacked(tensorflows.XLA_HEADERS_OF, folder, pinned)
    # TensorFlow's headers put their names into error messages, too. The last map that fits counts.
    names = {ROOT: ".", headers.resolve(): "xla", tensorflow.resolve(): "tensorflow"}
    maps = [f"-ffile-prefix-map={path}={name}" for path, name in names.items()]
    options = [
        f"-DCMAKE_CXX_FLAGS={' '.join(maps)}",
        "-DTFRING_BUILD_BINDINGS=OFF",
        "-DTFRING_OPENMPI_INCLUDE=OFF",
        "-DTFRING_MPICH_INCLUDE=OFF",
        f"-DTFRING_RUNTIME={RUNTIME}",
        f"-DTFRING_TENSORFLOW={tensorflow}",
        f"-DTFRING_OPS_FOLDER=tensorflow-{minor}",
        f"-DTFRING_OUTPUT_DIR={LIBRARIES}",
    ]
    if headers != tensorflow:
        options.append(f"-DTFRING_XLA_HEADERS={headers / 'tensorflow' / 'include'}")
    cmake(f"ops-{minor}", options, jobs)


def cmake(name: str, options: Sequence[str], jobs: str) -> None:
    """Configures and builds in a separate folder."""
    build = FOLDER / name
    print(f"== {name}", flush=True)
    own = [*OPTIONS, OLDER, f"-DPython_EXECUTABLE={sys.executable}"]
    log = FOLDER / f"{name}.log"
    command = ["cmake", "-S", str(ROOT), "-B", str(build), "-G", "Ninja", *own, *options]
    logged(command, log)
    logged(["cmake", "--build", str(build), "-j", jobs, "--target", "tfring_libraries"], log)


def build_wheel(version: str, jobs: str, requirements: Sequence[str]) -> Path | None:
    """Builds the wheel for a Python; None if there is none of that version."""
    python = pythons.find(version)
    if python is None:
        print(f"== no wheel for Python {version}: not found, or without its headers", flush=True)
        return None
    print(f"== wheel for Python {version} ({python})", flush=True)
    own = FOLDER / f"python-{version}"
    tools = own / "venv" / "bin" / "python"
    log = FOLDER / f"python-{version}.log"
    if not tools.exists():
        logged([python, "-m", "venv", str(own / "venv")], log)
        logged([str(tools), "-m", "pip", "install", "--quiet", *requirements], log)
    shutil.rmtree(own / "unrepaired", ignore_errors=True)
    folders = own / "folders.cfg"  # setuptools would use build/ of the checkout for all Pythons
    folders.write_text(f"[build]\nbuild_base={own}/build\n[egg_info]\negg_base={own}\n")
    environment = {
        **os.environ,
        "DIST_EXTRA_CONFIG": str(folders),
        "TFRING_PREBUILT": str(LIBRARIES),
        "CMAKE_ARGS": " ".join([*STRIPPED, OLDER]),
        "CMAKE_BUILD_PARALLEL_LEVEL": jobs,
    }
    command = [str(tools), "-m", "pip", "wheel", "--no-build-isolation", "--no-deps"]
    logged([*command, f"--wheel-dir={own}/unrepaired", str(ROOT)], log, environment)
    (wheel,) = (own / "unrepaired").glob("*.whl")
    return tagged(wheel, log)


def tagged(wheel: Path, log: Path) -> Path:
    """Lets auditwheel find the platforms of a wheel; adds no library to it.

    TensorFlow brings the excluded libraries; tfring checks them at import.
    """
    before = set(WHEELS.glob("*.whl"))
    repair = [sys.executable, "-m", "auditwheel", "repair", "--exclude", "libtensorflow_*"]
    logged([*repair, "--zip-compression-level=9", f"--wheel-dir={WHEELS}", str(wheel)], log)
    (made,) = set(WHEELS.glob("*.whl")) - before
    return made


def check(wheels: Sequence[Path]) -> int:
    """Prints what is wrong with the wheels; returns the exit status."""
    large = [wheel for wheel in wheels if wheel.stat().st_size > BUDGET]
    for wheel in large:
        print(f"{wheel.name} has {wheel.stat().st_size} bytes, and a wheel may have {BUDGET}")
    for wheel in wheels:
        if PLATFORM not in wheel.name:
            print(f"{wheel.name} is not for {PLATFORM}, which docs/installation.md promises")
    if not wheels:
        print("no wheel: none of these Pythons is here")
    return 1 if large or not wheels else 0


def logged(command: Sequence[str], log: Path, environment: dict[str, str] | None = None) -> None:
    """Runs a command; shows the end of its output if it fails."""
    done = subprocess.run(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    with log.open("a", encoding="utf-8") as file:
        file.write(f"$ {' '.join(command)}\n{done.stdout}")
    if done.returncode != 0:
        sys.exit(f"{done.stdout[-6000:]}\n{' '.join(command)} failed; all of it is in {log}")


if __name__ == "__main__":
    sys.exit(main())
