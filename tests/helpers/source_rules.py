"""Checks of source text: which C++ folder may include which, and sizes.

The scanners below know just enough C++ to find blocks and their heads, without a compiler.
They catch mistakes, not malice: code can be hidden from them.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

# Which layers (folders of ops/) a layer may include, besides itself. A layer comes after all
# that it may include, so this table cannot hold a circle.
CC_ARROWS: dict[str, set[str]] = {
    "base": set(),
    "interfaces": {"base"},
    "protocol/message": {"base"},
    "protocol/locked": {"base", "protocol/message"},
    "protocol/negotiation": {
        "base",
        "protocol/message",
        "protocol/locked",
    },
    "protocol/engine": {
        "base",
        "interfaces",
        "protocol/message",
        "protocol/locked",
        "protocol/negotiation",
    },
    "membership": {"base"},
    "thread_pool": {"base"},
    "transport": {"base", "interfaces"},
    "backend/reduction": {"base", "interfaces"},
    "backend/schedule": {"base", "interfaces", "backend/reduction"},
    "backend/algorithms": {"base", "interfaces", "backend/schedule"},
    "backend/arena": {"base", "interfaces", "backend/reduction", "backend/schedule"},
    "backend": {
        "base",
        "interfaces",
        "thread_pool",
        "backend/reduction",
        "backend/schedule",
        "backend/algorithms",
        "backend/arena",
    },
    "recorder": {"base", "interfaces", "protocol/message"},
    "process": {
        "base",
        "interfaces",
        "thread_pool",
        "recorder",
        "transport",
        "backend",
        "protocol/message",
        "protocol/negotiation",
        "protocol/engine",
    },
    "gpu/cuda": {"base", "interfaces"},
    "gpu/staging": {"base", "interfaces", "gpu/cuda"},
    "gpu/pack": {"base", "backend/reduction", "gpu/cuda"},
    "gpu/nccl": {"base", "interfaces", "backend/reduction", "gpu/cuda", "gpu/pack"},
    "gpu": {"base", "interfaces", "gpu/cuda", "gpu/pack", "gpu/nccl", "gpu/staging"},
    "mpi": {"transport"},
    "kernels": {"base", "interfaces", "protocol/message", "process"},
    "xla": {"base", "protocol/message", "process", "kernels"},
    "bindings": {
        "backend/algorithms",
        "base",
        "protocol/message",
        "process",
        "backend",
        "membership",
    },
    "sim": {
        "base",
        "interfaces",
        "backend/schedule",
        "backend/algorithms",
        "protocol/message",
        "protocol/negotiation",
        "protocol/engine",
    },
    "sim/membership": {"base", "membership", "sim"},
}
# Foreign headers and the only layers that may use them.
FOREIGN_HEADERS = {
    "tensorflow/": {"kernels", "xla"},
    "xla/": {"kernels", "xla"},
    "pybind11/": {"bindings"},
    "absl/": {"kernels", "xla"},
    "google/protobuf/": {"kernels"},
    "Python.h": {"bindings"},
    "mpi.h": {"mpi"},
}
# Pure layers depend on their arguments alone: they use no thread, lock, clock, socket, file,
# environment or random number. Every system header of C ends in .h.
PURE = ("protocol/", "membership")
IMPURE_HEADER = re.compile(
    r"(.*\.h|c?std(atomic|threads)|thread|mutex|condition_variable|shared_mutex|future|atomic|chrono"
    r"|semaphore|latch|barrier|stop_token|ctime|csignal|random|fstream|iostream|filesystem)"
)
C_LIBRARY = (
    r"time|clock|timespec_get|getenv|system|s?rand|v?f?printf|f?puts|f(?:re)?open|fread|fwrite"
)
SYSTEM_CALL = (
    r"socket(?:pair)?|connect|bind|listen|accept4?|send|recv|sendmsg|recvmsg|poll|select|getaddrinfo"
    r"|epoll_\w+|eventfd|timerfd_\w+|pipe2?|open|close|read|write|mmap|fork|syscall|pthread_\w+"
    r"|clock_\w+|gettimeofday|u?sleep|nanosleep|setenv|getpid|random"
)
IMPURE_WORD = re.compile(
    r"\bstd\s*::\s*(?:\w*(?:thread|mutex|lock|semaphore|latch|barrier|atomic|future|promise)\w*"
    r"|condition_variable\w*|async|chrono|random_device|mt19937\w*|[io]?fstream|cout|cerr"
    rf"|{C_LIBRARY})\b"
    rf"|(?<![\w>:])::\s*(?:{C_LIBRARY}|{SYSTEM_CALL})\b"
    # A call of a system function: not a method of an object, nor a name in our namespaces.
    rf"|(?<![\w.>:])(?:{C_LIBRARY}|{SYSTEM_CALL})\s*\("
    r"|\b(?:thread_local|asm|__asm__|\w*rdtscp?)\b"
)
# Other kinds of file could be included or compiled without being checked here.
RUNTIME_FILE = re.compile(r"(.+/)?(\w+\.(h|cc|cu|cmake|ptx\.inc)|BUILD|CMakeLists\.txt)")

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
    """Every #include of a file that the arrows forbid."""
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
        if quoted and not re.match(r"(ops|tensorflow|xla|absl|tsl)/", quoted):
            errors.append(f'{path}: "{quoted}" is neither in ops/ nor of a library that ops/ uses')
        target = layer_of(quoted) if quoted else None
        if target is not None and target != layer and target not in CC_ARROWS[layer]:
            errors.append(f"{path}: {layer} may not include {header} of {target}")
    return errors


