"""CMake and Bazel find sources by pattern; what that leaves open is checked here."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest
from source_rules import CC_ARROWS, layer_of

ROOT = Path(__file__).resolve().parents[3]


def folders_with_code(top: str) -> list[str]:
    files = [*(ROOT / top).rglob("*.cc"), *(ROOT / top).rglob("*.h")]
    return sorted({path.parent.relative_to(ROOT).as_posix() for path in files})


def layers_in(build: str) -> set[str | None]:
    """The layers that a BUILD file depends on."""
    return {layer_of(f"{folder}/x.h") for folder in re.findall(r'"//(ops/[\w/]+):?\w*"', build)}


@pytest.mark.parametrize("folder", folders_with_code("ops"))
def test_bazel_has_the_arrows_of_the_table(folder: str) -> None:
    build = ROOT / folder / "BUILD"
    assert build.exists(), "Bazel would not see this folder"
    found = layers_in(build.read_text("utf-8"))
    if "runtime_library(" in build.read_text("utf-8"):
        assert found == CC_ARROWS[layer_of(f"{folder}/x.h") or ""]
    else:  # what links libtfring_runtime.so, of the layer "runtime", sees all headers below process
        assert found <= {*CC_ARROWS[layer_of(f"{folder}/x.h") or ""], "runtime"}


def test_cmake_builds_every_library() -> None:
    added = set(re.findall(r"add_subdirectory\((ops/\w+)\)", (ROOT / "CMakeLists.txt").read_text()))
    assert added == {"/".join(folder.split("/")[:2]) for folder in folders_with_code("ops")}


def programs_in(build: str) -> list[str]:
    """The patterns of folders in the table PROGRAMS of tests/cc/BUILD."""
    table = re.search(r"^PROGRAMS = (\{.*?^\})", build, re.M | re.S)
    assert table
    programs: dict[str, list[str]] = ast.literal_eval(table.group(1))
    return [f"{pattern}/*_test.cc" for patterns in programs.values() for pattern in patterns]


def test_both_find_every_test_program() -> None:
    tests = ROOT / "tests/cc"
    cmake = (tests / "CMakeLists.txt").read_text("utf-8")
    # CMake itself fails where a file that it has found is in no program.
    assert re.search(r"GLOB_RECURSE remaining .* \*_test\.cc\)", cmake)
    assert "no program has these tests" in cmake
    assert list(tests.rglob("BUILD")) == [tests / "BUILD"], "a glob of Bazel ends at a package"
    patterns = programs_in((tests / "BUILD").read_text("utf-8"))
    found = [path for pattern in patterns for path in tests.glob(pattern)]
    in_programs = sorted(path for path in found if "_fuzz_" not in path.name)
    everything = sorted(path for path in tests.rglob("*_test.cc") if "_fuzz_" not in path.name)
    assert in_programs == everything, "Bazel has a test file in no program, or in two"
    program = re.compile(r"^(int main|TEST)\(", re.M)
    mains = [path for path in tests.rglob("*.cc") if program.search(path.read_text())]
    # test_main.cc is the main that the programs share.
    assert [p.name for p in mains if not p.name.endswith("_test.cc")] == ["test_main.cc"]


def test_dependencies_are_read() -> None:
    text = 'deps = ["//ops/runtime/base", "//ops/runtime/process:headers", ":reduce_base"]'
    assert layers_in(text) == {"base", "process"}


def test_mutations_fit_the_sources(tmp_path: Path) -> None:
    """Each text that a mutation replaces occurs exactly once: `make test-slow` runs them."""
    script = str(ROOT / "tests/cc/mutations/mutations.py")
    done = subprocess.run([sys.executable, script, "write", str(tmp_path)], stderr=subprocess.PIPE)
    assert done.returncode == 0, done.stderr.decode()
