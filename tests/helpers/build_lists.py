"""Reads the source lists out of CMake and Bazel files, by text alone."""

from __future__ import annotations

import ast
import re
from pathlib import Path

# The libraries, by folder; tests/cc holds programs and is read apart.
LIBRARY_FOLDERS = (
    "ops/runtime/base",
    "ops/runtime/core",
    "ops/runtime/transport",
    "ops/runtime/backend",
    "ops/runtime/backend/local",
    "ops/runtime/backend/cpu",
    "ops/runtime/engine",
    "ops/sim",
    "ops/kernels",
    "ops/xla",
    "ops/bindings",
)
SOURCE = re.compile(r"(?:\$\{[A-Z_]+\}/)?([\w/]+\.cc)\b")


def cmake_code(text: str) -> str:
    """CMake text without comments and function definitions."""
    text = re.sub(r"#[^\n]*", "", text)
    return re.sub(r"\bfunction\(.*?\bendfunction\(\)", "", text, flags=re.DOTALL)


def cmake_sources(folder: Path) -> set[str]:
    """The .cc files that a folder's CMakeLists.txt names."""
    return set(SOURCE.findall(cmake_code((folder / "CMakeLists.txt").read_text("utf-8"))))


def cmake_tests(folder: Path) -> dict[str, set[str]]:
    """Sources by test program of tests/cc."""
    tests: dict[str, set[str]] = {}
    for path in sorted(folder.glob("*.cmake")):
        for call in re.findall(r"add_cc_\w+\(([^)]*)\)", cmake_code(path.read_text("utf-8"))):
            tests[call.split()[0]] = set(SOURCE.findall(call))
    return tests


def bazel_rules(text: str) -> list[tuple[str, dict[str, object]]]:
    """(rule, attributes) of a BUILD file; only literal attributes are read."""
    rules = []
    for node in ast.parse(text).body:
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            call = node.value
            values = {
                word.arg: ast.literal_eval(word.value)
                for word in call.keywords
                if word.arg and isinstance(word.value, (ast.Constant, ast.List))
            }
            rules.append((getattr(call.func, "id", ""), values))
    return rules


def names(values: dict[str, object], *attributes: str) -> set[str]:
    """The strings in some list attributes of a rule."""
    found: set[str] = set()
    for attribute in attributes:
        value = values.get(attribute, [])
        assert isinstance(value, list), f"{attribute} of {values.get('name')} is not a plain list"
        found.update(value)
    return found
