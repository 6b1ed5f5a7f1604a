"""CMake and Bazel find sources by pattern; what that leaves open is checked here."""

from __future__ import annotations

import re
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


def test_both_find_every_test_program() -> None:
    tests = ROOT / "tests/cc"
    assert "/*_test.cc)" in (tests / "CMakeLists.txt").read_text("utf-8")
    assert 'glob(["**/*_test.cc"])' in (tests / "BUILD").read_text("utf-8")
    assert list(tests.rglob("BUILD")) == [tests / "BUILD"], "a glob of Bazel ends at a package"
    program = re.compile(r"^(int main|TEST)\(", re.M)
    found = [p for p in tests.rglob("*.cc") if program.search(p.read_text())]
    # test_main.cc is the main that the programs share.
    assert [p.name for p in found if not p.name.endswith("_test.cc")] == ["test_main.cc"]


def test_dependencies_are_read() -> None:
    text = 'deps = ["//ops/runtime/base", "//ops/runtime/process:headers", ":reduce_base"]'
    assert layers_in(text) == {"base", "process"}
