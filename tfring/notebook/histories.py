"""Pictures of the histories that Keras' fit returns, a line for each rank."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any

_IN_LEGEND = 12  # ranks; more have colors from blue for the first to yellow for the last


class HistoryPlot:
    """A picture that a notebook shows where it is the result of a cell.

    Attributes:
        figure: the matplotlib.figure.Figure, to be changed or saved.
    """

    def __init__(self, figure: Any) -> None:
        """Keeps the figure."""
        self.figure = figure

    def save(self, path: Any) -> None:
        """Writes the picture into a file; the ending of its name says how (.png, .svg, .pdf)."""
        self.figure.savefig(path, bbox_inches="tight")

    def _repr_png_(self) -> bytes:
        """What Jupyter shows."""
        picture = io.BytesIO()
        self.figure.savefig(picture, format="png", bbox_inches="tight")
        return picture.getvalue()


def plot(histories: Any, metrics: str | Sequence[str] | None = None) -> HistoryPlot:
    """Draws metrics by epoch, a line for each rank; validation is dashed.

    Where MetricAverageCallback has made the metrics equal, the lines lie on each other.

    Args:
        histories: what Keras' fit has returned on each rank, by rank, as tfring.run returns it:
            `.history` of it, or the whole History. None is a rank without one.
        metrics: which to draw, one name or several, "loss" for the loss of training and validation;
            all by default.

    Raises:
        ValueError: there is nothing to draw.
        TypeError: something is no history.
        ImportError: matplotlib is missing.
    """
    try:
        # It takes long to load. Figure draws without a window and without global state.
        from matplotlib import colormaps
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(
            f'tfring.notebook.plot needs matplotlib: pip install "tfring[notebook]" ({error})'
        ) from error
    by_rank = _by_rank(histories)
    names = _metrics(by_rank, [metrics] if isinstance(metrics, str) else metrics)
    figure = Figure(figsize=(4.5 * len(names), 3.2), layout="constrained")
    many = len(by_rank) > _IN_LEGEND
    shades = colormaps["viridis" if many else "tab20"]
    for axes, name in zip(figure.subplots(1, len(names), squeeze=False)[0], names, strict=True):
        for number, (rank, history) in enumerate(by_rank.items()):
            color = shades(number / (len(by_rank) - 1) if many else number)
            for key, style in ((name, "-"), (f"val_{name}", "--")):
                values = history.get(key, [])
                label = None if key != name and name in history else f"rank {rank}"
                if len(values):
                    epochs = range(1, len(values) + 1)
                    axes.plot(epochs, values, style, color=color, label=label, marker=".")
        axes.set_xlabel("epoch")
        axes.set_title(name)
        if not many:
            axes.legend(fontsize="small")
    return HistoryPlot(figure)


def _by_rank(histories: Any) -> dict[int, Mapping[str, Sequence[float]]]:
    """Returns the histories of the ranks that have one."""
    listed = list(histories) if isinstance(histories, (list, tuple)) else [histories]
    found: dict[int, Mapping[str, Sequence[float]]] = {}
    for rank, each in enumerate(listed):
        history = getattr(each, "history", each)
        if history is None:
            continue
        if not isinstance(history, Mapping):
            raise TypeError(
                f"tfring.notebook.plot: what rank {rank} returned is no history, but "
                f"{type(each).__name__}: return model.fit(...).history from the function that "
                "tfring.run calls, or give plot the part of its results that is"
            )
        found[rank] = history
    return found


def _metrics(
    by_rank: Mapping[int, Mapping[str, Sequence[float]]], wanted: Sequence[str] | None
) -> list[str]:
    """Returns the metrics to draw, in the order in which Keras has them."""
    keys = [key.removeprefix("val_") for history in by_rank.values() for key in history]
    there = list(dict.fromkeys(keys))
    missing = [name for name in wanted or () if name not in there]
    if missing or not there:
        raise ValueError(
            f"tfring.notebook.plot: no rank has {missing[0] if missing else 'any metric'!r}; "
            f"there is {', '.join(there) or 'nothing'}"
        )
    return there if wanted is None else list(wanted)
