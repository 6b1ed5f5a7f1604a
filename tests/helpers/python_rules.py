"""Checks which file of tfring/ imports which, by reading the sources; runs nothing.

Imports that only type checkers follow (the body of `if TYPE_CHECKING:`) count, too, except where
the question is what is loaded. The rules catch mistakes, not malice: an import can be hidden.
"""

from __future__ import annotations

import ast
import functools
import sys
from collections.abc import Iterator, Mapping
from typing import NamedTuple

# Which packages of tfring/ a package may import, besides itself; "tfring" is tfring/__init__.py. A
# package comes after all that it may import, so this table cannot hold a circle.
ARROWS: dict[str, set[str]] = {
    "checkpoint": set(),
    "runtime": set(),
    "version": set(),
    "job": {"runtime", "version"},
    "keras2": {"runtime"},
    "ops": {"runtime"},
    "tfring": {"runtime"},
    "collectives": {"runtime", "job", "ops"},
    "observe": {"runtime", "version", "job"},
    "store": {"job"},
    "data": {"runtime", "collectives"},
    "elastic": {"runtime", "job", "ops", "collectives"},
    "training": {"runtime", "ops", "collectives"},
    "world": {"runtime", "job", "ops", "observe", "elastic"},
    "bench": {"runtime", "version", "ops", "collectives", "training", "world"},
    "keras": {
        "checkpoint",
        "runtime",
        "ops",
        "collectives",
        "observe",
        "data",
        "elastic",
        "training",
    },
    "launch": {"runtime", "version", "job", "observe", "elastic", "bench"},
    "__main__": {"launch"},
    "demo": {"job", "keras", "launch"},
    "integration": {"runtime"},
    "horovod": {"tfring", "elastic", "integration"},
    "ray": {"tfring", "store", "integration"},
    "spark": {"store", "integration", "keras"},
}
# Where the public names of a package may come from, besides what it may import. Its __init__.pyi
# lists them, and each is loaded at its first use: they make no circle.
PUBLIC_NAMES_FROM: dict[str, set[str]] = {
    "tfring": set(ARROWS),
    "keras": {"world"},
    "integration": {"job", "launch", "ops", "training", "world"},
}
# Packages that import public names only, as separate projects would.
ON_TOP = ("horovod", "ray", "spark")
# The files that list those names.
PUBLIC_MODULES = ("tfring", "tfring.keras", "tfring.elastic", "tfring.store", "tfring.integration")
# Third-party modules and the packages that may import them, also within a function:
# these modules are large, or optional.
THIRD_PARTY: dict[str, set[str]] = {
    "ClusterShell": {"launch"},
    "cloudpickle": {"collectives", "launch", "spark"},
    "fsspec": {"checkpoint", "spark"},
    "h5py": {"keras"},
    "keras": {"bench", "data", "demo", "horovod", "keras", "spark"},
    "mcp": {"launch"},
    "ml_dtypes": {"checkpoint"},
    "mpi4py": {"job"},
    "numpy": {
        "bench",
        "checkpoint",
        "collectives",
        "data",
        "demo",
        "elastic",
        "keras",
        "observe",
        "runtime",
        "spark",
        "training",
    },
    "optree": {"horovod"},
    "pandas": {"spark"},
    "prometheus_client": {"observe"},
    "pyarrow": {"spark"},
    "pynvml": {"runtime"},
    "pyspark": {"spark"},
    "ray": {"ray"},
    "rich": {"launch", "observe"},
    "tensorboard": {"keras"},
    "tensorflow": {
        "bench",
        "collectives",
        "data",
        "demo",
        "elastic",
        "horovod",
        "keras",
        "ops",
        "runtime",
        "spark",
        "training",
    },
    "tf_keras": {"horovod", "keras"},
    "typing_extensions": {"keras", "training"},
    "yaml": {"launch"},
}
# Importing mpi4py starts MPI: only a function does that, once a job is known to need it.
NEVER_AT_IMPORT_TIME = {"mpi4py"}
# Modules that users import before TensorFlow is loaded, because `hvd.init()` sets variables that
# it reads at its start, and the `tfring` command, which does not need it.
WITHOUT_TENSORFLOW = (
    "tfring/__init__.py",
    "tfring/keras/__init__.py",
    "tfring/world.py",
    "tfring/__main__.py",
    "tfring/job/environments/",
    "tfring/job/security/",
    "tfring/job/bootstrap/",
    "tfring/launch/",
    "tfring/demo.py",
    "tfring/ops/early.py",
    "tfring/runtime/gpu/",
    "tfring/job/handshake/",
    "tfring/job/store/",
    "tfring/checkpoint/",
    "tfring/elastic/loop.py",
    "tfring/elastic/process.py",
    "tfring/elastic/service.py",
    "tfring/ray/",
    "tfring/spark/",
    "tfring/data/__init__.py",
    "tfring/data/data_cursor.py",
    "tfring/horovod/data_loader.py",
)
# Their functions may import modules of tfring: modules that only some jobs need, or only their end,
# would take most of the start of a job.
LATE_IMPORTS = {"tfring/launch/run.py", "tfring/observe/explain/launched.py"}
# Names that can import or reach a module without an import statement; and the only
# files that may mention it.
BY_NAME = {"importlib", "pkgutil", "runpy", "__import__", "exec", "eval", "sys.modules"}
IMPORTS_BY_NAME = {
    "tfring/runtime/public_names.py",  # loads public names at first use
    "tfring/horovod/orders.py",  # tfring.ops.library, when TensorFlow is loaded
    "tfring/horovod/shim.py",  # the modules of the `horovod` package
    "tfring/horovod/__main__.py",  # the script of a user, with runpy
    "tfring/runtime/_native.py",  # the compiled binding
    "tfring/ops/early.py",  # tfring.ops.library, where TensorFlow is loaded already
    "tfring/launch/cli.py",  # the module of a command
    # The rest only ask whether a package is installed or loaded.
    "tfring/job/environments/__init__.py",
    "tfring/job/bootstrap/inter_op_threads.py",
    "tfring/job/bootstrap/mpi_exchange.py",
    "tfring/runtime/communicators.py",
    "tfring/job/bootstrap/records.py",
    "tfring/runtime/built.py",
    "tfring/keras/detect.py",
    "tfring/training/first_steps.py",
    "tfring/launch/installed.py",
    "tfring/runtime/gpu/nccl.py",
    "tfring/runtime/gpu/toolkit.py",
    "tfring/bench/result.py",
    "tfring/runtime/keras_version.py",  # versions
    "tfring/horovod/keras2_idioms.py",  # a second copy of a module of Keras
}
# Unpickling runs code of the sender's choice. Only objects of users are pickled, and only in these
# files, where messages carry MACs; the library's own messages are JSON (allgather_json).
PICKLING = {
    "tfring/collectives/objects.py",
    "tfring/launch/function.py",
    "tfring/launch/function_task.py",
    "tfring/launch/cell_sources.py",
    "tfring/elastic/state.py",
    "tfring/elastic/tensorflow_state.py",
    "tfring/spark/keras/saved.py",
}
PICKLES = {
    "pickle",
    "_pickle",
    "cloudpickle",
    "dill",
    "marshal",
    "shelve",
    "joblib",
    "allow_pickle",
    "broadcast_object",
    "broadcast_object_fn",
    "allgather_object",
}

