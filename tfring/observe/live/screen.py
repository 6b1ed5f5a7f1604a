"""The terminal while `tfring top` runs: one key at a time, and a page that is drawn anew."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator, Mapping
from types import FrameType
from typing import Any

from tfring.observe.live.overview import Overview
from tfring.observe.live.table import (
    KEYS,
    find_next_sort,
    make_page,
    needs_hosts,
    write_help,
)

# The keys for up, down, page up and page down, and how many lines or windows they move.
_MOVES = {b"\x1b[A": -1, b"k": -1, b"\x1b[B": 1, b"j": 1}
_PAGES = {b"\x1b[5~": -1, b"b": -1, b"\x1b[6~": 1, b" ": 1}


class Screen:
    """Shows a job until the user quits.

    Args:
        look: Returns the job as of now.
        actions: By key: a function that returns a text. One line is shown above the table, several
            lines in place of it.
        interval: Seconds between two looks.
    """

    def __init__(
        self,
        look: Callable[[], Overview],
        actions: Mapping[str, Callable[[], str]],
        interval: float,
    ) -> None:
        self._look = look
        self._actions = actions
        self._interval = interval
        self._hosts: bool | None = None  # not chosen yet
        self._sort = "rank"
        self._note = KEYS
        self._text: list[str] = []  # shown in place of the table, unless empty
        self._top = 0  # its first line on the screen

    def run(self) -> None:
        """Shows the job until `q`, Ctrl-C or SIGTERM; then restores the terminal."""
        from rich.console import Console
        from rich.live import Live

        console = Console()
        with (
            _keys() as descriptor,
            Live(console=console, screen=True, auto_refresh=False) as live,
        ):
            due = 0.0
            view = None
            while True:
                now = time.monotonic()
                if view is None or now >= due:
                    view = self._look()
                    due = now + self._interval
                live.update(self._page(view, console.width, console.height), refresh=True)
                key = _read_key(descriptor, max(0.0, due - time.monotonic()))
                if key in (b"q", b"Q") and not self._text:
                    return
                if key:
                    self._press(key, console.width, console.height)

    def _page(self, view: Overview, width: int, height: int) -> Any:
        from rich.text import Text

        if not self._text:
            # Besides the ranks: four lines above, and a few below.
            most = max(1, height - 8)
            if self._hosts is None and needs_hosts(view, most):
                self._hosts = True
            hosts = bool(self._hosts)
            return make_page(view, width, self._note, most, hosts=hosts, sort=self._sort)
        lines = self._text[self._top : self._top + height - 2]
        place = f"{self._top + 1}-{self._top + len(lines)} of {len(self._text)} lines"
        keys = f"{place}   j k down and up   space b next and previous page   q back"
        return Text("\n".join([*lines, "", keys]), no_wrap=True)

    def _press(self, key: bytes, width: int, height: int) -> None:
        if self._text:
            step = _MOVES.get(key, 0) + _PAGES.get(key, 0) * (height - 3)
            if step == 0:
                self._text = []
            self._top = max(0, min(self._top + step, len(self._text) - height + 2))
            return
        one = key.decode("ascii", "replace")
        shown = KEYS
        if one == "?":
            shown = write_help()
        elif one in ("<", ">"):
            step = 1 if one == ">" else -1
            self._sort = find_next_sort(self._sort, width, step, hosts=bool(self._hosts))
        elif one == "h":
            self._hosts = not self._hosts
        elif one in self._actions:
            try:
                shown = self._actions[one]()
            except (OSError, ValueError) as error:
                shown = str(error)
        lines = shown.splitlines()
        if len(lines) > 1:
            self._text, self._top = lines, 0
        else:
            self._note = shown


@contextlib.contextmanager
def _keys() -> Iterator[int]:
    """Lets the terminal deliver keys at once and not show them; undoes that at the end.

    Raises:
        OSError: Standard input is no terminal.
    """
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    old_handler = signal.signal(signal.SIGTERM, _exit)
    try:
        tty.setcbreak(descriptor)
        yield descriptor
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
        signal.signal(signal.SIGTERM, old_handler)


def _exit(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


def _read_key(descriptor: int, seconds: float) -> bytes:
    """Returns the next key, which may be several bytes; b"" when time is up."""
    ready, _, _ = select.select([descriptor], [], [], seconds)
    if not ready:
        return b""
    data = os.read(descriptor, 1)
    while data[:1] == b"\x1b" and len(data) < 8 and select.select([descriptor], [], [], 0.02)[0]:
        data += os.read(descriptor, 1)
        if data[-1:].isalpha() or data[-1:] == b"~":
            break
    return data or b"q"  # the terminal is gone
