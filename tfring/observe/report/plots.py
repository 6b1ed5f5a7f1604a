"""The pictures of a report, as SVG."""

from __future__ import annotations

import io
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from tfring.observe.recorder.gradients import Array
from tfring.observe.report.job_steps import JobSteps
from tfring.observe.report.summary import Report
from tfring.runtime.texts.sizes import size_text

# Colours of C. Wong's palette that all can tell apart: "Points of view: color blindness", Nature
# Methods 8, 2011.
OWN, WAITING, EXPOSED, HIDDEN = "#999999", "#e69f00", "#0072b2", "#56b4e9"
_POINTS = 400  # of a line; of more steps the medians of neighbours are drawn
_LINES = 8
_ROWS = 32
_EXTRACT = 8  # steps

_LEGEND: dict[str, Any] = {"facecolor": "white", "edgecolor": "none", "framealpha": 0.8}
_STYLE = {
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "tfring",  # the same picture gets the same file
    "font.family": "sans-serif",
    "axes.spines.top": False,
    "axes.spines.right": False,
}


def draw_steps(report: Report) -> str:
    """Draws where the time of steps goes; means over the ranks."""

    def draw(axes: Any) -> None:
        steps = report.steps
        number, parts = thin_out(
            steps.number, [p.mean(axis=0) / 1e6 for p in (steps.own, steps.waiting, steps.exposed)]
        )
        labels = ["own work", "waiting for other ranks", "communication not hidden"]
        axes.stackplot(number, *parts, labels=labels, colors=[OWN, WAITING, EXPOSED])
        axes.set(xlabel="step", ylabel="ms per step", xlim=(number[0], number[-1]))
        top = float(np.quantile(sum(parts), 0.99)) * 1.3
        axes.set_ylim(0, top or 1)
        axes.legend(loc="upper left", ncols=3, **_LEGEND)

    return _draw(draw)


def draw_own_work(report: Report) -> str:
    """Draws the own work of the slowest ranks, with change points."""

    def draw(axes: Any) -> None:
        steps = report.steps
        named = [one.rank for one in report.slowdowns if one.rank in steps.ranks]
        order = np.argsort(-np.median(steps.own, axis=1)).tolist()
        rows = list(
            dict.fromkeys([*(steps.ranks.index(r) for r in named if r is not None), *order])
        )
        tops = []
        for row in sorted(rows[:_LINES]):
            number, (line,) = thin_out(steps.number, [steps.own[row] / 1e6])
            axes.plot(number, line, linewidth=1, label=f"rank {steps.ranks[row]}")
            tops.append(float(np.quantile(line, 0.99)))
        for one in report.slowdowns:
            axes.axvline(one.step, color="black", linestyle=":", linewidth=1)
            who = "communication" if one.rank is None else f"rank {one.rank}"
            axes.annotate(
                f"{who}: +{one.more / 1e6:.3g} ms since step {one.step}",
                (one.step, 0.8),
                xycoords=("data", "axes fraction"),
                ha="right" if one.step > np.mean(steps.number) else "left",
                bbox={"facecolor": "white", "alpha": 0.8, "linewidth": 0},
            )
        axes.set(xlabel="step", ylabel="own work, ms", xlim=(steps.number[0], steps.number[-1]))
        axes.set_ylim(0, max(tops) * 1.3 or 1)
        axes.legend(loc="upper left", ncols=4, **_LEGEND)

    return _draw(draw)


def draw_waits(report: Report) -> str:
    """Draws how long the others waited for each rank, per step."""

    def draw(axes: Any) -> None:
        late = sorted(report.ranks, key=lambda rank: -rank.late)[:_ROWS]
        late = sorted(late, key=lambda rank: rank.rank)
        count = max(1, len(report.steps.number))
        names = [f"rank {rank.rank}" for rank in late]
        axes.barh(names, [rank.late / count / 1e6 for rank in late], color=WAITING)
        axes.invert_yaxis()
        axes.set(xlabel="ms per step for which all others waited for this rank")

    return _draw(draw, height=0.9 + 0.3 * min(_ROWS, len(report.ranks)))


