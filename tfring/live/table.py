"""What `tfring top` shows, with rich."""

from __future__ import annotations

import sys
from typing import Any

from tfring.live.overview import Overview, RankView, ranks_text

MISSING = (
    "tfring top needs the package rich, which comes with Keras: pip install 'tfring[top]'; --json "
    "does without it"
)
_WIDE = 250
KEYS = "q quit   d dump the records   s stacks"
_STYLES = {"running": "green", "stopped": "yellow", "gone": "red", "has failed": "red"}


def require_rich() -> None:
    """Checks that rich is there.

    Raises:
        ValueError: It is not; the message is for the user.
    """
    try:
        import rich  # noqa: F401
    except ImportError as error:
        raise ValueError(MISSING) from error


def page(view: Overview, note: str = "", most: int | None = None) -> Any:
    """Returns the whole page: a header, the table, and what is to be said below.

    Args:
        view: The job.
        note: A line at the end, "" for none.
        most: Show at most so many ranks; those that do not run come first. None: all.
    """
    from rich.console import Group
    from rich.text import Text

    shown = view.ranks
    if most is not None and len(shown) > most:
        first = sorted(shown, key=lambda rank: rank.doing == "running")
        shown = sorted(first[: max(1, most)], key=lambda rank: rank.row.rank)
    below = []
    if len(shown) < len(view.ranks):
        below.append(f"{len(view.ranks) - len(shown)} more ranks, for which the window is too low")
    if view.missing:
        below.append(f"no record here of {ranks_text(view.missing)}: --host names other hosts")
    if view.trouble:
        below.append(view.trouble)
    lines = [Text(_plain(line)) for line in [*below, *filter(None, [note])]]
    return Group(Text(header(view), style="bold"), _table(shown), *lines)


def print_page(view: Overview) -> None:
    """Prints the page once.

    Args:
        view: The job.
    """
    from rich.console import Console

    # Without a terminal there is no width to keep to: one line per rank, for scripts.
    console = Console() if sys.stdout.isatty() else Console(width=_WIDE)
    console.print(page(view))


def header(view: Overview) -> str:
    """Returns the first line: the job, and the numbers of all ranks together."""
    parts = [f"job {view.job}", f"{len(view.ranks)} of {view.size} ranks"]
    parts.append(f"efficiency {_percent(view.efficiency)}")
    if view.samples is not None:
        parts.append(f"{_number(view.samples)} samples/s")
    parts.append(f"{_bytes(view.bytes)}/s per rank")
    return "   ".join(parts)


def _table(ranks: list[RankView]) -> Any:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, header_style="reverse", padding=(0, 1), expand=False)
    for name in ("rank", "step", "step/s", "samples/s", "awaited", "memory", "wait", "run"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("host", no_wrap=True, max_width=14)
    table.add_column("state", overflow="fold")
    table.add_column("last collective", overflow="fold")
    for view in ranks:
        row = view.row
        style = _STYLES.get(view.doing, "dim" if view.doing == "has left" else "yellow")
        table.add_row(
            *(str(row.rank), str(row.step) if row.step >= 0 else "-", _number(view.steps)),
            *(_number(view.samples), _percent(view.awaited), _bytes(row.memory or None)),
            *(str(row.waiting), str(row.running), Text(_plain(row.host))),
            *(Text(_plain(view.doing), style=style), Text(_plain(_last(view)))),
        )
    return table


def _last(view: RankView) -> str:
    if not view.row.last:
        return "none yet"
    age = (view.row.time - view.row.last_at) / 1e9
    return f"{age:.0f} s ago: {view.row.last}" if age >= 2 else view.row.last


def _plain(text: str) -> str:
    """Returns a text of the program without what would steer the terminal."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.2f}" if value < 10 else f"{value:.0f}"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.0f} %"


def _bytes(value: float | None) -> str:
    if value is None:
        return "-"
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{_number(value) if unit != 'B' else round(value)} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"
