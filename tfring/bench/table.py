"""How results look in a terminal: a line for each row, as soon as it was measured."""

from __future__ import annotations

from collections.abc import Callable

from tfring.bench.result import Result, Row
from tfring.runtime.texts.words import counted

LEGEND = (
    "Times in ms, of the slowest rank; bandwidths in GB/s (10^9 bytes).\n"
    "median, p95: a tf.function with the collective, or a training step\n"
    "net: less the same function without communication (bare)\n"
    "algbw: bytes / net; busbw: as in nccl-tests; copy: all ranks copy as many bytes"
)
_LABEL, _WIDTH = 12, 9

_Column = tuple[str, Callable[[Row], str]]


def number(value: float | None) -> str:
    """Returns a number with three digits; "-" for None."""
    if value is None:
        return "-"
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _bandwidth(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


_TIMES: tuple[_Column, ...] = (
    ("rounds", lambda row: str(row.rounds)),
    ("median", lambda row: number(row.median_ms)),
    ("p95", lambda row: number(row.p95_ms)),
)
_OF_COLLECTIVES: tuple[_Column, ...] = (
    *_TIMES,
    ("net", lambda row: number(row.net_ms)),
    ("algbw", lambda row: _bandwidth(row.algbw_gbs)),
    ("busbw", lambda row: _bandwidth(row.busbw_gbs)),
    ("copy", lambda row: number(row.copy_ms)),
    ("net/copy", lambda row: number(row.net_over_copy)),
)
_OF_STEPS: tuple[_Column, ...] = (
    *_TIMES,
    ("bare", lambda row: number(row.bare_ms)),
    ("net", lambda row: number(row.net_ms)),
    ("/bare", lambda row: number(row.over_bare)),
    ("alone", lambda row: number(row.alone_ms)),
)


def title(result: Result) -> str:
    """Returns the line above all tables."""
    on = counted(result.hosts, "host")
    made = result.versions
    tensorflow = made.get("tensorflow") or made.get("tensorflow-cpu") or "unknown"
    return (
        f"tfring {made.get('tfring', '')}: {result.ranks} ranks on {on}, {result.machine['cpu']}, "
        f"{result.machine['cores']} cores, TensorFlow {tensorflow}"
    )


def heading(row: Row) -> list[str]:
    """Returns the lines above the first row of a section."""
    first = {"call": "bytes", "step": ""}.get(row.way, f"{row.tensors} tensors")
    names = [name for name, _ in _columns(row)]
    return [row.section, f"{first:>{_LABEL}}" + "".join(f"{name:>{_WIDTH}}" for name in names)]


def line(row: Row) -> str:
    """Returns the line of a row."""
    label = str(row.bytes) if row.way == "call" else row.way
    cells = [text(row) for _, text in _columns(row)]
    return f"{label:>{_LABEL}}" + "".join(f"{cell:>{_WIDTH}}" for cell in cells)


def _columns(row: Row) -> tuple[_Column, ...]:
    return _OF_STEPS if row.way == "step" else _OF_COLLECTIVES
