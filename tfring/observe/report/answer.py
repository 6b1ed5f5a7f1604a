"""A report as plain values, for JSON, and what is kept of it when the records are gone."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tfring.observe.json_output import as_object
from tfring.observe.recorder.memory import RankMemory
from tfring.observe.report.summary import RankSummary, Report
from tfring.observe.report.text import print_report, write_sentences


@dataclass(frozen=True)
class Answer:
    """Where the time of a job goes.

    Attributes:
        job: Its id.
        size: The number of its ranks.
        verdict: What is wrong, in a paragraph; "": nothing.
        steps: How many training steps the records have; 0: none, and no times.
        own_work: Share of the time in which ranks did their own work, with input and callbacks.
        waiting: Share of the time in which ranks waited for others. The rest of 1 is communication.
        slowest: The rank for which the others waited longest. Small shares mean nothing: one of
            them is always the last.
        equal: Whether all ranks had equal weights at the end of the last `fit`; False: except for
            rounding; None: unknown.
        ranks: Each rank.
        text: The sentences that the command prints without --json.
    """

    job: str
    size: int
    verdict: str
    steps: int
    own_work: float | None
    waiting: float | None
    slowest: int | None
    equal: bool | None
    ranks: list[RankSummary]
    text: str


def make_answer(report: Report, verdict: str = "") -> Answer:
    """Returns a report as plain values; `verdict` is what is wrong with the job."""
    steps, slowest = report.steps, report.slowest
    return Answer(
        job=report.job,
        size=report.size,
        verdict=verdict,
        steps=len(steps.number),
        own_work=steps.efficiency,
        waiting=None
        if steps.efficiency is None
        else float(steps.waiting.sum() / steps.total.sum()),
        slowest=None if slowest is None else slowest.rank,
        equal=report.equal,
        ranks=list(report.ranks),
        text="\n".join(write_sentences(report)),
    )


def keep_report(report: Report) -> dict[str, Any]:
    """Returns what stays of a report when the records are gone, for JSON.

    Returns:
        "size": the number of ranks; "text": as `tfring report` prints it, "" without rich;
        "answer": as it prints it with --json.
    """
    file = io.StringIO()
    with contextlib.suppress(ImportError):
        print_report(report, file)
    answer = as_object(make_answer(report))
    return {"size": report.size, "text": file.getvalue(), "answer": answer}


def parse_answer(kept: Mapping[str, Any]) -> Answer:
    """Returns the answer that `keep_report` kept."""
    ranks = [RankSummary(**{**one, "memory": RankMemory(**one["memory"])}) for one in kept["ranks"]]
    return Answer(**{**kept, "ranks": ranks})
