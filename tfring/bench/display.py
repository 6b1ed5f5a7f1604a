"""Shows a run while it goes on, and writes its files: told by events, which are JSON objects.

{"event": "begin", "result": {...}, "peers": ["gloo"], "cases": 13}
{"event": "case", "label": "allreduce of 64 KiB"}
{"event": "row", "row": {...}}
{"event": "note", "text": "..."}
{"event": "error", "text": "..."}
{"event": "end"}
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

from tfring.bench.plot import write_plot
from tfring.bench.result import Result, row_from
from tfring.bench.table import LEGEND, heading, line, title
from tfring.bench.verdict import verdict

# A line of a rank that begins with this is an event, not output.
MARK = "\x1etfring-bench "


@dataclass(frozen=True)
class Files:
    """What is written besides the table; None: it is not."""

    json: str | None = None
    plot: str | None = None


class Display:
    """Used by one thread, in a `with` statement, which also ends the bar of progress.

    Args:
        files: What to write.
    """

    def __init__(self, files: Files) -> None:
        self._files = files
        self._peers: list[str] = []
        self._section = ""
        self._bar = Bar()
        self.result: Result | None = None
        self.error = ""

    def __enter__(self) -> Display:
        return self

    def __exit__(self, *exc: object) -> None:
        self._bar.stop()

    def handle(self, event: dict[str, Any]) -> None:
        """Takes an event."""
        kind = event["event"]
        if kind == "begin":
            self.result = Result(**event["result"])
            self._peers = event["peers"]
            self._bar.start(event["cases"])
            self._bar.print(f"{title(self.result)}\n{LEGEND}")
        elif kind == "case":
            self._bar.next(event["label"])
        elif kind == "row":
            self._row(event["row"])
        elif kind == "note":
            assert self.result is not None
            self.result.notes.append(event["text"])
            print(f"tfring bench: {event['text']}", file=sys.stderr, flush=True)
        elif kind == "error":
            self.error = event["text"]
        elif kind == "end":
            assert self.result is not None
            self.result.complete = True
            self._bar.print("\n".join(["", *verdict(self.result)]).rstrip())

    def _row(self, values: dict[str, Any]) -> None:
        assert self.result is not None
        row = row_from(values)
        self.result.rows.append(row)
        if row.section != self._section:
            self._section = row.section
            self._bar.print("\n".join(["", *heading(row, self._peers)]))
        self._bar.print(line(row, self._peers))

    def write(self) -> None:
        """Writes the files; of a run that was broken off what it has measured.

        Raises:
            OSError: One cannot be written.
            ValueError: The plot needs a library that is missing.
        """
        self._bar.stop()
        if self.result is None or not self.result.rows:
            return
        if self._files.json is not None:
            self.result.write(self._files.json)
        if self._files.plot is not None:
            write_plot(self.result, self._files.plot)


class Bar:
    """A bar of progress, if there is a terminal, and rich (Keras brings it)."""

    def __init__(self) -> None:
        self._progress: Any = None
        self._task: Any = None
        self._begun = False
        self._shared = False  # whether the bar and the table are on one terminal

    def start(self, cases: int) -> None:
        """Begins to show how many of the cases are done."""
        if not sys.stderr.isatty():
            return
        try:
            from rich.console import Console
            from rich.progress import Progress
        except ImportError:
            return
        self._shared = sys.stdout.isatty()
        console = Console(stderr=not self._shared)
        self._progress = Progress(console=console, transient=True, redirect_stdout=False)
        self._task = self._progress.add_task("", total=cases)
        self._progress.start()

    def next(self, label: str) -> None:
        """Says what is measured now."""
        if self._progress is not None:
            self._progress.update(self._task, advance=int(self._begun), description=label)
            self._begun = True

    def print(self, text: str) -> None:
        """Prints lines of the table, above the bar if that is on the same terminal."""
        if self._progress is not None and self._shared:
            plain = {"markup": False, "highlight": False, "emoji": False, "soft_wrap": True}
            self._progress.console.print(text, **plain)
        else:
            print(text, flush=True)

    def stop(self) -> None:
        """Takes the bar away."""
        if self._progress is not None:
            self._progress.stop()
            self._progress = None
