"""What the documents name exists: files, settings, make targets. ARCHITECTURE.md is short."""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path

import pytest
import python_rules

ROOT = Path(__file__).resolve().parents[3]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
ARCHITECTURE = "ARCHITECTURE.md"
WAY = "docs/way_of_a_tensor.md"
PRIVATE_FUNCTIONS = "docs/private_functions.md"
GLOSSARY = (
    "rank",
    "collective",
    "process set",
    "request",
    "negotiation",
    "fusion",
    "plan",
    "sequencer",
    "generation",
    "bucket",
    "layout hash",
)
# A path in backticks, from the top of the checkout; `*` is any name. It has a slash or a suffix.
PATH = re.compile(r"`([\w.*-]+/[\w.*/-]*|[\w.*-]+\.(?:cc|h|pyi?|md|toml|sh|txt|bzl))`")


def section(text: str, heading: str) -> str:
    """The lines below a heading, up to the next of its rank."""
    parts = re.split(r"^## (.*)\n", text, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True)).get(heading, "")


def missing_paths(text: str) -> list[str]:
    """The paths in backticks that name no file or folder of the project."""
    return [path for path in PATH.findall(text) if not list(ROOT.glob(path.rstrip("/")))]


def changes(text: str) -> list[str]:
    """The rows of the table that says where to change what, without those that head it."""
    rows = re.findall(r"^\|.*\|$", section(text, "To change X, look in Y"), re.MULTILINE)
    return rows[2:]


def files_of_one_tensor(text: str) -> list[str]:
    found = PATH.findall(section(text, "The way of one tensor"))
    return [path for path in dict.fromkeys(found) if not path.endswith("/")]


@pytest.mark.parametrize("page", [ARCHITECTURE, WAY, "docs/algorithms.md", "docs/glossary.md"])
def test_pages_of_the_inside_name_what_exists(page: str) -> None:
    text = (ROOT / page).read_text("utf-8")
    assert PATH.findall(text) or page == "docs/glossary.md", "no path found"
    assert missing_paths(text) == []


SOURCES = ("ops", "tfring", "tests", "tools")
MEMBER = re.compile(r"`(\w+::\w+)`")
# In backticks: kName, TwoWords, two_words.
NAME = re.compile(r"`(k[A-Z]\w*|[A-Z]\w*[a-z][A-Z]\w*|[a-z]+_[a-z_]+)`")
# Another enum of the runtime has a kHost.
PROTOCOL = ("ops/runtime/protocol", "ops/runtime/process")
OF_THE_INSIDE = {
    ARCHITECTURE: SOURCES,
    WAY: SOURCES,
    "docs/algorithms.md": SOURCES,
    "docs/glossary.md": SOURCES,
    "docs/internals.md": SOURCES,
    "docs/protocol.md": PROTOCOL,
}


@functools.cache
def words_of(*folders: str) -> set[str]:
    """The names in all sources below some folders, and those of the files."""
    words = set()
    for path in (path for folder in folders for path in (ROOT / folder).rglob("*")):
        if path.suffix in (".cc", ".h", ".py", ".pyi") and path != Path(__file__).resolve():
            words.update([path.stem, *re.findall(r"\w+(?:::\w+)?", path.read_text("utf-8"))])
    return words | {part for word in words for part in word.split("::")}


def missing_names(text: str, names: re.Pattern[str], *folders: str) -> list[str]:
    """The names in backticks that no source has."""
    words = words_of(*folders)
    return [name for name in names.findall(text) if name not in words]


@pytest.mark.parametrize("page", sorted((ROOT / "docs").glob("*.md")), ids=lambda page: page.name)
def test_pages_name_members_that_exist(page: Path) -> None:
    assert missing_names(page.read_text("utf-8"), MEMBER, "ops") == []


@pytest.mark.parametrize("page", OF_THE_INSIDE)
def test_pages_of_the_inside_name_what_the_sources_have(page: str) -> None:
    assert missing_names((ROOT / page).read_text("utf-8"), NAME, *OF_THE_INSIDE[page]) == []


def test_a_wrong_name_is_found() -> None:
    text = "`Failures::EndDisagreement`, `Failures::Gone`, `kCpu`, `kHost`, `planner`, `gone_plans`"
    assert missing_names(text, MEMBER, "ops") == ["Failures::Gone"]
    assert missing_names(text, NAME, *PROTOCOL) == ["kHost", "gone_plans"]


