"""The picture of a run: net time over the size, beside copying and the peers."""

from __future__ import annotations

from typing import Any

from tfring.bench.result import Result, Row
from tfring.bench.table import title
from tfring.runtime.texts.sizes import size_text

# Colours of C. Wong's palette that all can tell apart: "Points of view: color blindness", Nature
# Methods 8, 2011.
_COLORS = {"tfring": "#0072b2", "copy": "#999999"}
_PEERS = {"mpi": "#d55e00", "gloo": "#009e73", "mwms": "#cc79a7"}
_NAMES = {"copy": "all ranks copy", "mpi": "raw MPI", "gloo": "PyTorch gloo"}
_NAMES["mwms"] = "MultiWorkerMirroredStrategy"


def require_matplotlib() -> None:
    """Checks that the library that draws is there.

    Raises:
        ValueError: It is not; the message says what to install.
    """
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise ValueError("--plot needs matplotlib: pip install 'tfring[report]'") from error


def write_plot(result: Result, path: str) -> None:
    """Writes a picture with a pair of axes for each section.

    Args:
        result: The run.
        path: Of the file; its end says of which kind: .png, .svg, .pdf.

    Raises:
        ValueError: matplotlib is missing, or the kind of file is unknown.
        OSError: The file cannot be written.
    """
    require_matplotlib()
    # matplotlib takes long to load. Figure draws without a window and without global state.
    from matplotlib.figure import Figure

    sections: dict[str, list[Row]] = {}
    for row in result.rows:
        sections.setdefault(row.section, []).append(row)
    figure = Figure(figsize=(8, 4.5 * len(sections)), layout="constrained")
    every = figure.subplots(len(sections), squeeze=False)[:, 0]
    for axes, (section, rows) in zip(every, sections.items(), strict=True):
        (_lines if rows[0].way == "call" else _bars)(axes, rows)
        axes.set_title(section, loc="left")
    figure.suptitle(title(result), fontsize="small")
    figure.savefig(path, dpi=150)


def _lines(axes: Any, rows: list[Row]) -> None:
    """Draws times over sizes; what cannot be told from nothing is left out."""
    ours = [row for row in rows if row.net_low_ms is not None and row.net_low_ms > 0]
    sizes = [row.bytes for row in ours]
    axes.plot(sizes, [row.net_ms for row in ours], "o-", color=_COLORS["tfring"], label="tfring")
    low = [row.net_low_ms for row in ours]
    high = [row.net_high_ms for row in ours]
    axes.fill_between(sizes, low, high, color=_COLORS["tfring"], alpha=0.2, linewidth=0)
    sizes = [row.bytes for row in rows]
    copies = [row.copy_ms for row in rows]
    axes.plot(sizes, copies, "--", color=_COLORS["copy"], label=_NAMES["copy"])
    for name, color in _PEERS.items():
        known = [(row.bytes, row.peers_ms[name]) for row in rows if name in row.peers_ms]
        if known:
            axes.plot(*zip(*known, strict=True), ".-", color=color, label=_NAMES[name])
    axes.set(xscale="log", yscale="log", xlabel="bytes", ylabel="ms, slowest rank, net")
    axes.set_xticks(sizes[::2], [size_text(size) for size in sizes[::2]])
    axes.minorticks_off()
    axes.grid(alpha=0.3)
    axes.legend()


def _bars(axes: Any, rows: list[Row]) -> None:
    """Draws a bar for each way and peer: net times, of steps whole ones."""
    step = rows[0].way == "step"
    bars: list[tuple[str, float, str]] = []
    for row in rows:
        value = row.median_ms if step else row.net_ms
        bars.append((f"tfring, {row.way}", value, _COLORS["tfring"]))
    row = rows[0]
    for name, color in _PEERS.items():
        if name in row.peers_ms:
            bars.append((_NAMES[name], row.peers_ms[name], color))
    if row.copy_ms is not None:
        bars.append((_NAMES["copy"], row.copy_ms, _COLORS["copy"]))
    if step:
        bars.append(("no communication", row.bare_ms, _COLORS["copy"]))
    names, values, colors = zip(*bars, strict=True)
    axes.barh(names, values, color=colors)
    axes.invert_yaxis()
    axes.set_xlabel("ms, slowest rank" + ("" if step else ", net"))
