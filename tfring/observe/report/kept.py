"""The report of a job whose records are gone."""

from __future__ import annotations

import io
from typing import Any

from tfring.observe.report.summary import Report
from tfring.observe.report.text import print_report

# Series have so many numbers in all, of the newest steps.
_MOST_NUMBERS = 20_000
_US = 1_000


def kept(report: Report) -> dict[str, Any]:
    """Returns a report as values for JSON.

    Returns:
        "size": the number of ranks; "text": as `tfring report` prints it, "" without rich;
        "series": "step", the newest steps, "total", and by rank "own" and "waiting", in
        microseconds.
    """
    steps = report.steps
    newest = max(1, _MOST_NUMBERS // (2 + 2 * len(steps.ranks)))
    series = {
        "step": steps.number[-newest:].tolist(),
        "total": (steps.total.max(axis=0, initial=0)[-newest:] // _US).astype(int).tolist(),
        "ranks": list(steps.ranks),
        "own": (steps.own[:, -newest:] // _US).astype(int).tolist(),
        "waiting": (steps.waiting[:, -newest:] // _US).astype(int).tolist(),
    }
    return {"size": report.size, "text": _text(report), "series": series}


def _text(report: Report) -> str:
    file = io.StringIO()
    try:
        print_report(report, file)
    except ImportError:
        return ""
    return file.getvalue()
