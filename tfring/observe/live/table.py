"""The page of `tfring top`, with rich."""

from __future__ import annotations

import math
import sys
from statistics import fmean
from typing import Any

from tfring.observe.live.columns import (
    COLUMNS,
    STATES,
    Column,
    Line,
    format_loss,
    format_number,
    format_percent,
    group_by_host,
)
from tfring.observe.live.overview import Overview
from tfring.observe.recorder.places import short
from tfring.runtime.texts.plain import plain
from tfring.runtime.texts.ranks import ranks_text
from tfring.runtime.texts.times import time_text
from tfring.runtime.texts.words import counted

MISSING = (
    "tables need the package rich, which comes with Keras: pip install 'tfring[top]', or use --json"
)
_WIDE = 250
# From this width on the state is complete and columns are further apart.
_ROOMY = 120
KEYS = "q quit   ? help   < > sort   h hosts   s stacks   d dump"


def require_rich() -> None:
    """Raises ValueError, with what to install, if there is no rich."""
    try:
        import rich  # noqa: F401
    except ImportError as error:
        raise ValueError(MISSING) from error


def make_page(
    view: Overview,
    width: int,
    note: str = "",
    most: int | None = None,
    *,
    hosts: bool = False,
    sort: str = "rank",
) -> Any:
    """Returns the page: the verdict, a header, the table, and below it what may be cut off.

    Args:
        view: The job.
        width: Of the window, in letters; a narrow one has fewer columns.
        note: The line above the table; "": none.
        most: The largest number of lines of the table; ranks that run are left out first. None: any
            number.
        hosts: Whether there is a line for each host in place of each rank.
        sort: The column by which lines are sorted.
    """
    from rich.console import Group
    from rich.text import Text

    head = write_header(view)
    if most is not None:
        most = max(1, most - -(-len(view.verdict) // width))
    lines, below = _lines(view, most, hosts)
    if view.missing:
        below.append(f"no record here of {ranks_text(view.missing)}: --host names other hosts")
    if view.trouble and not view.verdict:
        below.append(view.trouble)
    above = [Text(plain(view.verdict), style="bold red")] if view.verdict else []
    above += [Text(line, style="bold", no_wrap=True, overflow="ellipsis") for line in head]
    above += [Text(plain(note))] if note else []
    table = _table(_sorted(lines, sort), width, hosts, sort)
    return Group(*above, table, *(Text(plain(one)) for one in below))


def needs_hosts(view: Overview, most: int) -> bool:
    """Tells whether ranks of several hosts are more than there are lines."""
    return len(view.ranks) > most and len({rank.row.host for rank in view.ranks}) > 1


def print_page(view: Overview) -> None:
    """Prints the page once."""
    from rich.console import Console

    # Without a terminal: one line per rank, for scripts.
    console = Console() if sys.stdout.isatty() else Console(width=_WIDE)
    console.print(make_page(view, console.width))


def write_header(view: Overview) -> list[str]:
    """Returns the first lines: how far the job is, and the numbers of all ranks together."""
    rows = [rank.row for rank in view.ranks]
    hosts = len({row.host for row in rows})
    count = f"{len(rows)} of {view.size} ranks" if view.missing else counted(view.size, "rank")
    where = [f"job {short(view.job)}", f"{count} on {counted(hosts, 'host')}", *_progress(view)]
    speed = []
    losses = [row.loss for row in rows if row.loss is not None]
    if losses:
        speed.append(f"loss {format_loss(fmean(losses))}")
    if view.samples is not None:
        speed.append(f"{format_number(view.samples)} samples/s")
    for name, shares in (
        ("input", [rank.input for rank in view.ranks]),
        ("callbacks", [rank.callbacks for rank in view.ranks]),
        ("exchange", [rank.exchange for rank in view.ranks]),
    ):
        known = [share for share in shares if share is not None]
        if known:
            speed.append(f"{name} {format_percent(fmean(known))}")
    return ["   ".join(part) for part in (where, speed) if part]


def write_help() -> str:
    """Returns what the keys do and what the columns mean."""
    keys = {
        "q": "quit",
        "<  >": "sort by the column to the left or right, the largest first; * marks it",
        "h": "one line per host or per rank",
        "s": "stacks of all ranks: at which line each is",
        "d": "dump: save all that is known of the job in one file, for a bug report",
        "?": "this help",
    }
    lines = ["Keys", *(f"  {key:10} {about}" for key, about in keys.items())]
    lines += ["", "Columns (a wider window has more of them; - is unknown)"]
    lines += [f"  {one.name:10} {one.about}" for one in COLUMNS]
    return "\n".join(lines)


def _progress(view: Overview) -> list[str]:
    """Returns how far `fit` is, by the rank that is furthest behind."""
    training = [rank for rank in view.ranks if rank.row.record["epoch"]]
    if not training:
        return []
    last = min(training, key=lambda rank: rank.row.step)
    record, step = last.row.record, last.row.step
    parts = [f"epoch {record['epoch']} of {record['epochs']}"]
    end = int(record["last_step"])
    if not 0 < step <= end:
        return parts
    parts.append(f"step {step} of {end}")
    if last.steps and step < end:
        parts.append(f"{time_text((end - step) / last.steps)} left")
    return parts


def _lines(view: Overview, most: int | None, hosts: bool) -> tuple[list[Line], list[str]]:
    """Returns the lines of the table, and a note on those that are left out."""
    lines = group_by_host(view.ranks) if hosts else [Line((rank,)) for rank in view.ranks]
    what, count = ("hosts" if hosts else "ranks"), len(lines)
    if most is not None and count > most:
        lines = sorted(lines, key=lambda line: line.worst == "running")[:most]
    more = count - len(lines)
    below = [f"{more} more {what} do not fit into the window"] if more else []
    return lines, below


def _sorted(lines: list[Line], sort: str) -> list[Line]:
    """Returns the lines by a column: numbers descend, names and ranks ascend, unknown is last."""
    column = next(one for one in COLUMNS if one.name == sort)
    lines = sorted(lines, key=lambda line: line.ranks)
    known = [line for line in lines if not _unknown(column.value(line))]
    known.sort(key=column.value, reverse=column.right and sort != "rank")
    return known + [line for line in lines if _unknown(column.value(line))]


def _unknown(value: Any) -> bool:
    return value is None or (isinstance(value, float) and math.isnan(value))


def find_next_sort(sort: str, width: int, step: int, *, hosts: bool = False) -> str:
    """Returns the column to sort by that is `step` places to the right."""
    names = [column.name for column in _shown(width, hosts)]
    at = names.index(sort) if sort in names else 0
    return names[(at + step) % len(names)]


def _shown(width: int, hosts: bool) -> list[Column]:
    return [
        column
        for column in COLUMNS
        if width >= column.least_width or (hosts and column.name == "host")
    ]


def _table(lines: list[Line], width: int, hosts: bool, sort: str) -> Any:
    from rich.table import Table
    from rich.text import Text

    gap = 2 if width >= _ROOMY else 1
    table = Table(box=None, header_style="reverse", padding=(0, gap, 0, 0), pad_edge=False)
    columns = _shown(width, hosts)
    for column in columns:
        table.add_column(
            f"{column.name}*" if column.name == sort != "rank" else column.name,
            justify="right" if column.right else "left",
            no_wrap=column.right,  # the others become narrower first
        )
    for line in lines:
        cells = []
        for column in columns:
            style = _style(line) if column.name == "state" else ""
            text = plain(_cell(column, line, width))
            cells.append(Text(text, style=style, no_wrap=True, overflow="ellipsis"))
        table.add_row(*cells)
    return table


def _cell(column: Column, line: Line, width: int) -> str:
    if column.name == "rank":
        return line.name
    if column.name == "state" and width >= _ROOMY:
        return line.doing
    value = column.value(line)
    return "-" if value is None else column.text(value)


def _style(line: Line) -> str:
    calm = {"running": "green", "has left": "dim"}.get(line.worst)
    return calm or ("red" if line.worst in STATES[:2] else "yellow")
