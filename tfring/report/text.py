"""A report as tables in a terminal."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, TextIO

import numpy as np

from tfring.recorder.places import short
from tfring.report.summary import RankSummary, Report
from tfring.texts.ranks import ranks_text
from tfring.texts.sizes import size_text

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

# Of more ranks, only those are listed that the others have waited for most.
LISTED = 32


def print_report(report: Report, file: TextIO, verdict: str = "") -> None:
    """Prints a report, as wide as the terminal.

    Args:
        report: What to print.
        file: Where to; what is no terminal gets lines of up to 120 characters.
        verdict: What is wrong with the job, which comes first; "": nothing.

    Raises:
        ImportError: There is no rich.
    """
    from rich.console import Console

    console = Console(file=file, width=None if file.isatty() else 120)
    if verdict:
        console.print(verdict, style="bold red", markup=False, highlight=False)
        console.print()
    show(report, console)


def show(report: Report, console: Console) -> None:
    """As `print_report`, on a console of rich."""
    for line in sentences(report):
        console.print(line, soft_wrap=True, markup=False, highlight=False)
    console.print()
    console.print(time_table(report))
    console.print()
    console.print(traffic_table(report))


def sentences(report: Report) -> list[str]:
    """Returns what is to be said about a job, one sentence or two for each line."""
    size, missing = report.size, report.missing
    lines = [f"Job {short(report.job)}: {size} rank{'' if size == 1 else 's'}"]
    if missing:
        lines[0] += f"; no record of {ranks_text(missing)}"
    steps = report.steps
    efficiency = steps.efficiency
    if efficiency is None:
        lines.append("The records hold no complete training step of all ranks.")
    else:
        waiting, exposed = float(steps.waiting.sum()), float(steps.exposed.sum())
        total = float(steps.total.sum())
        lines.append(
            f"Steps {steps.number[0]} to {steps.number[-1]}: "
            f"{_ms(float(np.median(steps.total)))} per step (median). Efficiency "
            f"{efficiency:.1%}: {waiting / total:.1%} of the time was waiting for other ranks, "
            f"{exposed / total:.1%} was communication that no computation hid."
        )
    slowest = report.slowest
    if slowest is not None and len(steps.number):
        lines.append(
            f"The others waited longest for rank {slowest.rank} ({slowest.host}): "
            f"{_ms(slowest.late / len(steps.number))} per step."
        )
    if report.always_slow is not None:
        lines.append(f"Rank {report.always_slow} has been slower than the others all along.")
    lines += [f"{one.text()[0].upper()}{one.text()[1:]}." for one in report.slowdowns]
    lines += _locks(report)
    lines += [f"Rank {rank} noted: {text}" for rank, text in report.notes]
    return lines


def _locks(report: Report) -> list[str]:
    """Says how much was run in locks of the schedule; all ranks count the same."""
    locks = max((rank.locks for rank in report.ranks), default=0)
    if not locks:
        return []
    rounds = max(rank.lock_rounds for rank in report.ranks)
    line = f"The schedule was locked {_times(locks)}, for {rounds:,} rounds in all."
    if report.unlocked:
        line += f" Last recorded: {report.unlocked}."
    return [line]


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count:,} times"


def time_table(report: Report) -> Table:
    """Returns where the time of each rank goes; medians per step."""
    from rich.text import Text

    table = _table("Time per step, in ms (medians)")
    for name in ("rank", "host", "state"):
        table.add_column(name, justify="right" if name == "rank" else "left")
    for name in ("own work", "waiting", "exposed", "overlapped", "last", "others waited", "input"):
        table.add_column(name, justify="right")
    count = max(1, len(report.steps.number))
    for rank in _listed(report):
        table.add_row(
            str(rank.rank),
            Text(rank.host),  # a name is no markup of rich's
            rank.state,
            *map(_milliseconds, (rank.own, rank.waiting, rank.exposed, rank.overlapped)),
            "" if rank.last is None else f"{rank.last}x",
            _milliseconds(rank.late / count) if len(report.steps.number) else "",
            "" if rank.input_share is None else f"{rank.input_share:.1%}",
        )
    table.caption = (
        "own work: input and computation. waiting: for ranks that were not ready. exposed: "
        "communication after the last gradient, overlapped: before it. last: how often this rank "
        "was the last to ask, of all calls; others waited: for it, per step."
    )
    return table


def traffic_table(report: Report) -> Table:
    """Returns what each rank has communicated since the start."""
    table = _table("Communication since the start")
    for name in ("rank", "calls", "failed", "given", "sent", "cached", "plans", "calls/plan"):
        table.add_column(name, justify="right")
    for rank in _listed(report):
        table.add_row(
            str(rank.rank),
            f"{rank.calls:,}",
            f"{rank.failed:,}" if rank.failed else "",
            size_text(rank.bytes),
            size_text(rank.bytes_sent),
            f"{min(1.0, rank.cache_hits / rank.calls):.0%}" if rank.calls else "",
            f"{rank.plans:,}",
            "" if rank.fused is None else f"{rank.fused:.1f}",
        )
    table.caption = (
        "given: bytes of the tensors of all calls. sent: bytes to other ranks. cached: calls "
        "whose request was known by a number. plans: those that the record still "
        "has; several calls in one plan are fused."
    )
    return table


def _listed(report: Report) -> Iterable[RankSummary]:
    slowest = sorted(report.ranks, key=lambda rank: -rank.late)[:LISTED]
    return sorted(slowest, key=lambda rank: rank.rank)


def _table(title: str) -> Table:
    # Not at the top: `tfring run` loads this file, too, and shall start at once.
    from rich import box
    from rich.table import Table

    return Table(
        title=title,
        title_justify="left",
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
    )


def _milliseconds(nanoseconds: float | None) -> str:
    return "" if nanoseconds is None else f"{nanoseconds / 1e6:.2f}"


def _ms(nanoseconds: float) -> str:
    return f"{nanoseconds / 1e6:.3g} ms"
