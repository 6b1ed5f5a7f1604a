"""Rules that are read off source text: which C++ folder may include which, and sizes.

No compiler is asked: the scanners below know just enough C++ to find blocks and what opens them.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from typing import NamedTuple

# Which layers, folders of ops/, a layer may include, besides itself. A layer stands below all that
# it may include, so that this table cannot hold a circle.
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
# Foreign headers and the only layers that may use them.
FOREIGN_HEADERS = {
    "tensorflow/": {"kernels", "xla"},
    "xla/": {"xla"},
    "pybind11/": {"bindings"},
    "absl/": {"kernels", "xla"},
    "google/protobuf/": {"kernels"},
    "Python.h": {"bindings"},
}
# The pure layers decide by their arguments alone: they use no thread, lock, clock, socket, file,
# environment or random number. Every system header of C ends in .h.
PURE = "protocol/"
IMPURE_HEADER = re.compile(
    r"(.*\.h|c?std(atomic|threads)|thread|mutex|condition_variable|shared_mutex|future|atomic|chrono"
    r"|ctime|csignal|random|fstream|iostream|filesystem)"
)
IMPURE_WORD = re.compile(
    r"\bstd::(?:thread|mutex|lock_guard|unique_lock|condition_variable|atomic|async|future|promise"
    r"|chrono|this_thread|random_device|mt19937|getenv|time|clock|[io]?fstream|cout|cerr)\b"
    # A function of the system, called: no method of an object, nor a name in a namespace of ours.
    r"|(?<![\w.>:])(?:::)?(?:socket|connect|bind|listen|accept4?|send|recv|sendmsg|recvmsg|poll|select"
    r"|epoll_\w+|eventfd|timerfd_\w+|pipe2?|open|close|read|write|mmap|fork|syscall|pthread_\w+"
    r"|time|clock|clock_\w+|gettimeofday|u?sleep|nanosleep|getenv|setenv|getpid|rand|random)\s*\("
)

INCLUDE = re.compile(r'^\s*#\s*include\s+(?:"([^"]+)"|<([^>]+)>)', re.MULTILINE)


class Block(NamedTuple):
    """A function body: what opens it and its first and last line."""

    head: str
    first: int
    last: int

    @property
    def lines(self) -> int:
        return self.last - self.first + 1


def layer_of(path: str) -> str | None:
    """The layer that a C++ path under ops/ belongs to."""
    if not path.startswith("ops/") or path.count("/") < 2:
        return None
    return path.rpartition("/")[0].removeprefix("ops/").removeprefix("runtime/")


def include_errors(path: str, text: str) -> list[str]:
    """Every #include of a file that goes against the arrows."""
    layer = layer_of(path)
    if layer is None:
        return []
    if layer not in CC_ARROWS:
        return [f"{path}: the layer {layer} has no arrows in tests/helpers/source_rules.py"]
    errors = []
    for quoted, angled in INCLUDE.findall(text):
        header = quoted or angled
        for prefix, layers in FOREIGN_HEADERS.items():
            if header.startswith(prefix) and layer not in layers:
                errors.append(f"{path}: {layer} includes {header}, only {sorted(layers)} may")
        if quoted and not re.match(r"(ops|tests|tensorflow|xla|absl|tsl)/", quoted):
            errors.append(f'{path}: "{quoted}" is not written from the top of the checkout')
        target = layer_of(quoted) if quoted else None
        if target is not None and target != layer and target not in CC_ARROWS[layer]:
            errors.append(f"{path}: {layer} may not include {header} of {target}")
    return errors


def purity_errors(sources: Mapping[str, str]) -> list[str]:
    """Every use of a thread, lock, clock, socket or the like in a pure layer.

    `sources` has the text of each file of ops/, by its path: the headers that a pure file includes,
    directly or not, may not include such a thing either.
    """
    pure = [path for path in sources if (layer_of(path) or "").startswith(PURE)]
    errors = [
        f"{path}: a pure layer uses {match.group()}"
        for path in pure
        for match in IMPURE_WORD.finditer(blank_out(sources[path]))
    ]
    reached, waiting = set(pure), list(pure)
    while waiting:
        path = waiting.pop()
        for quoted, angled in INCLUDE.findall(sources[path]):
            if IMPURE_HEADER.fullmatch(angled):
                errors.append(f"{path}: included by a pure layer, but includes <{angled}>")
            if quoted in sources and quoted not in reached:
                reached.add(quoted)
                waiting.append(quoted)
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
