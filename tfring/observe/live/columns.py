"""The lines and columns of `tfring top`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, NamedTuple

from tfring.observe.live.overview import RankView
from tfring.observe.recorder.memory import NAMES
from tfring.runtime.texts.ranks import rank_ranges
from tfring.runtime.texts.sizes import size_text

# The worst first: of several ranks the line has the colour of the worst one.
STATES = ("gone", "has failed", "stopped", "waits", "awaited", "running", "has left")


@dataclass(frozen=True)
class Line:
    """One line of the table, about one rank or all ranks of a host."""

    views: tuple[RankView, ...]

    @property
    def ranks(self) -> tuple[int, ...]:
        """Its ranks, ascending."""
        return tuple(view.row.rank for view in self.views)

    @property
    def name(self) -> str:
        """The ranks as text: "3" or "0-7"."""
        return rank_ranges(self.ranks)

    @property
    def host(self) -> str:
        """The host of its ranks."""
        return self.views[0].row.host

    @property
    def worst(self) -> str:
        """The worst state of its ranks, one of STATES."""
        return min(map(_kind, self.views), key=STATES.index)

    @property
    def state(self) -> str:
        """As "running", or "2 waiting, 6 running" if ranks differ."""
        counts = Counter(map(_kind, self.views))
        if len(counts) == 1:
            return self.views[0].state
        kinds = [kind for kind in STATES if kind in counts]
        return ", ".join(f"{counts[k]} {'waiting' if k == 'waits' else k}" for k in kinds)

    @property
    def doing(self) -> str:
        """All that is known of the state."""
        return self.views[0].doing if len(self.views) == 1 else self.state


def group_by_host(views: Sequence[RankView]) -> list[Line]:
    """Returns a line for each host."""
    hosts: dict[str, list[RankView]] = {}
    for view in views:
        hosts.setdefault(view.row.host, []).append(view)
    return [Line(tuple(each)) for each in hosts.values()]


def _kind(view: RankView) -> str:
    return "waits" if view.state.startswith("waits") else view.state


class Column(NamedTuple):
    """A column.

    Attributes:
        name: Its heading.
        value: Of a line; None: unknown.
        text: Formats a known value.
        about: For the help.
        least_width: Of the window, to show this column.
        right: Whether it is a number.
    """

    name: str
    value: Callable[[Line], Any]
    text: Callable[[Any], str]
    about: str
    least_width: int = 0
    right: bool = True


def format_number(value: float) -> str:
    """Returns a number with about three digits."""
    return f"{value:.2f}" if value < 10 else f"{value:.0f}"


def format_percent(value: float) -> str:
    """Returns a share as text."""
    return f"{100 * value:.0f} %"


def format_loss(value: float) -> str:
    """Returns a loss with about four digits, so that those of ranks line up."""
    return f"{value:#.4g}" if abs(value) < 1000 else f"{value:.4g}"


def _of(
    combine: Callable[[list[Any]], Any], value: Callable[[RankView], Any]
) -> Callable[[Line], Any]:
    """Returns a function that combines the known values of a line's ranks."""

    def combined(line: Line) -> Any:
        known = [one for view in line.views if (one := value(view)) is not None]
        return combine(known) if known else None

    return combined


def _epoch(view: RankView) -> tuple[int, int] | None:
    record = view.row.record
    return (int(record["epoch"]), int(record["epochs"])) if record["epoch"] else None


def _epoch_text(value: tuple[int, int]) -> str:
    epoch, epochs = value
    return f"{epoch}/{epochs}" if epochs else str(epoch)


_HELD = {
    "weights": "that optimizers train, and its own parts of them",
    "states": "of optimizers, or its own parts of them",
    "copies": "parts of states that an elastic job keeps of commits",
    "buckets": "buffers of the runtime, on the host",
}


def _held(name: str) -> Column:
    """Returns the column of what a rank holds in memory under one name."""
    value = _of(sum, lambda view: getattr(view.memory, name) or None)
    return Column(name, value, size_text, _HELD[name], 200)


COLUMNS = (
    Column("rank", lambda line: line.ranks[0], str, "which rank; with h, all ranks of a host"),
    Column("host", lambda line: line.host, str, "its host", 110, right=False),
    Column("epoch", _of(min, _epoch), _epoch_text, "in fit: which, and of how many"),
    Column(
        "step",
        _of(min, lambda view: view.row.step if view.row.step >= 0 else None),
        str,
        "steps trained so far",
    ),
    Column(
        "loss",
        _of(fmean, lambda view: view.row.loss),
        format_loss,
        "in fit: of this rank's data, in this epoch",
    ),
    Column("step/s", _of(min, lambda view: view.steps), format_number, "steps per second", 110),
    Column(
        "samples/s",
        _of(sum, lambda view: view.samples),
        format_number,
        "in fit: samples per second",
    ),
    Column(
        "input",
        _of(fmean, lambda view: view.input),
        format_percent,
        "share of the time that it waits for data",
    ),
    Column(
        "exchange",
        _of(fmean, lambda view: view.exchange),
        format_percent,
        "share of the time that it waits for other ranks and for gradients",
    ),
    Column(
        "callbacks",
        _of(fmean, lambda view: view.callbacks),
        format_percent,
        "share of the time that Keras' callbacks take after each batch",
        100,
    ),
    Column(
        "awaited",
        _of(max, lambda view: view.awaited),
        format_percent,
        "share of the time in which all other ranks waited for this one alone",
        100,
    ),
    Column(
        "CPU",
        _of(sum, lambda view: view.cpu),
        format_percent,
        "processors that it keeps busy: 200 % is two",
    ),
    Column(
        "memory",
        _of(sum, lambda view: view.row.memory or None),
        size_text,
        "of its process, on the host",
    ),
    *map(_held, NAMES),
    Column(
        "GPU",
        _of(fmean, lambda view: view.row.gpu if view.row.gpu >= 0 else None),
        lambda value: f"{value:.0f} %",
        "how busy its GPU is",
        78,
    ),
    Column(
        "GPU mem",
        _of(sum, lambda view: view.row.gpu_memory or None),
        size_text,
        "that it holds on its GPU",
        100,
    ),
    Column("state", lambda line: line.state, str, "what it does", right=False),
)
