"""The names by which gradients are known in records are those that are given to them."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from tfring.observe.recorder import gradients

TFRING = Path(gradients.__file__).parents[2]
FOLDERS = ("training", "keras", "keras2")


def trees() -> list[ast.Module]:
    files = [path for folder in FOLDERS for path in (TFRING / folder).rglob("*.py")]
    return [ast.parse(path.read_text(encoding="utf-8")) for path in files]


def constant(node: ast.AST) -> str:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def test_what_names_of_reductions_begin_with() -> None:
    """With "tfring." and what it is, then something that is found out while the program runs."""
    begins = {
        constant(text.values[0])
        for tree in trees()
        for text in ast.walk(tree)
        if isinstance(text, ast.JoinedStr)
    }
    # Messages begin with the name of a module, too; what is found out then follows words.
    names = [re.fullmatch(r"tfring\.(\w+)\.", text) for text in begins]
    found = {name[1] for name in names if name}
    # That of a hook is an attribute of its class.
    found |= {
        constant(node.value).removeprefix("tfring.")
        for tree in trees()
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "prefix"
    } - {""}
    # The tape's is a constant.
    source = (TFRING / "training/double_reduction.py").read_text(encoding="utf-8")
    assert 'TAPE_PREFIX = "tfring.tape."' in source
    assert found | {"tape"} == set(gradients.GRADIENTS)


def test_what_is_reduced_besides_gradients() -> None:
    """Whatever is reduced by another reducer than that of the options, with another name."""
    found = []
    for tree in trees():
        for call in ast.walk(tree):
            if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute)):
                continue
            names = [each.value for each in call.keywords if each.arg == "name"]
            if call.func.attr == "reduce" and names and isinstance(names[0], ast.JoinedStr):
                found.append(constant(names[0].values[-1]))
    assert set(found) == set(gradients.NO_GRADIENTS)
    exact = sum(
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "exact"
        for tree in trees()
        for node in ast.walk(tree)
    )
    assert exact == len(found)


def test_buckets_and_eager_names() -> None:
    reducer = (TFRING / "training/bucket_reduction.py").read_text(encoding="utf-8")
    assert 'name = f"{self._name}.{bucket.index}"' in reducer
    tape = (TFRING / "training/gradient_tape.py").read_text(encoding="utf-8")
    assert 'names.collective_name("gradient", None' in tape
    names = (TFRING / "ops/names.py").read_text(encoding="utf-8")
    assert f"\nEAGER_NAMES = {gradients.EAGER_NAMES}\n" in names
    assert 'return f"eager.{group}{kind}.{count}{suffix}"' in names
