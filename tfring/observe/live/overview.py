"""Makes a view of a job from the rows of its ranks: rates, and who waits for whom."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tfring.observe.live.rows import Row
from tfring.observe.recorder.layout import RankState
from tfring.observe.recorder.memory import RankMemory, memory_in
from tfring.observe.recorder.places import id_of
from tfring.runtime.texts.ranks import ranks_text

# Only waits from this many seconds on are shown.
SHOWN_WAIT = 2.0
_SECOND = 1e9
_ENDED = {RankState.LEFT: "has left", RankState.FAILED: "has failed"}


@dataclass(frozen=True)
class RankView:
    """One rank as it is shown. Rates and shares are of the last 10 s; None: unknown.

    Attributes:
        rank: Its number.
        doing: "running", "stopped", "gone", "waits 3 s for rank 1 in ...".
        steps: Per second.
        samples: Per second.
        input: Share of the time in which it waited for input.
        exchange: Share of the time in which it waited for others, or for gradients.
        callbacks: Share of the time that callbacks took after each batch.
        cpu: Processors that it kept busy: 2.0 is two.
        awaited: Share of the time in which all other ranks waited for this one alone.
        memory: What it holds for training.
        row: What was read.
    """

    rank: int
    doing: str
    steps: float | None
    samples: float | None
    input: float | None
    exchange: float | None
    callbacks: float | None
    cpu: float | None
    awaited: float | None
    memory: RankMemory
    row: Row

    @property
    def state(self) -> str:
        """What it does, in at most three words."""
        if self.doing.startswith("waits "):
            return " ".join(self.doing.split()[:3])
        return "awaited" if self.doing.endswith(" for it") else self.doing


@dataclass(frozen=True)
class Overview:
    """A job at one moment.

    Attributes:
        job: Its id.
        size: The number of its ranks.
        ranks: Those that are known.
        missing: The others.
        samples: Per second, of all ranks together; None: unknown.
        trouble: The newest error or warning, with its rank and age.
        verdict: What is wrong with the job, in a sentence; "": nothing, or unknown.
    """

    job: str
    size: int
    ranks: list[RankView]
    missing: list[int]
    samples: float | None
    trouble: str
    verdict: str = ""

    @property
    def calm(self) -> bool:
        """Whether each rank runs, so that nothing needs an explanation."""
        return all(view.doing in ("running", "has left") for view in self.ranks)


def make_overview(before: Sequence[Row], now: Sequence[Row]) -> Overview:
    """Returns the job as of now, with the rates since before.

    Args:
        before: Earlier rows; none: there are no rates. Of several of one rank, the last one counts.
        now: Rows of one job, of different ranks, at least one.
    """
    rows = sorted(now, key=lambda row: row.rank)
    old = {_life(row): row for row in before}
    pairs = [(old.get(_life(row)), row) for row in rows]
    awaited = _awaited(pairs)
    blamed = [find_absent(row, rows) for row in rows if _waits_long(row)]
    views = [
        RankView(
            rank=row.rank,
            doing=(doing := describe_state(row, rows)),
            steps=_rate(was, row, lambda one: one.step) if row.step >= 0 else None,
            samples=_rate(was, row, _samples) if _samples(row) else None,
            input=_share(was, row, "input_time"),
            exchange=_exchange(doing, row),
            callbacks=_share(was, row, "callback_time"),
            cpu=_rate(was, row, lambda one: one.cpu) if row.cpu else None,
            # Rank 0 counts a wait when it is over.
            awaited=1.0 if [row.rank] in blamed else awaited.get(row.rank),
            memory=memory_in(row.record),
            row=row,
        )
        for was, row in pairs
    ]
    samples = [view.samples for view in views if view.samples is not None]
    troubled = [row for row in rows if row.trouble_at]
    newest = min(troubled, key=lambda row: _seconds(row, row.trouble_at), default=None)
    size = int(rows[0].record["size"])
    return Overview(
        job=id_of(str(rows[0].record["job"])),
        size=size,
        ranks=views,
        missing=sorted(set(range(size)) - {row.rank for row in rows}),
        samples=sum(samples) if samples else None,
        trouble=_trouble(newest) if newest else "",
    )


def describe_state(row: Row, rows: Sequence[Row]) -> str:
    """Returns what a rank does, in a few words; `rows` are those of all known ranks."""
    if row.process == "gone":
        return _ENDED.get(row.state, "gone")
    if row.process == "stopped":
        return "stopped"
    if row.state in _ENDED:
        return _ENDED[row.state]
    if row.waits_peer >= 0 and _seconds(row, row.waits_since) >= SHOWN_WAIT:
        waits = f"waits {_seconds(row, row.waits_since):.0f} s for rank {row.waits_peer}"
        return f"{waits} in the middle of {row.waits_in or 'a collective'}"
    if _waits_long(row):
        _, name, _, kind, site, since = row.asked[0]
        absent = find_absent(row, rows)
        for_whom = f" for {ranks_text(absent)}" if absent else ""
        where = f" at {site}" if site else ""
        return f"waits {_seconds(row, since):.0f} s{for_whom} in {kind} of '{name}'{where}"
    if row.runs_in and _seconds(row, row.runs_since) >= SHOWN_WAIT:
        return f"waits {_seconds(row, row.runs_since):.0f} s in {row.runs_in}"
    by = [
        other.rank for other in rows if _waits_long(other) and row.rank in find_absent(other, rows)
    ]
    return f"{ranks_text(by)} wait{'s' if len(by) == 1 else ''} for it" if by else "running"


def find_absent(row: Row, rows: Sequence[Row]) -> list[int]:
    """Returns the ranks that have not made the oldest call in which a rank waits.

    A waiting call has ended nowhere, so each rank that made it has it among its waiting calls. A
    rank that joins the global process set is left out of each set.
    """
    if not row.asked:
        return []
    wanted = row.asked[0][:3]
    sets = (0, wanted[0])
    return [
        other.rank
        for other in rows
        if other.rank in row.members
        and not any(
            one[:3] == wanted or (one[0] in sets and one[3] == "join") for one in other.asked
        )
    ]


def _exchange(doing: str, row: Row) -> float | None:
    if doing.startswith("waits "):  # the newest step is older than that
        return 1.0
    return 1 - row.efficiency if row.efficiency >= 0 else None


def _trouble(row: Row) -> str:
    return f"{_seconds(row, row.trouble_at):.0f} s ago on rank {row.rank}: {row.trouble}"


def _waits_long(row: Row) -> bool:
    return bool(row.asked) and _seconds(row, row.asked[0][5]) >= SHOWN_WAIT


def _seconds(row: Row, since: int) -> float:
    return max(0.0, (row.time - since) / _SECOND)


def _life(row: Row) -> tuple[int, ...]:
    """Returns values that differ when a rank has been started anew."""
    return tuple(int(row.record[name]) for name in ("rank", "generation", "pid"))


def _samples(row: Row) -> int:
    return int(row.record["samples"])


def _share(before: Row | None, now: Row, name: str) -> float | None:
    """Returns the share of time by which a sum of nanoseconds in the header has grown."""
    if not now.record["epoch"] and not now.record[name]:  # neither `fit` nor the program says so
        return None
    rate = _rate(before, now, lambda one: float(one.record[name]))
    return None if rate is None else min(1.0, rate / _SECOND)


def _rate(before: Row | None, now: Row, value: Callable[[Row], float]) -> float | None:
    if before is None or now.time <= before.time:
        return None
    more = value(now) - value(before)
    return max(0.0, more) / ((now.time - before.time) / _SECOND)


def _awaited(pairs: Sequence[tuple[Row | None, Row]]) -> dict[int, float]:
    """Returns for each rank the share of time in which the others waited for it; rank 0 knows."""
    for before, now in pairs:
        if before is not None and now.late and now.time > before.time:
            time = now.time - before.time
            # Several calls can wait at a time, so the sum may be more than the time.
            waits = enumerate(zip(before.late, now.late, strict=False))
            return {rank: min(1.0, max(0, new - old) / time) for rank, (old, new) in waits}
    return {}
