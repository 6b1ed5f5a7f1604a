"""Charts of measured numbers, as SVG: bars with intervals, and lines on logarithmic axes."""

from __future__ import annotations

import html
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

_COLORS = ("#4a7ab5", "#8fb3d9", "#c08a2d", "#d9762b", "#6a9a4f", "#8a6aa8", "#777777")
_WIDTH, _HEIGHT, _LEFT, _TOP, _BOTTOM = 720, 300, 60, 56, 30
_STEPS = (1, 2, 5, 10)

Bar = tuple[float, float, float]  # a value and its interval


class Chart:
    """A drawing area with a title, a legend and a vertical axis.

    Args:
        title: what it shows, with the unit.
        series: the names of the legend.
    """

    def __init__(self, title: str, series: Sequence[str]) -> None:
        self._parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" '
            'font-family="Helvetica,Arial,sans-serif" font-size="11">',
            f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>',
        ]
        self.text(_LEFT, 18, title, size=14, anchor="start")
        place = float(_LEFT)
        for name, color in zip(series, _COLORS, strict=False):
            self.box(place, 30, 10, 10, color)
            self.text(place + 14, 39, name, anchor="start")
            place += 30 + 6.2 * len(name)

    def text(
        self, x: float, y: float, what: str, *, size: int = 11, anchor: str = "middle"
    ) -> None:
        self._parts.append(
            f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}">'
            f"{html.escape(what)}</text>"
        )

    def box(self, x: float, y: float, width: float, height: float, color: str) -> None:
        size = f'width="{width:.1f}" height="{height:.1f}"'
        self._parts.append(f'<rect x="{x:.1f}" y="{y:.1f}" {size} fill="{color}"/>')

    def line(self, points: Sequence[tuple[float, float]], color: str, width: float = 1.0) -> None:
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        stroke = f'stroke="{color}" stroke-width="{width}"'
        self._parts.append(f'<polyline points="{path}" fill="none" {stroke}/>')

    def rule(self, y: float, label: str) -> None:
        """Draws a value of the vertical axis."""
        self.line([(_LEFT, y), (_WIDTH - 10, y)], "#dddddd")
        self.text(_LEFT - 6, y + 4, label, anchor="end")

    def write(self, path: Path) -> None:
        path.write_text("\n".join([*self._parts, "</svg>"]) + "\n", encoding="utf-8")


def bars(
    path: Path, title: str, groups: Mapping[str, Mapping[str, Bar]], start: float = 0.0
) -> None:
    """Draws a bar for each series of each group; a series that a group lacks leaves a gap.

    Args:
        path: of the SVG file.
        title: what the chart shows.
        groups: by name of the group and of the series.
        start: the value at the foot of the bars.
    """
    series = list(dict.fromkeys(name for group in groups.values() for name in group))
    top = 1.1 * max(high for group in groups.values() for _, _, high in group.values())
    chart = Chart(title, series)
    unit = _tick(top - start)
    scale = (_HEIGHT - _TOP - _BOTTOM) / (top - start)
    foot = _HEIGHT - _BOTTOM
    for number in range(int((top - start) / unit) + 1):
        chart.rule(foot - number * unit * scale, f"{start + number * unit:g}")
    room = (_WIDTH - _LEFT - 10) / len(groups)
    width = room * 0.85 / len(series)
    for place, (label, group) in enumerate(groups.items()):
        left = _LEFT + room * (place + 0.075)
        chart.text(left + room * 0.425, _HEIGHT - 10, label)
        for number, name in enumerate(series):
            if name not in group:
                continue
            value, low, high = (max(0.0, each - start) * scale for each in group[name])
            x = left + number * width
            chart.box(x, foot - value, width * 0.9, value, _COLORS[number % len(_COLORS)])
            middle = x + width * 0.45
            chart.line([(middle, foot - low), (middle, foot - high)], "#222222", 1.5)
            chart.text(middle, foot - high - 3, f"{group[name][0]:.3g}", size=9)
    chart.write(path)


def lines(
    path: Path,
    title: str,
    series: Mapping[str, Sequence[tuple[float, float]]],
    names: Mapping[float, str],
) -> None:
    """Draws lines on logarithmic axes.

    Args:
        path: of the SVG file.
        title: what the chart shows.
        series: points by name.
        names: of values of the horizontal axis.
    """
    points = [point for line in series.values() for point in line]
    xs, ys = [x for x, _ in points], [y for _, y in points]
    low, high = math.floor(math.log10(min(ys))), math.ceil(math.log10(max(ys)))
    across = (_WIDTH - _LEFT - 50) / math.log10(max(xs) / min(xs))
    up = (_HEIGHT - _TOP - _BOTTOM) / (high - low)

    def at(x: float, y: float) -> tuple[float, float]:
        right = _LEFT + 20 + across * math.log10(x / min(xs))
        return right, _HEIGHT - _BOTTOM - up * (math.log10(y) - low)

    chart = Chart(title, list(series))
    for power in range(low, high + 1):
        chart.rule(at(min(xs), 10.0**power)[1], f"{10.0**power:g}")
    for x, name in names.items():
        chart.text(at(x, 1.0)[0], _HEIGHT - 10, name)
    for color, line in zip(_COLORS, series.values(), strict=False):
        chart.line([at(x, y) for x, y in line], color, 2.0)
    chart.write(path)


def _tick(span: float) -> float:
    """Returns a round distance of about a fifth of a span."""
    power = 10.0 ** math.floor(math.log10(span / 5))
    return next(step * power for step in _STEPS if step * power * 5.5 >= span)


def interval_text(bar: Bar, digits: int = 3) -> str:
    """Returns a value and its interval: "1.2 (1.1 to 1.4)"."""
    value, low, high = (f"{each:.{digits}g}" for each in bar)
    return f"{value} ({low} to {high})"


def between_markers(page: Path, marker: str, text: str) -> None:
    """Replaces what a command has written into a page.

    Args:
        page: the file, with the two marker lines.
        marker: the name in the marker lines.
        text: what stands between them.
    """
    begin, end = (f"<!-- {marker}: {word} -->\n" for word in ("begin", "end"))
    before, found, rest = page.read_text(encoding="utf-8").partition(begin)
    _, closed, after = rest.partition(end)
    if not found or not closed:
        raise SystemExit(f"{page} lacks the lines {begin.strip()} and {end.strip()}")
    page.write_text(f"{before}{begin}{text}{end}{after}", encoding="utf-8")


def table(head: Sequence[str], rows: Iterator[Sequence[str]]) -> str:
    """Returns a table in Markdown."""
    every = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(row)} |\n" for row in every)
