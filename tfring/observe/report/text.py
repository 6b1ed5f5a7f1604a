"""A report as text and tables for a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TextIO

import numpy as np

from tfring.observe.recorder.memory import NAMES
from tfring.observe.recorder.places import short
from tfring.observe.report.summary import RankSummary, Report
from tfring.runtime.texts.ranks import ranks_text
from tfring.runtime.texts.sizes import size_text
from tfring.runtime.texts.words import counted, upper_first

if TYPE_CHECKING:
    from rich.table import Table

# How a rank's note of its metrics address begins; it is for tools.
_OWN_NOTE = "metrics at "
# With more ranks, those are listed for which the others waited most.
LISTED = 32


def print_report(report: Report, file: TextIO, verdict: str = "") -> None:
    """Prints a report, as wide as the terminal, or 120 characters wide into a file.

    Args:
        report: The report.
        file: Where to print.
        verdict: What is wrong with the job; "": nothing. It comes first.

    Raises:
        ImportError: There is no rich.
    """
    from rich.console import Console

    console = Console(file=file, width=None if file.isatty() else 120)
    if verdict:
        console.print(verdict, style="bold red", markup=False, highlight=False)
        console.print()
    for line in write_sentences(report):
        console.print(line, soft_wrap=True, markup=False, highlight=False)
    console.print()
    console.print(make_time_table(report))
    if any(rank.memory.states for rank in report.ranks):
        console.print()
        console.print(make_memory_table(report))


def write_sentences(report: Report) -> list[str]:
    """Returns the sentences of a report, one or two per line."""
    missing = report.missing
    lines = [f"Job {short(report.job)}: {counted(report.size, 'rank')}"]
    if missing:
        lines[0] += f"; no record of {ranks_text(missing)}"
    lines += _progress(report)
    steps = report.steps
    if steps.efficiency is None:
        lines.append("The records have no complete training step of all ranks.")
    else:
        lines.append(_shares(report))
    slowest = report.slowest
    if slowest is not None and len(steps.number):
        lines.append(_slowest(slowest, slowest.late / len(steps.number)))
    if report.always_slow is not None:
        lines.append(f"Rank {report.always_slow} was always slower than the others.")
    lines += [f"{upper_first(one.text())}." for one in report.slowdowns]
    for rank, text in report.notes:
        if not text.startswith(_OWN_NOTE):
            lines.append(f"Rank {rank} noted: {text}")
    return lines


def _progress(report: Report) -> list[str]:
    """Says how far `fit` is, by the rank that is furthest behind."""
    training = [rank for rank in report.ranks if rank.epoch]
    if not training:
        return []
    last = min(training, key=lambda rank: rank.step)
    line = f"Epoch {last.epoch} of {last.epochs}, step {last.step}"
    losses = [rank.loss for rank in training if rank.loss is not None]
    return [f"{line}: loss {sum(losses) / len(losses):.4g}." if losses else f"{line}."]


def _slowest(rank: RankSummary, late: float) -> str:
    """Says for which rank the others waited, and which part of its work explains it."""
    text = f"The others waited longest for rank {rank.rank} ({rank.host}): {_ms(late)} per step"
    parts = {"its input takes": rank.input or 0.0, "its callbacks take": rank.callbacks or 0.0}
    what, spent = max(parts.items(), key=lambda part: part[1])
    return f"{text}; {what} {_ms(spent)}." if spent >= late / 2 else f"{text}."


def _shares(report: Report) -> str:
    """Says where the time of the steps went, in the words of the table."""
    steps, ranks = report.steps, report.ranks
    total, step = float(steps.total.sum()), float(steps.total.mean())
    inside = [
        f"{sum(known) / len(known) / step:.1%} {name}"
        for name, known in (
            ("input", [rank.input for rank in ranks if rank.input is not None]),
            ("callbacks", [rank.callbacks for rank in ranks if rank.callbacks is not None]),
        )
        if known
    ]
    of_it = f" (of it {' and '.join(inside)})" if inside else ""
    waiting = float(steps.waiting.sum())
    exchange = waiting + float(steps.exposed.sum())
    return (
        f"A step took {_ms(float(np.median(steps.total)))} (median of steps {steps.number[0]} to "
        f"{steps.number[-1]}): {steps.efficiency:.1%} own work{of_it}, {exchange / total:.1%} "
        f"exchange (of it {waiting / total:.1%} waiting for other ranks)."
    )


def make_time_table(report: Report) -> Table:
    """Returns where the time of each rank goes, per step; columns in the order of `tfring top`."""
    # Not at the top: `tfring run` loads this file, too, and must start fast.
    from rich.text import Text

    names = ["own work", "input", "callbacks", "exchange", "waiting", "awaited"]
    table = _make_table("Time per step, in ms", ["rank", "host", "state"], names)
    count = len(report.steps.number)
    for rank in _listed(report):
        times = [rank.own, rank.input, rank.callbacks, rank.exchange, rank.waiting]
        times.append(rank.late / count if count else None)
        cells = map(_milliseconds, times)
        table.add_row(str(rank.rank), Text(rank.host), rank.state, *cells)  # no markup of rich's
    table.caption = (
        "own work = the step without the exchange, including input (waiting for data) and Keras' "
        "callbacks after each batch. exchange = from the last gradient until all are reduced, "
        "including waiting for other ranks. awaited = how long all others waited for this rank. "
        "Input, callbacks and awaited are means, the others medians. - = unknown."
    )
    return table


def make_memory_table(report: Report) -> Table:
    """Returns what each rank holds in memory."""
    from rich.text import Text

    table = _make_table("Memory", ["rank", "host"], NAMES)
    for rank in _listed(report):
        known = [getattr(rank.memory, name) for name in NAMES]
        cells = [size_text(value) if value else "-" for value in known]
        table.add_row(str(rank.rank), Text(rank.host), *cells)
    table.caption = (
        "weights = those that optimizers train, and this rank's parts of them (shard_states). "
        "states = of optimizers, or this rank's parts. copies = parts that commits keep. "
        "buckets = the runtime's buffers on the host. - = none, or unknown."
    )
    return table


def _make_table(title: str, left: Sequence[str], right: Sequence[str]) -> Table:
    """Returns a table without rows; `left` and `right` are the names of its columns."""
    from rich import box
    from rich.table import Table

    table = Table(
        title=title,
        title_justify="left",
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
    )
    for name in left:
        table.add_column(name, justify="right" if name == "rank" else "left")
    for name in right:
        table.add_column(name, justify="right")
    return table


def _listed(report: Report) -> list[RankSummary]:
    """Returns the ranks that tables have, by number."""
    slowest = sorted(report.ranks, key=lambda rank: -rank.late)[:LISTED]
    return sorted(slowest, key=lambda rank: rank.rank)


def _milliseconds(nanoseconds: float | None) -> str:
    return "-" if nanoseconds is None else f"{nanoseconds / 1e6:.2f}"


def _ms(nanoseconds: float) -> str:
    return f"{nanoseconds / 1e6:.3g} ms"