def purity_errors(sources: Mapping[str, str]) -> list[str]:
    """Every use of a thread, lock, clock, socket or the like in a pure layer.

    `sources` has the text of each file of ops/, by its path: the rule is the same for the headers
    that a pure file includes, directly or not. The .cc files of other layers are not checked:
    a failed check may print.
    """
    pure = [path for path in sources if (layer_of(path) or "").startswith(PURE)]
    errors = []
    reached, waiting = set(pure), list(pure)
    while waiting:
        path = waiting.pop()
        for match in IMPURE_WORD.finditer(blank_out(sources[path], preprocessor=False)):
            errors.append(f"{path}: in or included by a pure layer, but uses {match.group()}")
        for quoted, angled in INCLUDE.findall(sources[path]):
            if IMPURE_HEADER.fullmatch(angled):
                errors.append(f"{path}: in or included by a pure layer, but includes <{angled}>")
            if quoted in sources and quoted not in reached:
                reached.add(quoted)
                waiting.append(quoted)
    return errors


def blank_out(text: str, preprocessor: bool = True) -> str:
    """C++ text with comments, strings and, on request, preprocessor lines replaced by spaces."""
    pattern = re.compile(
        r'R"(?P<tag>[^(\s]*)\(.*?\)(?P=tag)"'
        r'|"(?:\\.|[^"\\\n])*"|(?<![0-9a-fA-F])\'(?:\\.|[^\'\\\n])*\''
        r"|//[^\n]*|/\*.*?\*/" + (r"|^[ \t]*#(?:[^\n]*\\\n)*[^\n]*" if preprocessor else ""),
        re.DOTALL | re.MULTILINE,
    )
    return pattern.sub(lambda match: re.sub(r"[^\n]", " ", match.group(0)), text)


# The head of a block that may hold functions. A function that returns a `struct stat` has brackets,
# other than of an attribute, before any colon.
SCOPE = re.compile(
    r"(?:inline\s+|typedef\s+|template\s*<.*>\s*|static\s+)*"
    r"(?:namespace|class|struct|union|enum|extern)\b"
    r"(?:\s*(?:\[\[.*?\]\]|(?:alignas|__attribute__)\s*\((?:[^()]|\([^()]*\))*\)))*"
    r"(?:[^(:]|::)*(?:(?<!:):(?!:).*)?",
    re.DOTALL,
)
# The text before the { of a member in the initialisers of a constructor: `A::A(int b) : b_`.
MEMBER = re.compile(r"\)[^()]*(?<!:):(?!:).*[\w>]\s*$", re.DOTALL)
ACCESS = re.compile(r"(public|private|protected)\s*$")
CATCH = re.compile(r"\s*catch\b")


def cc_functions(text: str) -> list[Block]:
    """The functions of a C++ file: the outermost blocks except namespaces, classes and enums."""
    text = blank_out(text)
    functions = []
    open_blocks: list[bool] = []  # True: a scope that may hold functions; only scopes hold scopes
    body: tuple[int, str] | None = None  # start of its head, head
    head_start = 0
    for index, char in enumerate(text):
        in_scope = body is None and (not open_blocks or open_blocks[-1])
        if char == "{":
            head = text[head_start:index]
            scope = in_scope and SCOPE.fullmatch(head.strip()) is not None
            if scope:
                head_start = index + 1
            elif in_scope and not MEMBER.search(head):
                body = (head_start + len(head) - len(head.lstrip()), " ".join(head.split()))
            open_blocks.append(scope)
        elif char == "}" and open_blocks:
            scope = open_blocks.pop()
            ended = not open_blocks or open_blocks[-1]
            if body is not None and ended and not CATCH.match(text, index + 1):
                first = text.count("\n", 0, body[0]) + 1
                functions.append(Block(body[1], first, text.count("\n", 0, index) + 1))
                body, scope = None, True
            if scope:
                head_start = index + 1
        elif in_scope and (
            char == ";" or (char == ":" and ACCESS.search(text, max(0, index - 12), index))
        ):
            head_start = index + 1
    return functions


def statements(node: ast.AST) -> Iterator[ast.stmt]:
    """The statements below a node: a tenth of its nodes."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt):
            yield child
        if isinstance(child, (ast.stmt, ast.excepthandler, ast.match_case)):
            yield from statements(child)


def py_functions(text: str) -> list[Block]:
    """The functions and methods of a Python file, with their decorators."""
    return [
        Block(
            node.name,
            min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)]),
            node.end_lineno or node.lineno,
        )
        for node in statements(ast.parse(text))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
    ]
