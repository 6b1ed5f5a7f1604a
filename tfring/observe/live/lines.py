"""The lines of `tfring top`: of one rank, or of all ranks of a host together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from tfring.observe.live.overview import RankView
from tfring.runtime.texts.ranks import rank_ranges

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
