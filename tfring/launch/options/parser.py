"""The parser of one command of ``tfring``: its help, and what it says of a wrong option."""

from __future__ import annotations

import argparse
import difflib
import functools
import shutil
import sys
import textwrap
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

from tfring.launch.pages import show_long

_WIDEST = 100


class Parser(argparse.ArgumentParser):
    """Reads the words of one command.

    Its `epilog` holds examples, one a line. They stand above the options, where people look first.
    """

    def __init__(self, command: str) -> None:
        self._width = min(shutil.get_terminal_size().columns, _WIDEST) - 2
        kind = functools.partial(argparse.RawDescriptionHelpFormatter, width=self._width)
        super().__init__(prog=f"tfring {command}", allow_abbrev=False, formatter_class=kind)

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Returns the options; ends the program where one is wrong or unknown.

        They also have the `parser` and the `words` that it has read.
        """
        options, unknown = self.parse_known_args(args, namespace)
        if unknown:
            self.error(self._unknown(unknown[0]))
        options.parser, options.words = self, args
        return options

    def error(self, message: str) -> NoReturn:
        """Says what is wrong, and how the command is used; ends the program with 2."""
        print(f"{self.prog}: {message}", file=sys.stderr)
        print(f"{self.format_usage()}All options: {self.prog} --help", file=sys.stderr)
        sys.exit(2)

    def format_help(self) -> str:
        """Returns the help: usage, description, examples, options."""
        description, epilog = self.description, self.epilog
        parts = [textwrap.fill(description or "", self._width)]
        if epilog:
            parts.append(f"examples:\n{textwrap.indent(epilog, '  ')}")
        self.description, self.epilog = "\n\n".join(parts), None
        try:
            return super().format_help()
        finally:
            self.description, self.epilog = description, epilog

    def print_help(self, file: Any = None) -> None:
        """Prints the help; on a terminal page by page."""
        if file is None:
            show_long(self.format_help())
        else:
            super().print_help(file)

    def _unknown(self, word: str) -> str:
        if not word.startswith("-"):
            return f"nothing is expected where {word} stands"
        # argparse has no public way to ask which options there are.
        names = self._option_string_actions
        shown = [name for name in names if names[name].help is not argparse.SUPPRESS]
        return f"there is no option {word.partition('=')[0]}.{did_you_mean(word, shown)}"


def did_you_mean(word: str, names: Iterable[str]) -> str:
    """Returns " Did you mean ...?" with the name that is most like a word; "": none is."""
    close: Sequence[str] = difflib.get_close_matches(word.partition("=")[0], list(names), n=1)
    return f" Did you mean {close[0]}?" if close else ""
