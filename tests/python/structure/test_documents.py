"""What the documents name exists: files, settings, make targets."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tfring import config

ROOT = Path(__file__).resolve().parents[3]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
MAX_RECORD_LINES = 80


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text("utf-8"))
    dead = [
        link for link in links if "://" not in link and not (page.parent / link).resolve().exists()
    ]
    assert not dead


def test_every_setting_is_documented() -> None:
    text = (ROOT / "docs/configuration.md").read_text("utf-8")
    known = (*config.RUNTIME_SETTINGS, *config.PYTHON_SETTINGS, *config.LAUNCHER_SETTINGS)
    assert [name for name in known if f"`{name}`" not in text] == []


def test_every_documented_target_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    named = {
        target
        for page in PAGES
        for target in re.findall(r"`make ([a-z-]+)", page.read_text("utf-8"))
    }
    assert {"demo", "test"} <= named <= targets


def test_records_are_short_and_listed() -> None:
    folder = ROOT / "docs/adr"
    index = (folder / "README.md").read_text("utf-8")
    records = sorted(path for path in folder.glob("[0-9]*.md"))
    assert records
    assert [path.name for path in records if f"({path.name})" not in index] == []
    long = [path.name for path in records if path.read_text("utf-8").count("\n") > MAX_RECORD_LINES]
    assert long == []