Sources = Mapping[str, str]  # the text of each file of tfring/, by its path


TYPE_CHECKING = ("TYPE_CHECKING", "typing.TYPE_CHECKING")


class Import(NamedTuple):
    """One import: the module, the imported name if any, and the line.

    `only_types`: it is in the body of `if TYPE_CHECKING:` and never runs.
    """

    module: str
    name: str
    line: int
    in_function: bool
    only_types: bool


@functools.cache
def nodes_of(text: str) -> tuple[ast.AST, ...]:
    """All nodes of a file's tree, cached for all rules; the tree comes first."""
    return tuple(ast.walk(ast.parse(text)))


@functools.cache
def imports_of(path: str, text: str) -> tuple[Import, ...]:
    """The imports of a file."""

    def walk(node: ast.AST, in_function: bool, only_types: bool) -> Iterator[Import]:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(alias.name, "", node.lineno, in_function, only_types)
        elif isinstance(node, ast.ImportFrom):
            folder = path.split("/")[: -node.level] if node.level else []
            module = ".".join([*folder, *filter(None, [node.module])])
            for alias in node.names:
                yield Import(module, alias.name, node.lineno, in_function, only_types)
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            in_function = True
        elif isinstance(node, ast.If) and ast.unparse(node.test) in TYPE_CHECKING:
            for child in node.body:
                yield from walk(child, in_function, True)
            for child in node.orelse:
                yield from walk(child, in_function, only_types)
            return
        for child in ast.iter_child_nodes(node):
            if isinstance(child, (ast.stmt, ast.excepthandler, ast.match_case)):
                yield from walk(child, in_function, only_types)

    return tuple(walk(nodes_of(text)[0], False, False))


