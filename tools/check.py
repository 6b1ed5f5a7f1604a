"""Checks the changed files, in at most three minutes on a built checkout: `make check`.

Checks the format and lint of all Python, the types of tfring/, and the format of changed C++. Runs
clang-tidy on it, and the tests in the folders of the changed files. Compiles only changed files.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PYTHON = ("tfring", "tests", "benchmarks", "examples", "packages", "tools", "setup.py")
TIDY = ("ops/runtime/", "ops/gpu/", "ops/sim/")
CXX = (".cc", ".h", ".cu")
COMPILED = ("ops/", "tools/gpu_check/", "benchmarks/executor/")


def changed_files(base: str) -> list[str]:
    """The files that differ from the merge base with `base`, deleted and new ones included."""
    commands = (
        ["git", "diff", "-z", "--name-only", "--merge-base", base],
        ["git", "ls-files", "-z", "--others", "--exclude-standard"],
    )
    try:
        outputs = [subprocess.check_output(command, text=True, cwd=ROOT) for command in commands]
    except (OSError, subprocess.CalledProcessError) as error:
        sys.exit(f"make check compares with a commit of this checkout, '{base}': {error}")
    return sorted({name for output in outputs for name in output.split("\0") if name})


# The folders of parallel tests for sources outside tfring/.
OF_SOURCES = {
    "ops/bindings": "native",
    "ops/kernels": "ops",
    "ops/mpi": "native",
    "ops/xla": "ops",
}


def _users_of(helper: str, kind: str) -> list[str]:
    """The test files of tests/`kind` that import a module of tests/helpers."""
    imported = re.compile(rf"^ *(import|from) {helper}\b", re.MULTILINE)
    files = (ROOT / "tests" / kind).rglob("test_*.py")
    return [str(file.relative_to(ROOT)) for file in files if imported.search(file.read_text())]


def tests_of(kind: str, changed: Iterable[str]) -> list[str]:
    """The tests of tests/`kind` for the changed files: test files, and folders of the same name."""
    chosen: set[str] = set()
    for name in changed:
        path = Path(name)
        if path.parts[:2] == ("tests", kind):
            chosen.add(str(path.parent) if path.name == "conftest.py" else name)
        elif path.parts[:2] == ("tests", "helpers"):
            chosen.update(_users_of(path.stem, kind))
        elif path.parts[0] == "tfring" and len(path.parts) > 2:
            chosen.add(f"tests/{kind}/{path.parts[1]}")
        elif path.parts[0] == "tfring":
            tests = ROOT / "tests" / kind
            found = [*tests.glob(f"test_{path.stem}*.py")] or [*tests.glob("test_*.py")]
            chosen.update(str(file.relative_to(ROOT)) for file in found)
        elif folder := OF_SOURCES.get("/".join(path.parts[:2])):
            chosen.add(f"tests/{kind}/{folder}")
    tests = [name for name in chosen if Path(name).name.startswith("test_") or "." not in name]
    return sorted(name for name in tests if (ROOT / name).exists())


def cc_tests(changed: Iterable[str]) -> set[str]:
    """The prefixes of ctest's names for changed files; "" is a prefix of all names."""
    chosen = set()
    for name in changed:
        parts = Path(name).parts
        if parts[:2] == ("ops", "sim"):
            chosen |= {"sim_", "membership_"}
        elif parts[:2] == ("ops", "gpu"):
            chosen.add("gpu_")
        elif parts[:2] in (("ops", "runtime"), ("tests", "cc"), ("tests", "fakes")):
            tests = ROOT / "tests/cc" / parts[2]
            own = parts[1] != "fakes" and any(tests.glob("**/*_test.cc"))
            chosen.add(f"{parts[2]}_" if own else "")
    return chosen


def commands(changed: list[str], build: Path) -> list[tuple[str, list[str]]]:
    """The commands to run, with their names."""
    python = sys.executable
    pytest = [python, "-m", "pytest", "-q", "-m", "not slow and not wheel"]
    cc = [name for name in changed if name.endswith(CXX) and (ROOT / name).exists()]
    found: list[tuple[str, list[str]]] = [
        ("ruff", ["ruff", "check", *PYTHON]),
        ("ruff format", ["ruff", "format", "--check", *PYTHON]),
        ("mypy", ["mypy"]),
    ]
    if cc:
        found.append(("clang-format", ["clang-format", "--dry-run", "-Werror", *cc]))
    if tidied := [name for name in cc if name.endswith(".cc") and name.startswith(TIDY)]:
        found.append(("clang-tidy", ["tools/tidy.sh", f"{build}-tidy", "--", *tidied]))
    if beginnings := cc_tests(changed):
        targets = ["tools/build.sh", str(build), "tfring_libraries", "tfring_tests"]
        found.append(("compile", [*targets, "--", "-DTFRING_BUILD_TESTS=ON"]))
        chosen = f"^({'|'.join(sorted(beginnings))})"
        found.append(("C++ tests", ["tools/cc_tests.sh", str(build), "-R", chosen]))
    elif any(name.startswith(COMPILED) or Path(name).name == "CMakeLists.txt" for name in changed):
        more = ["tfring_gpu_check", "tfring_executor_benchmark"]
        targets = ["tools/build.sh", str(build), "tfring_libraries", *more]
        found.append(("compile", [*targets, "--", "-DTFRING_BUILD_TESTS=ON"]))
    beside_each_other = ["-n", "3", "--dist", "loadfile", "--max-worker-restart", "0"]
    chosen_python = ["tests/python/structure", *tests_of("python", changed)]
    found.append(("tests/python", [*pytest, *beside_each_other, *chosen_python]))
    if chosen_parallel := tests_of("parallel", changed):
        run = ["tools/mpi_run.sh", "2", *pytest, "-x", "-p", "no:cacheprovider"]
        found.append(("tests/parallel", [*run, *chosen_parallel]))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", type=Path, default=ROOT / "build", help="CMake's folder")
    parser.add_argument("--base", default="", help="what changed since then; default: HEAD")
    options = parser.parse_args()
    os.chdir(ROOT)
    changed = changed_files(options.base or "HEAD")
    failed = []
    for name, command in commands(changed, options.build):
        started = time.monotonic()
        code = subprocess.call(command)
        ended_well = code == 0 or (code == 5 and "pytest" in command)  # 5: no test was selected
        if not ended_well:
            failed.append(name)
        said = "ok" if code == 0 else "no test of `make test`" if ended_well else "FAILED"
        print(f"== {name}: {said}, {time.monotonic() - started:.0f} s", flush=True)
    if failed:
        print(f"FAILED: {', '.join(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
