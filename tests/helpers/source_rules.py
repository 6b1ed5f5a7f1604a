"""What the house test reads out of source text: includes, imports, functions, interfaces.

No compiler is asked: the scanners below know just enough C++ to find blocks and what opens them.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import NamedTuple

# Which rooms a C++ room may include, besides itself.
CC_ARROWS: dict[str, set[str]] = {
    "base": set(),
    "interfaces": {"base"},
    "protocol/message": {"base"},
    "protocol/negotiation": {"base", "protocol/message"},
    "protocol/engine": {"base", "interfaces", "protocol/message", "protocol/negotiation"},
    "transport": {"base", "interfaces"},
    "backend/reduction": {"base", "interfaces"},
    "backend/schedule": {"base", "interfaces", "backend/reduction"},
    "backend/algorithms": {"base", "interfaces", "backend/schedule"},
    "backend": {
        *("base", "interfaces"),
        *("backend/reduction", "backend/schedule", "backend/algorithms"),
    },
    "process": {
        *("base", "interfaces", "transport", "backend"),
        *("protocol/message", "protocol/negotiation", "protocol/engine"),
    },
    "kernels": {"base", "protocol/message", "process"},
    "xla": {"base", "protocol/message", "process", "kernels"},
    "bindings": {"base", "protocol/message", "process"},
    "sim": {
        *("base", "interfaces", "backend/schedule", "backend/algorithms"),
        *("protocol/message", "protocol/negotiation", "protocol/engine"),
    },
}
# Foreign headers and the only rooms that may use them.
FOREIGN_HEADERS = {
    "tensorflow/": {"kernels", "xla"},
    "xla/": {"xla"},
    "pybind11/": {"bindings"},
    "absl/": {"kernels", "xla"},
    "google/protobuf/": {"kernels"},
    "Python.h": {"bindings"},
}
# The pure rooms see no thread, clock or system.
PURE_ROOMS = {"protocol/message", "protocol/negotiation", "protocol/engine"}
IMPURE_HEADER = re.compile(
    r"^(thread|mutex|condition_variable|shared_mutex|future|atomic|chrono|ctime|random|fstream"
    r"|unistd\.h|fcntl\.h|poll\.h|time\.h|pthread\.h|(sys|netinet|arpa|linux)/.*)$"
)
# Python rooms of tfring/ and what their files may not import at all, or only inside a function.
PY_NEVER: dict[str, set[str]] = {
    "tfring/environments/": {"tensorflow", "keras", "mpi4py", "tfring.keras"},
    "tfring/bootstrap/": {"tensorflow", "keras", "tfring.keras"},
    "tfring/": {"horovod"},
}
PY_LAZY_EVERYWHERE = {"mpi4py"}
PY_TENSORFLOW_FREE = {
    "tfring/__init__.py",
    "tfring/_native.py",
    "tfring/config.py",
    "tfring/exceptions.py",
    "tfring/version.py",
    "tfring/world.py",
    "tfring/environments/",
    "tfring/bootstrap/",
    "tfring/launcher/",
}

INCLUDE = re.compile(r'^\s*#\s*include\s+(?:"([^"]+)"|<([^>]+)>)', re.MULTILINE)


class Block(NamedTuple):
    """A function body: what opens it and its first and last line."""

    head: str
    first: int
    last: int

    @property
    def lines(self) -> int:
        return self.last - self.first + 1


def room_of(path: str) -> str | None:
    """The room that a C++ path under ops/ belongs to."""
    if not path.startswith("ops/") or path.count("/") < 2:
        return None
    return path.rpartition("/")[0].removeprefix("ops/").removeprefix("runtime/")


def include_errors(path: str, text: str) -> list[str]:
    """Every #include of a file that goes against the arrows."""
    room = room_of(path)
    if room is None:
        return []
    if room not in CC_ARROWS:
        return [f"{path}: the room {room} is not in the list of rooms"]
    errors = []
    for quoted, angled in INCLUDE.findall(text):
        header = quoted or angled
        for prefix, rooms in FOREIGN_HEADERS.items():
            if header.startswith(prefix) and room not in rooms:
                errors.append(f"{path}: {room} includes {header}, only {sorted(rooms)} may")
        if angled and room in PURE_ROOMS and IMPURE_HEADER.match(angled):
            errors.append(f"{path}: {room} is pure but includes <{angled}>")
        if quoted and not re.match(r"(ops|tests|tensorflow|xla|absl|tsl)/", quoted):
            errors.append(f'{path}: "{quoted}" is not written from the top of the checkout')
        target = room_of(quoted) if quoted else None
        if target is not None and target != room and target not in CC_ARROWS[room]:
            errors.append(f"{path}: {room} may not include {header} of {target}")
    return errors