def package_of(path: str) -> str:
    """The package of ARROWS that a file of tfring/ belongs to."""
    name = path.split("/")[1].partition(".")[0]
    return "tfring" if name == "__init__" else name


def file_of(dotted: str, sources: Sources) -> str | None:
    """The file of a module of tfring/."""
    stem = dotted.replace(".", "/")
    files = (f"{stem}.py", f"{stem}.pyi", f"{stem}/__init__.py")
    return next((name for name in files if name in sources), None)


def targets(path: str, one: Import, sources: Sources) -> list[str]:
    """The files that an import loads: the module's own, and __init__.py of packages around it.

    The packages that hold the importing file are left out: they are being loaded already.
    """
    if one.module.split(".")[0] != "tfring":
        return []
    parts = [*one.module.split("."), *([one.name] if one.name else [])]
    if one.name and file_of(".".join(parts), sources) is None:
        parts.pop()
    around = [".".join(parts[:length]) for length in range(1, len(parts))]
    outside = [name for name in around if not path.startswith(name.replace(".", "/") + "/")]
    files = [file_of(name, sources) for name in [*outside, ".".join(parts)]]
    return [name for name in files if name is not None]


def import_errors(path: str, sources: Sources) -> list[str]:
    """Every import of a file that the arrows forbid, or that is in a function."""
    package, errors = package_of(path), []
    if package not in ARROWS:
        return [f"{path}: the package {package} has no arrows in tests/helpers/python_rules.py"]
    allowed = {package, *ARROWS[package]}
    if path.endswith("/__init__.pyi"):
        allowed |= PUBLIC_NAMES_FROM.get(package, set())
    for one in imports_of(path, sources[path]):
        where, top = f"{path}:{one.line}", one.module.split(".")[0]
        if top == "tfring" or top in sys.stdlib_module_names:
            if one.in_function and path not in LATE_IMPORTS:
                errors.append(f"{where}: imports {one.module} inside a function")
        elif package not in THIRD_PARTY.get(top, ()):
            errors.append(f"{where}: {package} may not import {top}")
        elif top in NEVER_AT_IMPORT_TIME and not one.in_function:
            errors.append(f"{where}: imports {top} at import time")
        for target in targets(path, one, sources):
            if package_of(target) not in allowed:
                errors.append(f"{where}: {package} may not import {target}")
    return list(dict.fromkeys(errors))


def public_names(module: str, sources: Sources) -> set[str]:
    """The names that a public module lists: in its stub, or by `import X as X` in its file."""
    path = module.replace(".", "/")
    files = (f"{path}/__init__.pyi", f"{path}.py")
    listing = next((name for name in files if name in sources), None)
    if listing is None:
        return set()
    return {one.name for one in imports_of(listing, sources[listing]) if one.name}


def private_import_errors(path: str, sources: Sources) -> list[str]:
    """Every import of a private name by a package of ON_TOP from the rest of tfring."""
    own = f"tfring.{package_of(path)}"
    errors = []
    for one in imports_of(path, sources[path]):
        inside = f"{one.module}.{one.name}.".startswith(f"{own}.")
        if one.module.split(".")[0] != "tfring" or inside:
            continue
        known = one.module in PUBLIC_MODULES
        if not known or (one.name and one.name not in public_names(one.module, sources)):
            name = " ".join(filter(None, [one.module, one.name]))
            errors.append(
                f"{path}:{one.line}: {name} is not public: take it from tfring, one of its public "
                "packages or tfring/integration/__init__.pyi"
            )
    return errors


