"""Writes docs/commands.md, the options of each command, and docs/json.md, what --json prints.

They are made from parsers and dataclasses. `make settings` runs it, too. Tests compare the pages.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import inspect
import re
import sys
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tfring.launch.cli import GROUPS, MODULES, parser_of  # noqa: E402
from tfring.observe.explain.causes import Cause  # noqa: E402

PAGE = ROOT / "docs/commands.md"
JSON_PAGE = ROOT / "docs/json.md"
_HEAD = """\
# Commands

`tfring COMMAND --help` prints the options of one command. This page has them all.
[`tfring run`](launcher.md) explains what the launcher does with its options.
"""

_JSON_HEAD = """\
# What --json prints

With `--json` a command prints one JSON object on one line, and nothing else on standard output.
`tfring top --json` prints one at each look. If a command fails, it prints a sentence on standard
error, no object, and ends with code 2. The tools of [`tfring mcp`](assistants.md) return the same
objects.

Keys stay as they are; new ones may come. Types are those of Python: `list[int]` is a list of
numbers, `dict[str, float]` an object of names with numbers, `None` is `null`. JSON has no NaN:
`"nan"`, `"inf"` and `"-inf"` stand for it and for infinity.
"""
# Commands that print no object, and what they do instead.
WITHOUT_JSON = {
    "bench": "With `--json FILE` it writes its result into a file: [Benchmarks](benchmarks.md).",
    "mcp": "It speaks JSON-RPC on standard output: [Assistants](assistants.md).",
    "coordinator": "It logs what happens. `tfring run --events FILE` writes this as lines of JSON.",
}


def page() -> str:
    """Returns the whole page."""
    parts = [_HEAD, *_overview()]
    for commands in GROUPS.values():
        for name in commands:
            parts += _command(name)
    return "\n".join(parts)


def _overview() -> Iterator[str]:
    yield "| command | what it does |\n|---|---|"
    for commands in GROUPS.values():
        for name, (_, about) in commands.items():
            yield f"| [`tfring {name}`](#tfring-{name}) | {about} |"
    yield ""


def _command(name: str) -> Iterator[str]:
    parser = parser_of(name)
    yield f"## tfring {name}\n\n{_text(parser.description or '')}\n"
    if parser.epilog:
        yield f"```\n{parser.epilog.strip()}\n```\n"
    for number, group in enumerate(parser._action_groups):
        shown = [action for action in group._group_actions if _is_shown(action)]
        # argparse's help, with the defaults filled in.
        rows = [_row(one, parser._get_formatter()._expand_help(one)) for one in shown]
        if not rows:
            continue
        if number > 1:  # not argparse's own two groups
            yield f"**{group.title}.** {_text(group.description or '')}".rstrip() + "\n"
        yield "| option | meaning |\n|---|---|"
        yield from rows
        yield ""


def _is_shown(action: argparse.Action) -> bool:
    return action.help is not argparse.SUPPRESS and not isinstance(action, argparse._HelpAction)


def _row(action: argparse.Action, meaning: str) -> str:
    value = action.metavar or ("{" + ",".join(action.choices) + "}" if action.choices else "")
    value = " ".join(value) if isinstance(value, tuple) else value
    if not action.option_strings:
        words = f"`{value or action.dest}`"
    elif action.nargs == 0:
        words = ", ".join(f"`{name}`" for name in action.option_strings)
    else:
        value = value or action.dest.upper()
        words = ", ".join(f"`{name} {value}`" for name in action.option_strings)
    return f"| {_cell(words)} | {_cell(_text(meaning))} |"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _text(text: str) -> str:
    """Returns a help text as one line, with links to the pages that it names."""

    def link(found: re.Match[str]) -> str:
        is_page = (PAGE.parent / f"{found[1]}.md").exists()
        return f"[`tfring help {found[1]}`]({found[1]}.md)" if is_page else found[0]

    return re.sub(r"tfring help ([a-z_]+)", link, " ".join(text.split()))


def answer_of(name: str) -> Any:
    """Returns the dataclass of what a command prints with --json; None: it prints none."""
    return getattr(importlib.import_module(MODULES[name]), "Answer", None)


def json_page() -> str:
    """Returns the page of what --json prints."""
    parts = [_JSON_HEAD]
    for name in MODULES:
        parts.append(f"## tfring {name}\n")
        if (answer := answer_of(name)) is None:
            parts.append(f"{WITHOUT_JSON[name]}\n")
            continue
        for kind in kinds_in(answer):
            parts += _table(kind, "" if kind is answer else f"`{kind.__name__}`: ")
        if name == "explain":
            parts.append("| cause | what is wrong |\n|---|---|")
            parts += [f"| `{one.name}` | {one.value} |" for one in Cause] + [""]
    return "\n".join(parts)


def kinds_in(kind: Any) -> list[Any]:
    """Returns a dataclass and those in its fields, each once."""
    if dataclasses.is_dataclass(kind):
        inside = typing.get_type_hints(kind).values()
        found = [kind, *(one for hint in inside for one in kinds_in(hint))]
        return list(dict.fromkeys(found))
    return [one for part in typing.get_args(kind) for one in kinds_in(part)]


def meanings(kind: Any) -> dict[str, str]:
    """Returns what the docstring of a dataclass says of each field."""
    _, _, text = (inspect.getdoc(kind) or "").partition("Attributes:\n")
    found = re.findall(r"^    (\w+): (.*(?:\n        .*)*)", text, re.MULTILINE)
    return {name: " ".join(meaning.split()) for name, meaning in found}


def _table(kind: Any, begin: str) -> Iterator[str]:
    about = (inspect.getdoc(kind) or "").partition("\n\nAttributes:")[0]
    yield f"{begin}{about}\n\n| key | type | meaning |\n|---|---|---|"
    told = meanings(kind)
    for field in dataclasses.fields(kind):
        shape = re.sub(r"tuple\[(\w+|tuple\[.*?\]), \.\.\.\]", r"list[\1]", str(field.type))
        shape = re.sub(r"tuple\[(\w+), \.\.\.\]", r"list[\1]", shape)
        yield f"| `{field.name}` | `{_cell(shape)}` | {_cell(told[field.name])} |"
    yield ""


def main() -> int:
    PAGE.write_text(page(), encoding="utf-8")
    JSON_PAGE.write_text(json_page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
