"""Writes the measured part of docs/comparison.md, and its charts, from a result."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from typing import Any

from benchmarks import charts
from benchmarks.frameworks import jobs, results
from benchmarks.frameworks.environments import ROOT

_PAGE = ROOT / "docs/comparison.md"
_MARKER = "made by python -m benchmarks.frameworks --page"
_SAID = 240  # characters of a message
_FAULTS = {
    "kill": "Rank 1 gets SIGKILL",
    "stop": "Rank 1 gets SIGSTOP",
    "slow": "Each step of rank 1 takes 0.2 s longer",
    "diverge": "The weights of rank 1 change by 0.01 after an epoch",
}


def write(parts_of_result: list[dict[str, Any]]) -> None:
    """Replaces the part of the page that is made, and draws the charts.

    Args:
        parts_of_result: what one or several commands have found.
    """
    result = parts_of_result[0]
    for more in parts_of_result[1:]:
        for section in ("checks", "runs", "faults"):
            result[section] += more[section]
    parts = []
    for ranks in _ranks(result):
        parts.append(_steps(result, ranks))
    parts += [_costs(result)] if result["runs"] else []
    parts += [_checks(result)] if result["checks"] else []
    parts += [*_faults(result), _conditions(result)]
    charts.between_markers(_PAGE, _MARKER, "\n".join(parts))


def _values(result: dict[str, Any], peer: str, ranks: int, kind: str, what: str) -> list[float]:
    return [
        row["models"][kind][what]
        for row in result["runs"]
        if row["peer"] == peer and row["ranks"] == ranks and kind in row.get("models", {})
    ]


def _steps(result: dict[str, Any], ranks: int) -> str:
    """Returns the table and the charts of steps on a number of ranks."""
    times: dict[str, dict[str, charts.Bar]] = {kind: {} for kind in result["epochs"]}
    ratios: dict[str, dict[str, charts.Bar]] = {kind: {} for kind in result["epochs"]}
    rows = []
    for peer in (each.name for each in jobs.PEERS):
        row = [peer]
        for kind in result["epochs"]:
            steps = _values(result, peer, ranks, kind, "step_ms")
            if steps:
                times[kind][peer] = results.summary(steps)
                overhead = results.summary(_values(result, peer, ranks, kind, "overhead"))
                ratios[kind][peer] = overhead
                row += [f"{times[kind][peer][0]:.3g}", charts.interval_text(overhead)]
        rows += [row] if len(row) > 1 else []
    head = ["", *(text for kind in times for text in (f"{kind}: ms", "times alone"))]
    part = f"### {ranks} ranks\n\n{charts.table(head, iter(rows))}"
    for name, title, groups in (
        ("alone", f"{ranks} ranks: a step, times computing alone", ratios),
        ("ms", f"{ranks} ranks: a step, ms", times),
    ):
        image = ROOT / f"docs/images/compare_{ranks}_ranks_{name}.svg"
        charts.bars(image, title, groups)
        part += f"\n![{title}](images/{image.name})\n"
    return part


def _costs(result: dict[str, Any]) -> str:
    """Returns the table of starts, processor time and bytes."""
    kinds = list(result["epochs"])

    def rows() -> Iterator[list[str]]:
        for ranks, peer in itertools.product(_ranks(result), (each.name for each in jobs.PEERS)):
            runs = [r for r in result["runs"] if (r["peer"], r["ranks"]) == (peer, ranks)]
            starts = [row["start_s"] for row in runs if "start_s" in row]
            if not starts:
                continue
            row = [peer, str(ranks), charts.interval_text(results.summary(starts))]
            for what, scale in (("processor_overhead", 1.0), ("network_bytes", 1e6)):
                for kind in kinds:
                    found = _values(result, peer, ranks, kind, what)
                    moved = _values(result, peer, ranks, kind, "moved_bytes")
                    row.append(f"{results.summary(found)[0] / scale:.2f}")
                    if scale > 1 and max(moved) > 0:
                        row[-1] += f" of {results.summary(moved)[0] / scale:.2f}"
            yield row

    names = [f"{kind}: {what}" for what in ("processor", "MB") for kind in kinds]
    table = charts.table(["", "ranks", "start, s", *names], rows())
    return f"### Start, processor time and bytes\n\n{table}"


def _ranks(result: dict[str, Any]) -> list[int]:
    return sorted({row["ranks"] for row in result["runs"]})


def _checks(result: dict[str, Any]) -> str:
    """Returns the table of differences from one process."""
    kinds = list(result["epochs"])

    def rows() -> Iterator[list[str]]:
        for row in result["checks"]:
            numbers = [f"{row[kind]:.0e}" if kind in row else "failed" for kind in kinds]
            first = [f"{row[f'{kind}_of_first']:.0e}" if kind in row else "" for kind in kinds]
            yield [row["peer"], str(row["ranks"]), *numbers, *first]

    head = ["", "ranks", *kinds, *(f"{kind}, from tfring's" for kind in kinds)]
    return "### Do they compute the same?\n\n" + charts.table(head, rows())


def _faults(result: dict[str, Any]) -> Iterator[str]:
    """Yields a table for each fault."""
    for kind, title in _FAULTS.items():
        found = [row for row in result["faults"] if row["fault"] == kind]
        rows = [_fault(row) for row in found]
        head = [
            "",
            "the others end after",
            "exit code",
            "it says after",
            "it says",
            "equal weights",
        ]
        if rows:
            yield f"### {title}\n\n{charts.table(head, iter(rows))}"


def _fault(row: dict[str, Any]) -> list[str]:
    if "error" in row:
        return [row["peer"], "", "", "", row["error"][-_SAID:].replace("\n", " "), ""]
    ends = "never" if row["seconds"] is None else f"{row['seconds']:.1f} s"
    codes = "" if row["seconds"] is None else ", ".join(str(code) for code in row["codes"])
    after = "" if row["said_after_s"] is None else f"{row['said_after_s']:.1f} s"
    said = row["said"].replace("|", "/").replace("<", "&lt;")
    said = said if len(said) <= _SAID else said[:_SAID] + " ..."
    equal = {None: "", True: "yes", False: "**no**"}[row["equal_weights"]]
    return [row["peer"], ends, codes, after, said or "nothing", equal]


def _conditions(result: dict[str, Any]) -> str:
    """Returns on what it was measured."""
    machine = result["machine"]
    lines = [
        f"Measured on {machine['cpu']}, {machine['cores']} cores, with a load of "
        f"{machine['load']:.1f} when it began."
    ]
    for ranks in _ranks(result):
        rows = [row for row in result["runs"] if row["ranks"] == ranks]
        failed = sum("error" in row for row in rows)
        runs = Counter(row["peer"] for row in rows)
        least, most = min(runs.values()), max(runs.values())
        each = str(most) if least == most else f"{least} to {most}"
        shared = ", which share cores" if ranks > machine["cores"] else ""
        lines.append(f"{ranks} ranks{shared}: {each} runs of each; {failed} in all failed.")
    if not result["network"]:
        lines.append("The bytes are those of all programs on the machine: there was no namespace.")
    lines += [f"{peer} is not there: {why}" for peer, why in result["skipped"].items()]
    versions = [
        f"{peer}: {', '.join(f'{name} {number}' for name, number in found.items())}"
        for peer, found in result["versions"].items()
    ]
    return "\n".join([*lines, "", *(f"- {each}" for each in versions), ""])