def test_architecture_is_short() -> None:
    lines = (ROOT / ARCHITECTURE).read_text("utf-8").splitlines()
    assert len(lines) <= 200
    assert [line for line in lines if len(line) > 100] == []


def test_architecture_says_where_to_change_what() -> None:
    rows = changes((ROOT / ARCHITECTURE).read_text("utf-8"))
    assert 0 < len(rows) <= 25
    assert [row for row in rows if not PATH.search(row)] == []


def test_the_way_of_one_tensor_names_files() -> None:
    files = files_of_one_tensor((ROOT / WAY).read_text("utf-8"))
    assert files
    assert [name for name in files if not (ROOT / name).is_file()] == []


def test_the_way_of_a_lost_rank_is_short() -> None:
    way = section((ROOT / WAY).read_text("utf-8"), "The way of a lost rank")
    files = [path for path in PATH.findall(way) if path.startswith("tfring/")]
    assert {Path(path).with_suffix("").parts[1] for path in files} == {
        "elastic",
        "job",
        "world",
    }
    # What it names of them does not call back: world uses elastic, and nothing of elastic uses it.
    assert "world" not in python_rules.ARROWS["elastic"]


def test_the_glossary_has_the_words_of_the_design() -> None:
    glossary = (ROOT / "docs/glossary.md").read_text("utf-8")
    assert [word for word in GLOSSARY if word not in glossary.lower()] == []


def test_a_wrong_document_is_found() -> None:
    text = """# A
`tfring/world.py`, `no/such.py`, `nowhere.py`, `ops/*/message/`, `hvd.init`, `/dev/shm`
## To change X, look in Y
| X | Y |
|---|---|
| a launcher | `tfring/launch/cli.py` |
## The way of one tensor
`ops/sim/` and `tfring/world.py`, then `tfring/world.py`, `tfring/gone.py`
## Glossary
"""
    assert missing_paths(text) == ["no/such.py", "nowhere.py", "ops/*/message/", "tfring/gone.py"]
    assert changes(text) == ["| a launcher | `tfring/launch/cli.py` |"]
    assert files_of_one_tensor(text) == ["tfring/world.py", "tfring/gone.py"]
    assert section(text, "Glossary") == section(text, "No such heading") == ""


def rows_of(text: str) -> list[tuple[str, str, str]]:
    """The rows of a page's tables with three columns, without those that head them."""
    rows = re.findall(r"^\| (.*) \| (.*) \| (.*) \|$", text, re.MULTILINE)
    return [row for row in rows if row != ("what", "where", "noticed by")]


def wrong_rows(rows: list[tuple[str, str, str]]) -> list[str]:
    """What rows say that is not so: of files, of the names in them, of tests."""
    wrong = []
    for what, where, noticed in rows:
        names = [name.rpartition(".")[2] for name in re.findall(r"`([^`/]+)`", what)]
        texts = {path: (ROOT / path).read_text("utf-8") for path in PATH.findall(where)}
        wrong += [f"{path} has no {n}" for path, t in texts.items() for n in names if n not in t]
        tests = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", noticed)
        wrong += [
            f"{path} has no {test}"
            for path, test in tests
            if f"def {test}(" not in (ROOT / path).read_text("utf-8")
        ]
        wrong += [f"no file or no test: {what}"] if not (texts and tests) else []
    return wrong


def library() -> dict[str, str]:
    """The text of each file of tfring, by its path."""
    files = (ROOT / "tfring").rglob("*.py")
    return {str(path.relative_to(ROOT)): path.read_text("utf-8") for path in files}


def private_imports() -> set[tuple[str, str]]:
    """Each module or class of Keras' and TensorFlow's own that tfring imports, and the file."""
    return {
        (f"{one.module}.{one.name}".rstrip("."), path)
        for path, text in library().items()
        for one in python_rules.imports_of(path, text)
        if one.module.startswith(("keras.src", "tf_keras.src", "tensorflow.python"))
    }


# Of the standard library, pybind11 and Spark, or attributes that tfring puts on objects of others.
NOT_OF_KERAS = re.compile(
    "_getframe|_asdict|_option_string_actions|_current_frames|_inheriting|_active_spark_context"
    "|_dummy|_setDefault|_tfring_.*"
)


