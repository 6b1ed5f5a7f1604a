"""What `tfring top` shows, with rich."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

from tfring.live.overview import Overview, RankView
from tfring.recorder.places import short
from tfring.texts.plain import plain
from tfring.texts.ranks import ranks_text
from tfring.texts.sizes import size_text

MISSING = (
    "tfring top needs the package rich, which comes with Keras: pip install 'tfring[top]'; --json "
    "does without it"
)
_WIDE = 250
_FOLDED = 3  # lines of a rank whose state does not go into one
KEYS = "q quit   d dump the records   s stacks"


def require_rich() -> None:
    """Checks that rich is there.

    Raises:
        ValueError: It is not; the message is for the user.
    """
    try:
        import rich  # noqa: F401
    except ImportError as error:
        raise ValueError(MISSING) from error


def page(view: Overview, width: int, note: str = "", most: int | None = None) -> Any:
    """Returns the whole page: the verdict, a header, the table, and below what may be cut off.

    Args:
        view: The job.
        width: Of the window, in letters; what is least needed is left out of a narrow one.
        note: The second line; "" for none.
        most: The table gets at most so many lines: long states are cut off if need be, then ranks
            are left out, first those that run. None: any number.
    """
    from rich.console import Group
    from rich.text import Text

    shown = view.ranks
    if most is not None:
        most = max(1, most - -(-len(view.verdict) // width))
    if most is not None and len(shown) > most:
        first = sorted(shown, key=lambda rank: rank.doing == "running")
        shown = sorted(first[: max(1, most)], key=lambda rank: rank.row.rank)
    fold = most is None or _FOLDED * len(shown) <= most
    below = []
    if len(shown) < len(view.ranks):
        below.append(f"{len(view.ranks) - len(shown)} more ranks, for which the window is too low")
    if view.missing:
        below.append(f"no record here of {ranks_text(view.missing)}: --host names other hosts")
    if view.trouble and not view.verdict:
        below.append(view.trouble)
    above = [Text(plain(view.verdict), style="bold red")] if view.verdict else []
    above.append(Text(header(view), style="bold"))
    above += [Text(plain(note))] if note else []
    end = [Text(plain(line)) for line in below]
    return Group(*above, _table(shown, width, fold), *end)


def print_page(view: Overview) -> None:
    """Prints the page once.

    Args:
        view: The job.
    """
    from rich.console import Console

    # Without a terminal there is no width to keep to: one line per rank, for scripts.
    console = Console() if sys.stdout.isatty() else Console(width=_WIDE)
    console.print(page(view, console.width))


def header(view: Overview) -> str:
    """Returns the first line: the job, and the numbers of all ranks together."""
    parts = [f"job {short(view.job)}", f"{len(view.ranks)} of {view.size} ranks"]
    parts.append(f"efficiency {_percent(view.efficiency)}")
    if view.samples is not None:
        parts.append(f"{_number(view.samples)} samples/s")
    parts.append(f"{_bytes(view.bytes)}/s per rank")
    if view.locked or view.lock_rounds:
        state = "locked" if view.locked else "not locked"
        parts.append(f"schedule {state}, {view.lock_rounds} rounds in locks")
    return "   ".join(parts)


def _table(ranks: list[RankView], width: int, fold: bool) -> Any:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, header_style="reverse", padding=(0, 1), expand=False)
    columns = [column for column in _COLUMNS if width >= column.least_width]
    for column in columns:
        justify: Literal["left", "right"] = "right" if column.right else "left"
        # What may be wrapped is what becomes narrow first; a cell below says whether it is wrapped.
        table.add_column(column.name, justify=justify, no_wrap=column.right, overflow="fold")
    for view in ranks:
        calm = "green" if view.doing == "running" else "dim" if view.doing == "has left" else ""
        style = calm or ("red" if view.doing in ("gone", "has failed") else "yellow")
        cells = []
        for column in columns:
            cell = Text(plain(column.text(view)), style=style if column.name == "state" else "")
            if not fold:
                cell.no_wrap, cell.overflow = True, "ellipsis"
            cells.append(cell)
        table.add_row(*cells)
    return table


def _last(view: RankView) -> str:
    if not view.row.last:
        return "none yet"
    age = (view.row.time - view.row.last_at) / 1e9
    return f"{age:.0f} s ago: {view.row.last}" if age >= 2 else view.row.last


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.2f}" if value < 10 else f"{value:.0f}"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.0f} %"


def _bytes(value: float | None) -> str:
    return "-" if value is None else size_text(value)


class _Column(NamedTuple):
    name: str
    text: Callable[[RankView], str]
    least_width: int = 0  # of the window, to have this column
    right: bool = True  # numbers; else text, which is folded


_COLUMNS = (
    _Column("rank", lambda view: str(view.row.rank)),
    _Column("step", lambda view: str(view.row.step) if view.row.step >= 0 else "-"),
    _Column("step/s", lambda view: _number(view.steps)),
    _Column("samples/s", lambda view: _number(view.samples), 90),
    _Column("awaited", lambda view: _percent(view.awaited)),
    _Column("memory", lambda view: _bytes(view.row.memory or None), 70),
    _Column("wait", lambda view: str(view.row.waiting)),
    _Column("run", lambda view: str(view.row.running)),
    _Column("host", lambda view: view.row.host, 110, right=False),
    _Column("state", lambda view: view.doing, right=False),
    _Column("last collective", _last, 140, right=False),
)
