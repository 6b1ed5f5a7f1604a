"""Checks what changed, in at most three minutes on a built checkout: `make check`.

Checks the format and lint of all Python, the types of tfring/, and the format of changed C++; runs
clang-tidy on it, and the tests in the folders that belong to the changed files. Compiles only what
changed.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PYTHON = ("tfring", "tests", "benchmarks", "examples", "tools", "setup.py")
TIDY = ("ops/runtime/", "ops/sim/")


def changed_files(base: str) -> list[str]:
    """The files that differ from `base` or are new, deleted ones too, but none that git ignores."""
    commands = (
        ["git", "diff", "--name-only", base],
        ["git", "ls-files", "--others", "--exclude-standard"],
    )
    outputs = [subprocess.check_output(command, text=True, cwd=ROOT) for command in commands]
    return sorted({line for output in outputs for line in output.splitlines()})


# The folders of parallel tests that belong to sources outside tfring/.
OF_SOURCES = {"ops/bindings": "native", "ops/kernels": "ops", "ops/xla": "ops"}


def tests_of(kind: str, changed: Iterable[str]) -> list[str]:
    """Test files of tests/`kind` that changed, and its folders named as what changed in tfring/."""
    chosen = set()
    for name in changed:
        path = Path(name)
        if path.parts[:2] == ("tests", kind) and path.name.startswith("test_"):
            chosen.add(name)
        if path.parts[0] == "tfring" and len(path.parts) > 2:
            chosen.add(f"tests/{kind}/{path.parts[1]}")
        if folder := OF_SOURCES.get("/".join(path.parts[:2])):
            chosen.add(f"tests/{kind}/{folder}")
    return sorted(name for name in chosen if (ROOT / name).exists())


def cc_tests(changed: Iterable[str]) -> set[str]:
    """How ctest's names of the C++ tests for changed files begin; "" begins all names."""
    chosen = set()
    for name in changed:
        parts = Path(name).parts
        if parts[:2] == ("ops", "sim"):
            chosen |= {"sim_", "membership_"}
        elif parts[:2] in (("ops", "runtime"), ("tests", "cc"), ("tests", "doubles")):
            folder = Path("tests/cc", parts[2]) if len(parts) > 3 else Path("tests/cc")
            has_tests = parts[1] != "doubles" and any((ROOT / folder).glob("**/*_test.cc"))
            chosen.add(f"{folder.name}_" if has_tests and len(parts) > 3 else "")
    return chosen


def commands(changed: list[str], build: Path) -> list[tuple[str, list[str]]]:
    """What is run: its name, and the command."""
    python = sys.executable
    pytest = [python, "-m", "pytest", "-q", "-m", "not slow and not wheel"]
    cc = [name for name in changed if name.endswith((".cc", ".h")) and (ROOT / name).exists()]
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
    elif any(name.startswith("ops/") for name in changed):
        found.append(("compile", ["tools/build.sh", str(build), "tfring_libraries"]))
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
        ended_well = code == 0 or (code == 5 and "pytest" in command)  # 5: no test has these marks
        if not ended_well:
            failed.append(name)
        took = time.monotonic() - started
        print(f"== {name}: {'ok' if ended_well else 'FAILED'}, {took:.0f} s", flush=True)
    if failed:
        print(f"FAILED: {', '.join(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
