"""The stubs of the binding, which mypy reads, say what the compiled module has."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import tfring
from tfring.runtime._native import core

FOLDER = Path(tfring.__file__).parent / "runtime"
# A type that only the stub has, and one whose instances alone have what the stub says.
APART = {"BuildInfo", "CoreError"}
NO_CONSTRUCTOR = ["type(self)"]  # as pybind11 documents it
Names = dict[str, Any]


def parameters(arguments: ast.arguments) -> list[str]:
    """Returns the names, "*" before those that go by keyword, "=" behind those with a default."""
    plain = [*arguments.posonlyargs, *arguments.args]
    defaults = [False] * (len(plain) - len(arguments.defaults)) + [True] * len(arguments.defaults)
    said = [a.arg + "=" * has for a, has in zip(plain, defaults, strict=True)]
    if arguments.kwonlyargs:
        said.append("*")
    by_keyword = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    return said + [a.arg + "=" * (default is not None) for a, default in by_keyword]


def stubbed(body: list[ast.stmt]) -> Names:
    """Returns what a stub says: of a function its parameters, of a class what it has, else None."""
    found: Names = {}
    for node in body:
        if isinstance(node, ast.ClassDef) and node.name not in APART:
            found[node.name] = stubbed(node.body)
        elif isinstance(node, ast.FunctionDef):
            is_property = any(ast.unparse(d) == "property" for d in node.decorator_list)
            found[node.name] = None if is_property else parameters(node.args)
        elif isinstance(node, ast.AnnAssign):
            found[ast.unparse(node.target)] = None
        elif isinstance(node, ast.Assign):
            found[ast.unparse(node.targets[0])] = None
    return {name: said for name, said in found.items() if public(name)}


def public(name: str) -> bool:
    return name == "__init__" or not name.startswith("_")


def documented(function: Any) -> list[str]:
    """Returns the parameters of a function of pybind11, which begin its documentation."""
    signature = function.__doc__.splitlines()[0].partition("(")[2].rpartition(")")[0]
    said = []
    for part in re.sub(r"\[[^]]*\]|<[^>]*>", "", signature).split(", "):
        name, _, default = part.partition("=")
        said.append(name.partition(":")[0].strip() + "=" * bool(default))
    return [name for name in said if name]


def compiled(owner: Any) -> Names:
    """Returns the same of the compiled module or one of its classes."""
    found: Names = {}
    for name, member in vars(owner).items():
        if not public(name) or name in APART or isinstance(member, ModuleType):
            continue
        if isinstance(member, type):
            found[name] = compiled(member)
        else:
            found[name] = documented(member) if callable(member) else None
    if found.get("__init__") == NO_CONSTRUCTOR:
        del found["__init__"]
    # Of an enum its values count.
    return dict.fromkeys(owner.__members__) if "__members__" in vars(owner) else found


@pytest.mark.parametrize(
    ("stub", "module"), [("_core.pyi", core), ("_core_membership.pyi", core.membership)]
)
def test_a_stub_says_what_its_module_has(stub: str, module: ModuleType) -> None:
    said = stubbed(ast.parse((FOLDER / stub).read_text(encoding="utf-8")).body)
    assert said == compiled(module)
