"""What the documents name exists: files, settings, make targets. ARCHITECTURE.md has its parts."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tfring import config

ROOT = Path(__file__).resolve().parents[3]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
ARCHITECTURE = "ARCHITECTURE.md"
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


def test_architecture_names_what_exists() -> None:
    text = (ROOT / ARCHITECTURE).read_text("utf-8")
    assert PATH.findall(text), "no path found"
    assert missing_paths(text) == []


def test_architecture_says_where_to_change_what() -> None:
    rows = changes((ROOT / ARCHITECTURE).read_text("utf-8"))
    assert rows
    assert [row for row in rows if not PATH.search(row)] == []


def test_the_way_of_one_tensor_names_files() -> None:
    files = files_of_one_tensor((ROOT / ARCHITECTURE).read_text("utf-8"))
    assert files
    assert [name for name in files if not (ROOT / name).is_file()] == []


def test_the_glossary_has_the_words_of_the_design() -> None:
    glossary = section((ROOT / ARCHITECTURE).read_text("utf-8"), "Glossary")
    assert [word for word in GLOSSARY if word not in glossary.lower()] == []


def test_a_wrong_document_is_found() -> None:
    text = """# A
`tfring/world.py`, `no/such.py`, `nowhere.py`, `ops/*/message/`, `hvd.init`, `/dev/shm`
## To change X, look in Y
| X | Y |
|---|---|
| a launcher | `tfring/launcher/cli.py` |
## The way of one tensor
`ops/sim/` and `tfring/world.py`, then `tfring/world.py`, `tfring/gone.py`
## Glossary
"""
    assert missing_paths(text) == ["no/such.py", "nowhere.py", "ops/*/message/", "tfring/gone.py"]
    assert changes(text) == ["| a launcher | `tfring/launcher/cli.py` |"]
    assert files_of_one_tensor(text) == ["tfring/world.py", "tfring/gone.py"]
    assert section(text, "Glossary") == section(text, "No such heading") == ""


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
    assert packages
    assert [name for name in packages if f'"{name}": ' not in text] == []


def test_every_setting_is_documented() -> None:
    text = (ROOT / "docs/configuration.md").read_text("utf-8")
    names = (config.RUNTIME_SETTINGS, config.PYTHON_SETTINGS, config.LAUNCHER_SETTINGS)
    known = (*(name for table in names for name in table), *config.NO_OPS)
    assert [name for name in known if f"`{name}`" not in text] == []


def test_documented_defaults_of_python_settings() -> None:
    text = (ROOT / "docs/configuration.md").read_text("utf-8")
    defaults = {
        "START_TIMEOUT": config.DEFAULT_START_TIMEOUT,
        "MESH_LIMIT": config.DEFAULT_MESH_LIMIT,
        "TIMELINE_MEGABYTES": config.DEFAULT_TIMELINE_MEGABYTES,
    }
    for name, default in defaults.items():
        assert re.search(rf"^\| `{name}`.* \({default:g}\) \|$", text, re.M), name


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
