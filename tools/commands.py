"""Writes docs/commands.md: the options of each command, from its parser.

`make settings` runs it, too. A test compares the page with the parsers.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tfring.launch.cli import GROUPS, parser_of  # noqa: E402

PAGE = ROOT / "docs/commands.md"
_HEAD = """\
# Commands

`tfring COMMAND --help` prints the options of one command. This page has them all.
[`tfring run`](launcher.md) explains what the launcher does with its options.
"""


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


def main() -> int:
    PAGE.write_text(page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
