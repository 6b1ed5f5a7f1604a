"""CMake and Bazel build the same sources into the same targets, and no file is left out."""

from __future__ import annotations

import re
from pathlib import Path

import build_lists as lists
import pytest

ROOT = Path(__file__).resolve().parents[3]


def bazel(folder: str) -> list[tuple[str, dict[str, object]]]:
    return lists.bazel_rules((ROOT / folder / "BUILD").read_text("utf-8"))


def sources(found: set[str]) -> set[str]:
    return {name for name in found if name.endswith(".cc")}


@pytest.mark.parametrize("folder", lists.LIBRARY_FOLDERS)
def test_libraries_have_the_same_sources(folder: str) -> None:
    in_bazel = sources(set().union(*(lists.names(v, "srcs") for _, v in bazel(folder))))
    in_cmake = lists.cmake_sources(ROOT / folder)
    on_disk = {path.name for path in (ROOT / folder).glob("*.cc")}
    assert in_cmake == on_disk
    assert in_bazel == on_disk


@pytest.mark.parametrize("folder", [*lists.LIBRARY_FOLDERS, "ops/runtime/interfaces", "tests/cc"])
def test_bazel_lists_every_header(folder: str) -> None:
    listed = set().union(*(lists.names(v, "srcs", "hdrs") for _, v in bazel(folder)))
    on_disk = {path.name for path in (ROOT / folder).glob("*.h")}
    assert {name for name in listed if name.endswith(".h")} == on_disk


def test_test_programs_are_the_same() -> None:
    in_bazel = {
        str(v["name"]): sources(lists.names(v, "srcs"))
        for rule, v in bazel("tests/cc")
        if rule in ("cc_test", "cc_binary")
    }
    in_cmake = lists.cmake_tests(ROOT / "tests/cc")
    assert in_cmake, "no C++ test found"
    assert in_bazel == in_cmake
    on_disk = {path.name for path in (ROOT / "tests/cc").glob("*.cc")}
    assert set().union(*in_cmake.values()) == on_disk


def test_every_area_of_tests_is_included() -> None:
    text = (ROOT / "tests/cc/CMakeLists.txt").read_text("utf-8")
    included = set(re.findall(r"include\((\w+)\.cmake", text))
    assert included == {path.stem for path in (ROOT / "tests/cc").glob("*.cmake")}


def test_every_library_folder_is_in_both_builds() -> None:
    text = (ROOT / "CMakeLists.txt").read_text("utf-8")
    added = set(re.findall(r"add_subdirectory\((ops/[\w/]+)\)", text))
    assert added == set(lists.LIBRARY_FOLDERS)
    with_code = {str(path.parent.relative_to(ROOT)) for path in (ROOT / "ops").rglob("*.cc")}
    assert with_code <= set(lists.LIBRARY_FOLDERS)


def test_bazel_arrows_are_those_of_the_house() -> None:
    """A Bazel library depends on no room that its sources may not include."""
    from source_rules import CC_ARROWS, room_of

    for folder in lists.LIBRARY_FOLDERS:
        room = room_of(f"{folder}/x.cc")
        assert room is not None
        for _, values in bazel(folder):
            for target in lists.names(values, "deps"):
                other = room_of(target.removeprefix("//").split(":")[0] + "/x.cc")
                if target.startswith("//ops/runtime/"):
                    assert other == room or other in CC_ARROWS[room], (folder, target)


def test_the_readers_read() -> None:
    text = "# a.cc\nfunction(f)\n b.cc\nendfunction()\nadd_library(x ${CMAKE_SOURCE_DIR}/c.cc d.cc)"
    assert set(lists.SOURCE.findall(lists.cmake_code(text))) == {"c.cc", "d.cc"}
    rule, values = lists.bazel_rules('load("x", "y")\ncc_test(name = "t", srcs = ["a.cc"])')[1]
    assert (rule, lists.names(values, "srcs")) == ("cc_test", {"a.cc"})
