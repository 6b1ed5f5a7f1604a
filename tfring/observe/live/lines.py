"""The lines of `tfring top`: of one rank, or of all ranks of a host together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean

from tfring.observe.live.overview import RankView
from tfring.runtime.texts.ranks import rank_ranges

# The worst first: of several ranks the line has the colour of the worst one.
STATES = ("gone", "has failed", "stopped", "waits", "awaited", "running", "has left")


@dataclass(frozen=True)
class Line:
    """One line; None: unknown. Times are shares, of several ranks their mean.

    Attributes:
        ranks: Its ranks, ascending.
        host: Their host.
        state: In a few words.
        worst: One of STATES.
        doing: All that is known of the state, if there is room.
        last: The newest collective of the only rank.
    """

    ranks: tuple[int, ...]
    host: str
    state: str
    worst: str
    doing: str
    last: str
    epoch: int | None
    epochs: int | None
    step: int | None
    loss: float | None
    steps: float | None
    samples: float | None
    input: float | None
    exchange: float | None
    callbacks: float | None
    awaited: float | None
    cpu: float | None
    memory: float | None
    gpu: float | None
    gpu_memory: float | None
    waiting: float | None
    running: float | None

    @property
    def name(self) -> str:
        """The ranks as text: "3" or "0-7"."""
        return rank_ranges(self.ranks)


def of_rank(view: RankView) -> Line:
    """Returns the line of one rank."""
    return _line([view], view.state, view.doing, _last(view))


def by_host(views: Sequence[RankView]) -> list[Line]:
    """Returns a line for each host, with sums of samples, processors and memory."""
    hosts: dict[str, list[RankView]] = {}
    for view in views:
        hosts.setdefault(view.row.host, []).append(view)
    return [_line(each, _states(each), _states(each), "") for each in hosts.values()]


def _line(views: Sequence[RankView], state: str, doing: str, last: str) -> Line:
    kinds = [_kind(view) for view in views]

    def collect(
        how: Callable[[list[float]], float], value: Callable[[RankView], float | None]
    ) -> float | None:
        known = [one for view in views if (one := value(view)) is not None]
        return how(known) if known else None

    def least(value: Callable[[RankView], int]) -> int | None:
        return min((value(view) for view in views if value(view) > 0), default=None)

    steps = [view.row.step for view in views if view.row.step >= 0]
    return Line(
        ranks=tuple(view.row.rank for view in views),
        host=views[0].row.host,
        state=state,
        worst=min(kinds, key=STATES.index),
        doing=doing,
        last=last,
        epoch=least(lambda view: int(view.row.record["epoch"])),
        epochs=least(lambda view: int(view.row.record["epochs"])),
        step=min(steps, default=None),
        loss=collect(fmean, lambda view: view.row.loss),
        steps=collect(min, lambda view: view.steps),
        samples=collect(sum, lambda view: view.samples),
        input=collect(fmean, lambda view: view.input),
        exchange=collect(fmean, lambda view: view.exchange),
        callbacks=collect(fmean, lambda view: view.callbacks),
        awaited=collect(max, lambda view: view.awaited),
        cpu=collect(sum, lambda view: view.cpu),
        memory=collect(sum, lambda view: view.row.memory or None),
        gpu=collect(fmean, lambda view: view.row.gpu if view.row.gpu >= 0 else None),
        gpu_memory=collect(sum, lambda view: view.row.gpu_memory or None),
        waiting=collect(sum, lambda view: view.row.waiting),
        running=collect(sum, lambda view: view.row.running),
    )


def _kind(view: RankView) -> str:
    return "waits" if view.state.startswith("waits") else view.state


def _states(views: Sequence[RankView]) -> str:
    """Returns "running", or "2 waiting, 6 running" if ranks differ."""
    counts = Counter(_kind(view) for view in views)
    if len(counts) == 1:
        return views[0].state
    kinds = [kind for kind in STATES if kind in counts]
    return ", ".join(f"{counts[kind]} {'waiting' if kind == 'waits' else kind}" for kind in kinds)


def _last(view: RankView) -> str:
    if not view.row.last:
        return "none yet"
    age = (view.row.time - view.row.last_at) / 1e9
    return f"{age:.0f} s ago: {view.row.last}" if age >= 2 else view.row.last