def imported_modules(tree: ast.AST) -> Iterator[tuple[str, bool]]:
    """(module, at import time) for every import that can run; type-checking blocks cannot."""

    def walk(node: ast.AST, top: bool) -> Iterator[tuple[str, bool]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Import):
                for alias in child.names:
                    yield alias.name, top
            elif isinstance(child, ast.ImportFrom) and child.module and child.level == 0:
                yield child.module, top
                for alias in child.names:
                    yield f"{child.module}.{alias.name}", top
            elif isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test):
                for other in child.orelse:
                    yield from walk(other, top)
            else:
                inside = isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
                yield from walk(child, top and not inside)

    yield from walk(tree, True)


def _is(module: str, package: str) -> bool:
    return module == package or module.startswith(package + ".")


def import_errors(path: str, text: str) -> list[str]:
    """Every import of a file of tfring/ that goes against the arrows."""
    errors = []
    seen = set(imported_modules(ast.parse(text)))
    for module, top in sorted(seen):
        for folder, never in PY_NEVER.items():
            if path.startswith(folder) and any(_is(module, name) for name in never):
                errors.append(f"{path}: may not import {module}")
        if not path.startswith("tfring/keras/") and top and _is(module, "tfring.keras"):
            errors.append(f"{path}: imports {module}; only tfring/keras knows Keras")
        if top and any(_is(module, name) for name in PY_LAZY_EVERYWHERE):
            errors.append(f"{path}: imports {module} at import time")
        free = any(path == name or path.startswith(name) for name in PY_TENSORFLOW_FREE)
        if free and top and (_is(module, "tensorflow") or _is(module, "keras")):
            errors.append(f"{path}: imports {module} at import time; `import tfring` must not")
    return errors


def blank_out(text: str) -> str:
    """C++ text with comments, strings and preprocessor lines replaced by spaces."""
    pattern = re.compile(
        r'R"(?P<tag>[^(\s]*)\(.*?\)(?P=tag)"'
        r'|"(?:\\.|[^"\\\n])*"|(?<![0-9a-fA-F])\'(?:\\.|[^\'\\\n])*\''
        r"|//[^\n]*|/\*.*?\*/|^[ \t]*#(?:[^\n]*\\\n)*[^\n]*",
        re.DOTALL | re.MULTILINE,
    )
    return pattern.sub(lambda match: re.sub(r"[^\n]", " ", match.group(0)), text)


SCOPE = re.compile(
    r"^(?:inline\s+|typedef\s+|template\s*<.*>\s*|static\s+)*"
    r"(namespace|class|struct|union|enum|extern)\b",
    re.DOTALL,
)


def cc_functions(text: str) -> list[Block]:
    """The functions of a C++ file: outermost blocks that no namespace, class or enum opens."""
    text = blank_out(text)
    functions = []
    open_scopes: list[bool] = []  # True: a scope that may hold functions
    body: tuple[int, int, str] | None = None  # depth, start of its head, head
    head_start = 0
    for index, char in enumerate(text):
        if char == "{":
            head = text[head_start:index]
            if body is None and not SCOPE.match(head.strip()):
                start = head_start + len(head) - len(head.lstrip())
                body = (len(open_scopes), start, " ".join(head.split()))
            open_scopes.append(body is None)
            head_start = index + 1
        elif char == "}" and open_scopes:
            open_scopes.pop()
            if body is not None and len(open_scopes) == body[0]:
                first = text.count("\n", 0, body[1]) + 1
                functions.append(Block(body[2], first, text.count("\n", 0, index) + 1))
                body = None
            head_start = index + 1
        elif char == ";" or (
            char == ":"
            and re.search(r"(public|private|protected)\s*$", text[max(0, index - 12) : index])
        ):
            head_start = index + 1
    return functions


def py_functions(text: str) -> list[Block]:
    """The functions and methods of a Python file, decorators left out."""
    return [
        Block(node.name, node.lineno, node.end_lineno or node.lineno)
        for node in ast.walk(ast.parse(text))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
    ]


def interface_sizes(text: str) -> dict[str, int]:
    """Number of pure virtual methods by class."""
    text = blank_out(text)
    sizes: dict[str, int] = {}
    for match in re.finditer(r"\b(?:class|struct)\s+(?:[A-Z_]+\s+)?(\w+)[^;{()]*\{", text):
        depth, index = 1, match.end()
        while depth and index < len(text):
            depth += {"{": 1, "}": -1}.get(text[index], 0)
            index += 1
        pure = len(re.findall(r"\bvirtual\b[^;{}]*=\s*0\s*;", text[match.end() : index]))
        if pure:
            sizes[match.group(1)] = pure
    return sizes
