"""What a run means for training, in sentences."""

from __future__ import annotations

from itertools import groupby

from tfring.bench.result import Result, Row
from tfring.bench.table import number
from tfring.runtime.texts.sizes import size_text

# Gradients of a ResNet-50, whose size many know, in bytes of float32.
_RESNET_50 = 4 * 25_557_032
# The time of smaller ones says nothing of a bandwidth.
_LARGE = 1 << 20


def verdict(result: Result) -> list[str]:
    """Returns sentences on what was measured.

    Args:
        result: Of a run.
    """
    lines = []
    for section, group in groupby(result.rows, lambda row: row.section):
        rows = list(group)
        kind, _, what = section.partition(" ")
        if kind == "step":
            lines += [_step(row, what, result.ranks) for row in rows]
        elif kind == "model":
            lines += [_model(row, what.partition(" ")[0]) for row in rows if row.way == "grouped"]
        else:
            lines += _collective(section, kind, rows)
    return lines


def _collective(section: str, kind: str, rows: list[Row]) -> list[str]:
    small, large = rows[0], rows[-1]
    article = "An" if kind[0] in "ae" else "A"
    lines = [f"{article} {kind} of {size_text(small.bytes)} takes {_time(small)} here"]
    if large is not small:
        lines[0] += f", one of {size_text(large.bytes)} {_time(large)}{_speed(large)}"
    lines[0] += "."
    if kind == "allreduce" and large.bytes >= _LARGE and large.algbw_gbs and "float32" in section:
        needs = _RESNET_50 / large.algbw_gbs / 1e6
        lines.append(
            f"So the gradients of a ResNet-50 ({size_text(_RESNET_50)}) need about {number(needs)} "
            "ms in each step, of which the backward pass hides a part."
        )
    return lines


def _time(row: Row) -> str:
    if row.net_low_ms is not None and row.net_low_ms > 0:
        return f"{number(row.net_ms)} ms"
    return "less than can be measured"


def _speed(row: Row) -> str:
    if row.algbw_gbs is None:
        return ""
    over = row.net_over_copy
    copying = "" if over is None else f", {number(over)} times as long as copying it"
    return f" ({number(row.algbw_gbs)} GB/s{copying})"


def _model(row: Row, name: str) -> str:
    return (
        f"The gradients of {name} ({size_text(row.bytes)} in {row.tensors} tensors) take "
        f"{_time(row)} in each step."
    )


def _step(row: Row, name: str, ranks: int) -> str:
    text = (
        f"A training step of {name} takes {number(row.median_ms)} ms, "
        f"{number(row.over_bare)} times as long as without the exchange"
    )
    if not row.alone_ms:
        return f"{text}."
    faster = ranks * row.alone_ms / row.median_ms
    return f"{text}: {ranks} ranks train {number(faster)} times as fast as one alone."
