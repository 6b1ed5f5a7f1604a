"""``tfring help``: prints pages of the documentation."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tfring.launch.hosts.errors import UsageError
from tfring.launch.pages import pages, show_long
from tfring.observe.json_output import add_json_option, print_json
from tfring.runtime.settings.table import SETTINGS


@dataclass(frozen=True)
class Answer:
    """A part of the documentation.

    Attributes:
        pages: The titles of all pages by name, if nothing was asked for.
        text: What the pages say, as Markdown.
    """

    pages: dict[str, str]
    text: str


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the command's options."""
    parser.description = (
        "Prints a page of the documentation. With more words only the sections whose headings "
        "have them; a word that is no page is searched for on all pages."
    )
    parser.epilog = "tfring help\ntfring help failures\ntfring help TFRING_CHECK_VALUES"
    add_json_option(parser, Answer)
    parser.add_argument("topic", nargs="*", metavar="TOPIC", help="a page, a setting or words")


def run(options: argparse.Namespace) -> int:
    """Prints a page, or the list of pages; returns 0. UsageError: no page says anything of it."""
    words: Sequence[str] = options.topic
    if options.json:
        print_json(answer(words))
    elif not words:
        show_long(_topics())
    elif (text := _setting(words[0])) and len(words) == 1:
        print(text)
    else:
        show_long(_rendered(_answer(words)))
    return 0


def answer(words: Sequence[str]) -> Answer:
    """Returns what some words ask for; UsageError: no page says anything of them."""
    if not words:
        return Answer({name: _title(path) for name, path in pages().items()}, "")
    text = _setting(words[0]) if len(words) == 1 else ""
    return Answer({}, text or _answer(words))


def _topics() -> str:
    """Returns names and titles of the pages, as the front page of the documentation lists them."""
    names = pages()
    width = max(map(len, names), default=0)
    lines = ["tfring help TOPIC prints one of these pages:"]
    for word in names["index"].read_text("utf-8").splitlines():
        if word.startswith(":caption: "):
            lines += ["", f"{word.removeprefix(':caption: ')}:"]
        elif word in names:
            lines.append(f"  {word:{width}}  {_title(names[word])}")
    return "\n".join(lines)


def _title(path: Path) -> str:
    with path.open(encoding="utf-8") as file:
        return file.readline().lstrip("# ").strip()


def _setting(word: str) -> str:
    """Returns what a setting does; "": the word is none."""
    setting = next((one for one in SETTINGS.values() if one.variable == word.upper()), None)
    if setting is None:
        return ""
    default = f"Default: {setting.shown_default}. " if setting.shown_default else ""
    return (
        f"{setting.variable}: {setting.plain_meaning}\n{default}It has to be {setting.allowed}.\n"
        "All settings: tfring help configuration"
    )


def _answer(words: Sequence[str]) -> str:
    """Returns a page, some of its sections, or which sections have the words."""
    names = pages()
    name, rest = words[0].lower(), words[1:]
    if name in names and not rest:
        return names[name].read_text("utf-8")
    if name in names:
        found = [text for _, heading, text in _sections(name, names[name]) if _has(heading, rest)]
        if found:
            return "\n".join(found)
        raise UsageError(f"no heading of the page {name} has the words {' '.join(rest)}")
    every = [section for one, path in names.items() for section in _sections(one, path)]
    hits = [one for one in every if _has(one[1], words)] or [
        one for one in every if _has(one[2], words)
    ]
    if not hits:
        raise UsageError(f"no page has the words {' '.join(words)}. All pages: tfring help")
    if len(hits) == 1:
        return hits[0][2]
    lines = [f"- tfring help {name}: {heading}" for name, heading, _ in hits]
    return "\n".join([f"# Pages about {' '.join(words)}", "", *lines, ""])


def _sections(name: str, path: Path) -> list[tuple[str, str, str]]:
    """Returns the page's name, the heading and the text of each section."""
    parts = re.split(r"^(?=## )", path.read_text("utf-8"), flags=re.MULTILINE)
    return [(name, part.splitlines()[0].lstrip("# "), part) for part in parts if part.strip()]


def _has(text: str, words: Sequence[str]) -> bool:
    return all(re.search(rf"\b{re.escape(word)}", text, re.IGNORECASE) for word in words)


def _rendered(text: str) -> str:
    """Returns a page as Markdown whose links are words."""
    text = re.sub(r"^<!--.*-->\n", "", text, flags=re.MULTILINE)
    return re.sub(r"!?\[([^\]]+)\]\(([^)\s]+)\)", _plain_link, text)


def _plain_link(link: re.Match[str]) -> str:
    """Returns what a link leads to in words; for files that the wheel lacks its text alone."""
    text, target = link[1], link[2].partition("#")[0]
    if target.startswith("http"):
        return f"{text} ({link[2]})"
    page = target.removesuffix(".md")
    return f"{text} (tfring help {page})" if page in pages() else text