def draw_traffic(matrix: Array) -> str:
    """Draws a map of the bytes that ranks send to each other, from row to column."""

    def draw(axes: Any) -> None:
        mesh = axes.pcolormesh(matrix, cmap="Blues", vmin=0, edgecolors="white", linewidth=0.5)
        axes.set(xlabel="to rank", ylabel="from rank", aspect="equal")
        middle = np.arange(0, len(matrix), max(1, math.ceil(len(matrix) / 16)))
        axes.set_xticks(middle + 0.5, middle.tolist())
        axes.set_yticks(middle + 0.5, middle.tolist())
        axes.invert_yaxis()
        bar = axes.figure.colorbar(mesh, ax=axes, shrink=0.8)
        bar.ax.yaxis.set_major_formatter(lambda value, _: size_text(value))

    return _draw(draw, height=4.5)


def draw_extract(report: Report) -> str:
    """Draws what the ranks did in a few steps around the one with the longest waiting."""

    def draw(axes: Any) -> None:
        steps = report.steps
        rows = _extract_rows(steps)
        begin = max(0, int(np.argmax(steps.waited_for)) - _EXTRACT // 2)
        chosen = slice(begin, min(begin + _EXTRACT, len(steps.number)))
        zero = int(steps.began[:, chosen].min())
        for height, row in enumerate(rows):
            at = (steps.began[row, chosen] - zero) / 1e6
            own, waiting, exposed, hidden = (
                part[row, chosen] / 1e6
                for part in (steps.own, steps.waiting, steps.exposed, steps.overlapped)
            )
            lanes = [
                (at, own, OWN, 0.0, 0.8),
                (at + own - hidden, hidden, HIDDEN, 0.55, 0.25),
                (at + own, waiting, WAITING, 0.0, 0.8),
                (at + own + waiting, exposed, EXPOSED, 0.0, 0.8),
            ]
            for left, width, color, low, high in lanes:
                bars = list(zip(left.tolist(), width.tolist(), strict=True))
                axes.broken_barh(bars, (height + low, high), color=color, linewidth=0)
            axes.vlines(at, height, height + 0.8, color="white", linewidth=1)
        axes.set_yticks(np.arange(len(rows)) + 0.4, [f"rank {steps.ranks[row]}" for row in rows])
        axes.invert_yaxis()
        first, last = steps.number[chosen][0], steps.number[chosen][-1]
        axes.set(xlabel=f"ms; steps {first} to {last}")

    return _draw(draw, height=1 + 0.4 * len(_extract_rows(report.steps)))


def thin_out(number: Array, lines: list[Array]) -> tuple[Array, list[Array]]:
    """Returns lines with at most _POINTS points: medians of neighbouring steps."""
    together = math.ceil(len(number) / _POINTS)
    if together <= 1:
        return number, lines
    cuts = np.arange(0, len(number), together)
    groups = [slice(cut, cut + together) for cut in cuts.tolist()]
    return number[cuts], [np.array([np.median(line[g]) for g in groups]) for line in lines]


def _extract_rows(steps: JobSteps) -> list[int]:
    """Returns the ranks to draw: those that were last most often, by number."""
    often = [int((steps.last_rank == rank).sum()) for rank in steps.ranks]
    order = sorted(range(len(often)), key=lambda row: -often[row])
    return sorted(order[:_ROWS])


def _draw(draw: Callable[[Any], None], height: float = 3.2) -> str:
    """Returns the SVG element of one pair of axes."""
    # matplotlib takes long to load. Figure draws without a window and without global state.
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(9, height), layout="constrained")
        draw(figure.subplots())
        file = io.StringIO()
        figure.savefig(file, format="svg", metadata={"Date": None})
    text = file.getvalue()
    return text[text.index("<svg") :]