def private_names() -> set[tuple[str, str]]:
    """Each name with an underscore of an object that tfring has not made, and the file."""
    files = library().items()
    nodes = [(path, node) for path, text in files for node in python_rules.nodes_of(text)]
    own = {node.name for _, node in nodes if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
    own |= {node.id for _, node in nodes if isinstance(node, ast.Name)}
    used = set()
    for path, node in nodes:
        if isinstance(node, ast.Attribute):
            if isinstance(node.value, ast.Name) and node.value.id in ("self", "cls"):
                own |= {node.attr} if isinstance(node.ctx, ast.Store) else set()
            else:
                used.add((node.attr, path))
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("getattr", "hasattr"):
            used.add((str(getattr(node.args[1], "value", "")), path))
    return {
        (name, path)
        for name, path in used
        if re.match("_[a-z]", name) and name not in own and not NOT_OF_KERAS.fullmatch(name)
    }


def test_the_page_of_private_functions_is_true() -> None:
    rows = rows_of((ROOT / PRIVATE_FUNCTIONS).read_text("utf-8"))
    assert len(rows) > 20
    assert wrong_rows(rows) == []
    known = {
        (name, path)
        for what, where, _ in rows
        for name in re.findall(r"`([^`]+)`", what)
        for path in PATH.findall(where)
    }
    imports = private_imports()
    assert len(imports) > 10
    assert sorted(imports - known) == []
    private = {row for row in known if row[0].startswith(("keras.src", "tensorflow.python"))}
    assert sorted(private - imports) == []
    names = private_names()
    assert len(names) > 30
    assert sorted(names - {(name.rpartition(".")[2], path) for name, path in known}) == []


def test_a_wrong_row_is_found() -> None:
    file, test = "tfring/version.py", "tests/python/structure/test_documents.py"
    row = ("`Model.__version__`", f"`{file}`", f"`{test}::test_a_wrong_row_is_found`")
    assert rows_of("| what | where | noticed by |\n" + "| {} | {} | {} |\n".format(*row)) == [row]
    assert wrong_rows([row]) == []
    assert wrong_rows([("`Model._gone`", *row[1:])]) == [f"{file} has no _gone"]
    assert wrong_rows([(*row[:2], f"`{test}::test_gone`")]) == [f"{test} has no test_gone"]
    assert wrong_rows([(*row[:2], "nothing")]) == [f"no file or no test: {row[0]}"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_tests_that_are_named_exist(page: Path) -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)", page.read_text("utf-8"))
    gone = [
        f"{path}::{name}"
        for path, name in named
        if f"def {name}("
        not in ((ROOT / path).read_text("utf-8") if (ROOT / path).exists() else "")
    ]
    assert not gone


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text("utf-8"))
    dead = [
        link for link in links if "://" not in link and not (page.parent / link).resolve().exists()
    ]
    assert not dead


def test_every_public_package_has_reference_pages() -> None:
    stubs = (ROOT / "tfring").rglob("__init__.pyi")
    packages = [".".join(stub.parent.relative_to(ROOT).parts) for stub in stubs]
    text = (ROOT / "docs/conf.py").read_text("utf-8")
    assert INTERNAL in packages
    assert [p for p in packages if p != INTERNAL and f'"{p}": ' not in text] == []


# Has names for packages on top of tfring, and none for users.
INTERNAL = "tfring.integration"


def test_the_page_of_integration_has_each_of_its_names() -> None:
    page = (ROOT / "docs/integration.md").read_text("utf-8")
    stub = (ROOT / "tfring/integration/__init__.pyi").read_text("utf-8")
    names = re.findall(r" as (\w+)", stub)
    assert names and [name for name in names if f"`{name}`" not in page] == []


def test_every_documented_target_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    named = {
        target
        for page in PAGES
        for target in re.findall(r"`make ([a-z-]+)", page.read_text("utf-8"))
    }
    assert {"demo", "test"} <= named <= targets


def test_records_are_listed() -> None:
    folder = ROOT / "docs/adr"
    index = (folder / "README.md").read_text("utf-8")
    records = sorted(path for path in folder.glob("[0-9]*.md"))
    assert records
    assert [path.name for path in records if f"({path.name})" not in index] == []
