"""A report as one HTML page, which loads nothing from anywhere."""

from __future__ import annotations

import html
import io
from pathlib import Path
from string import Template

import numpy as np

from tfring.observe.recorder.gradients import Array
from tfring.observe.recorder.job import JobRecords
from tfring.observe.report import plots
from tfring.observe.report.summary import Report
from tfring.observe.report.text import make_time_table, make_traffic_table, write_sentences

_TEMPLATE = Path(__file__).with_name("page.html")

_CAPTIONS = {
    "steps": "Where the time of a step goes: means over the ranks. Rare slow steps are cut off.",
    "own": "Own work (input and computation) of the ranks where it takes longest. A dotted line is "
    "where a rank has become slow.",
    "waits": "For how long all other ranks waited for a rank.",
    "extract": "The steps around the one with the longest waiting. Grey: own work, with hidden "
    "communication in light blue (its length, not its exact place). Orange: waiting for other "
    "ranks. Dark blue: communication that nothing hid.",
    "traffic": "Data sent since the start, from each rank to each, without what NCCL has sent.",
}


def make_page(
    report: Report, job: JobRecords, verdict: str = "", *, internals: bool = False
) -> str:
    """Returns the page.

    Args:
        report: The report.
        job: The records, for the traffic between ranks.
        verdict: What is wrong with the job; "": nothing. It comes first.
        internals: Whether to show the runtime's internals.

    Raises:
        ImportError: matplotlib or rich is missing.
    """
    pictures: dict[str, str] = {}
    if len(report.steps.number):
        pictures = {
            "steps": plots.draw_steps(report),
            "own": plots.draw_own_work(report),
            "waits": plots.draw_waits(report),
            "extract": plots.draw_extract(report),
        }
    sent = sum_traffic(job)
    if sent.any():
        pictures["traffic"] = plots.draw_traffic(sent)
    figures = [
        f'<figure id="{name}">{make_ids_unique(svg, name)}'
        f"<figcaption>{html.escape(_CAPTIONS[name])}</figcaption></figure>"
        for name, svg in pictures.items()
    ]
    title, *more = write_sentences(report, internals=internals)
    lines = [f"<p>{html.escape(line)}</p>" for line in more]
    if verdict:
        lines.insert(0, f'<p class="verdict">{html.escape(verdict)}</p>')
    return Template(_TEMPLATE.read_text(encoding="utf-8")).substitute(
        title=html.escape(title),
        summary="\n".join(lines),
        tables=_tables(report, internals),
        figures="\n".join(figures),
    )


def sum_traffic(job: JobRecords) -> Array:
    """Returns the bytes that ranks sent to each other, without NCCL, from row to column.

    The row of a rank without a record is 0.
    """
    found = np.zeros((job.size, job.size))
    for rank, record in job.records.items():
        found[rank] = record.ranks["sent"]
    return found


def make_ids_unique(svg: str, name: str) -> str:
    """Makes the ids of an SVG picture unique; matplotlib gives each picture the same ids."""
    for before in ('id="', 'href="#', "url(#"):
        svg = svg.replace(before, f"{before}{name}-")
    return svg


def _tables(report: Report, internals: bool) -> str:
    """Returns the tables as rich writes them for a browser."""
    from rich.console import Console

    console = Console(file=io.StringIO(), record=True, width=120)
    console.print(make_time_table(report, internals=internals))
    if internals:
        console.print()
        console.print(make_traffic_table(report))
    return console.export_html(inline_styles=True, code_format="<pre>{code}</pre>")