def import_by_name_errors(path: str, text: str) -> list[str]:
    """Every name that can import without an import statement, which the other rules cannot see."""
    mentions: list[tuple[int, str]] = []
    for node in nodes_of(text):
        if isinstance(node, ast.Name):
            mentions.append((node.lineno, node.id))
        elif isinstance(node, ast.Attribute):
            mentions.append((node.lineno, node.attr))
            if isinstance(node.value, ast.Name):
                mentions.append((node.lineno, f"{node.value.id}.{node.attr}"))
    for one in imports_of(path, text):
        words = [one.module.split(".")[0], one.name, f"{one.module}.{one.name}"]
        mentions += [(one.line, word) for word in words]
    return [
        f"{path}:{line}: mentions {word}; only IMPORTS_BY_NAME may, see python_rules.py"
        for line, word in mentions
        if word in BY_NAME and path not in IMPORTS_BY_NAME
    ]


def pickle_errors(path: str, text: str) -> list[str]:
    """Every use of pickle outside PICKLING; stubs may list it for users."""
    if path in PICKLING or path.endswith(".pyi"):
        return []
    mentions = [
        (one.line, word)
        for one in imports_of(path, text)
        for word in (one.module.split(".")[0], one.name)
    ]
    for node in nodes_of(text):
        if isinstance(node, (ast.Name, ast.Attribute)):
            mentions.append((node.lineno, getattr(node, "attr", getattr(node, "id", ""))))
        elif isinstance(node, ast.keyword):
            mentions.append((node.value.lineno, node.arg or ""))
    return [
        f"{path}:{line}: mentions {word}; only PICKLING may, see python_rules.py"
        for line, word in mentions
        if word in PICKLES
    ]


def loaded_at_once(one: Import) -> bool:
    """Whether importing the file runs this import."""
    return not (one.in_function or one.only_types)


def import_graph(sources: Sources, all_imports: bool) -> dict[str, list[str]]:
    """The files that each file loads; `all_imports` adds those of functions and type checkers."""
    return {
        path: [
            target
            for one in imports_of(path, text)
            if all_imports or loaded_at_once(one)
            for target in targets(path, one, sources)
        ]
        for path, text in sources.items()
    }


def used_arrows(sources: Sources) -> dict[str, set[str]]:
    """The packages that each package imports from."""
    used: dict[str, set[str]] = {package: set() for package in ARROWS}
    for path, loaded in import_graph(sources, all_imports=True).items():
        used[package_of(path)] |= {package_of(other) for other in loaded}
    return used


def circle(graph: Mapping[str, list[str]]) -> list[str]:
    """Files that import each other in a circle, by depth-first search; [] if none do."""
    done: set[str] = set()

    def visit(path: str, above: list[str]) -> list[str]:
        if path in above:
            return [*above[above.index(path) :], path]
        if path in done:
            return []
        found = next((c for other in graph[path] if (c := visit(other, [*above, path]))), [])
        done.add(path)
        return found

    return next((found for path in graph if (found := visit(path, []))), [])


def tensorflow_errors(sources: Sources) -> list[str]:
    """Every import path from a file that must not load TensorFlow or Keras to one of them."""
    graph = import_graph(sources, all_imports=False)
    heavy = {
        path
        for path, text in sources.items()
        for one in imports_of(path, text)
        if loaded_at_once(one) and one.module.split(".")[0] in ("tensorflow", "keras")
    }
    errors = []
    for start in sources:
        if start.startswith(WITHOUT_TENSORFLOW):
            reached, waiting = {start}, [start]
            while waiting:
                new = set(graph[waiting.pop()]) - reached
                reached |= new
                waiting.extend(new)
            errors += [f"{start} loads TensorFlow through {path}" for path in reached & heavy]
    return errors
