"""Answers the rules' questions about the records: who waits in what, who called what and when."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import NamedTuple

from tfring.observe.explain.places import find_place
from tfring.observe.explain.processes import Seen
from tfring.observe.recorder.job import JobRecords, find_members
from tfring.observe.recorder.layout import EventType, RankState
from tfring.observe.recorder.reader import Call, Event, find_last_sign
from tfring.observe.recorder.stacks import KEEPS_LOCK
from tfring.runtime.texts.ranks import listed, ranks_text
from tfring.runtime.texts.times import time_text

SECOND = 1_000_000_000
# A wait may take this long if there are no earlier calls: ranks load and compile.
FIRST_PATIENCE = 5 * SECOND
# Shorter waits are not reported.
MIN_PATIENCE = SECOND
# With more ranks hosts and processes are left out.
_LISTED = 4
# The status of calls that were waiting when their job broke.
_ENDED_FROM_OUTSIDE = ("Cancelled", "Aborted", "DeadlineExceeded", "Unavailable")


class Key(NamedTuple):
    """Which call of a process set: the `invocation`-th of its name."""

    process_set: int
    name: str
    invocation: int


class Situation:
    """The records of a job together with its processes.

    Times are nanoseconds of the job's common clock.

    Args:
        job: The records.
        seen: The processes, by rank; missing ones are unknown.
    """

    def __init__(self, job: JobRecords, seen: Mapping[int, Seen]) -> None:
        self.job = job
        self.seen = seen
        self.ranks = sorted(job.records)
        self._missing: dict[tuple[Key, str, int, int], list[int]] = {}

    def state(self, rank: int) -> str | None:
        """Returns the state of a rank's process: see Seen.state."""
        return self.seen[rank].state if rank in self.seen else None

    def left(self, rank: int) -> bool:
        """Tells whether a rank has recorded its end."""
        return self.job.records[rank].state is not RankState.RUNNING

    @cached_property
    def now(self) -> int:
        """When the records were read; of a job that is over: when a rank last did anything."""
        alive = [
            self.job.common(rank, record.read)
            for rank, record in self.job.records.items()
            if record.read is not None and self.state(rank) in ("running", "stopped", None)
        ]
        return max(alive) if alive else max(self.last_sign(rank) for rank in self.ranks)

    def last_sign(self, rank: int) -> int:
        """Returns when a rank is last known to have run."""
        return self.job.common(rank, find_last_sign(self.job.records[rank]))

    def common(self, rank: int, time: int) -> int:
        """Returns a time of a rank on the common clock."""
        return self.job.common(rank, time)

    @cached_property
    def open(self) -> dict[int, list[Call]]:
        """By rank: calls without a result now, or when the job broke; the oldest first."""
        found = {}
        for rank, record in self.job.records.items():
            last = max((c.ended for c in record.calls if c.status == "OK"), default=0)
            broken = self.left(rank)
            found[rank] = [
                call
                for call in record.calls
                if call.ended == 0
                or (broken and call.status in _ENDED_FROM_OUTSIDE and call.ended >= last)
            ]
        return found

    @cached_property
    def waiting(self) -> dict[int, list[Call]]:
        """By rank: open calls that some rank has not made.

        Such a call has no plan, except in a lock: there a rank gets the plan before the others have
        made the call.
        """
        return {
            rank: [call for call in calls if call.planned == 0 or self._late(call)]
            for rank, calls in self.open.items()
        }

    @cached_property
    def counts(self) -> dict[int, dict[tuple[int, str], int]]:
        """By rank: how often it has called each name of a process set."""
        counts: dict[int, dict[tuple[int, str], int]] = {}
        for rank, record in self.job.records.items():
            own = counts[rank] = defaultdict(int)
            for call in record.calls:
                name = call.process_set, call.name
                own[name] = max(own[name], call.invocation)
        return counts

    @cached_property
    def sets(self) -> dict[int, tuple[int, ...]]:
        """The members of each process set."""
        return find_members(self.job)

    def has_called(self, rank: int, key: Key) -> bool:
        """Tells whether a rank has made a call."""
        return self.counts[rank].get((key.process_set, key.name), 0) >= key.invocation

    @cached_property
    def failures(self) -> dict[int, list[Event]]:
        """By rank: failures that no successful call followed.

        If nothing failed, the exception with which a rank ends counts as one.
        """
        types = (EventType.CALL_FAILED, EventType.STEP_FAILED, EventType.ABORT)
        found = {}
        for rank, record in self.job.records.items():
            last = max((call.ended for call in record.calls if call.status == "OK"), default=0)
            events = [e for e in record.events if e.type in types and e.time >= last]
            ends = [e for e in record.events if e.type is EventType.SHUTDOWN and e.text]
            found[rank] = events or ends
        return found

    def joined(self, rank: int, process_set: int) -> bool:
        """Tells whether a rank waits in join, so that nobody waits for it in a process set.

        A rank that joins the global set is left out of each set.
        """
        sets = (0, process_set)
        return any(c.kind == "join" and c.process_set in sets for c in self.open.get(rank, ()))

    def missing(self, call: Call) -> list[int]:
        """Returns the ranks that have not made a call that others wait in.

        Ranks without a record are among them only if all others have made it.
        """
        key = make_key(call), call.kind, call.root, call.peer
        if key not in self._missing:  # all ranks that wait in it ask
            self._missing[key] = self._missing_of(call)
        return self._missing[key]

    def _missing_of(self, call: Call) -> list[int]:
        unknown = [rank for rank in self.members_of(call) if rank not in self.counts]
        return self._late(call) or unknown

    def _late(self, call: Call) -> list[int]:
        """Returns the ranks whose records show that they have not made a call."""
        return [
            rank
            for rank in self.members_of(call)
            if rank in self.counts
            and not self.has_called(rank, make_key(call))
            and (call.kind == "join" or not self.joined(rank, call.process_set))
        ]

    def members_of(self, call: Call) -> list[int]:
        """Returns the ranks that take part in a call."""
        if call.kind == "send/recv":
            return sorted({call.root, call.peer})
        return sorted(self.sets.get(call.process_set, ()))

    def waited(self, rank: int, call: Call) -> int:
        """Returns how long a rank has waited in a call, until its end or now."""
        end = self.common(rank, call.ended) if call.ended else self.now
        return max(0, end - self.common(rank, call.submitted))

    def overdue(self, rank: int, call: Call, missing: int | None = None) -> bool:
        """Tells whether a rank has waited longer in a call than is usual, or to the limit.

        Args:
            rank: Which one waits.
            call: In what.
            missing: A rank that has not made the call and may still come; None: none can.
        """
        limit = self.patience
        if missing is not None:
            limit = max(limit, self._patience_at_first(rank, call, missing))
        return call.status == "DeadlineExceeded" or self.waited(rank, call) > limit

    def _patience_at_first(self, rank: int, call: Call, missing: int) -> int:
        """Returns how long a rank may wait for another that may still compile; 0: it does not.

        How long the other needs is unknown. The rank that waits did the same before its call.
        """
        seen = self.seen.get(missing)
        if call.invocation != 1 or (seen is not None and seen.busy is False):
            return 0
        calls = self.job.records[rank].calls
        began = max((c.ended for c in calls if 0 < c.ended <= call.submitted), default=0)
        began = max(began, int(self.job.records[rank].header["started_monotonic"]))
        return max(FIRST_PATIENCE, 3 * (call.submitted - began))

    @cached_property
    def lives(self) -> bool:
        """Whether a process of the job may still be alive."""
        return any(self.state(rank) != "gone" for rank in self.ranks)

    @cached_property
    def killed_together(self) -> bool:
        """Whether no process is left, and none has recorded why."""
        return all(self.state(rank) == "gone" and not self.left(rank) for rank in self.ranks)

    def last_call(self, rank: int) -> Call | None:
        """Returns the last call that ended well on a rank."""
        done = [call for call in self.job.records[rank].calls if call.status == "OK"]
        return max(done, key=lambda call: call.ended, default=None)

    def idle(self, rank: int) -> int:
        """Returns for how long a rank has had no call and no result."""
        calls = self.job.records[rank].calls
        last = max((t for c in calls for t in (c.submitted, c.ended)), default=0)
        last = max(last, int(self.job.records[rank].header["started_monotonic"]))
        return max(0, self.now - self.common(rank, last))

    @cached_property
    def patience(self) -> int:
        """How long a wait may be in this job: three times the usual wait."""
        later: list[Call] = []
        for record in self.job.records.values():
            ended = [call for call in record.calls if call.status == "OK" and call.planned]
            later += ended[min(4, len(ended) // 2) :]
        # Before the first call of a name ranks compile, so it says nothing about later ones.
        known = [call for call in later if call.invocation != 1] or later
        # Until the end, not the plan: in a lock the plan comes at once, and the wait follows.
        usual = max((call.ended - call.submitted for call in known), default=None)
        return FIRST_PATIENCE if usual is None else max(MIN_PATIENCE, 3 * usual)

    def who(self, rank: int) -> str:
        """Returns "rank 2 (host b, process 4711)"."""
        if rank not in self.job.records:
            return f"rank {rank}"
        record = self.job.records[rank]
        return f"rank {rank} (host {record.host}, process {record.pid})"

    def whom(self, ranks: Iterable[int]) -> str:
        """Returns `who` of several ranks; of many only their numbers."""
        named = list(ranks)
        return ranks_text(named) if len(named) > _LISTED else listed(list(map(self.who, named)))

    def events(self) -> list[tuple[int, int, Event]]:
        """Returns all events as (time, rank, event) in order of time."""
        found = [
            (self.common(rank, event.time), rank, event)
            for rank, record in self.job.records.items()
            for event in record.events
        ]
        return sorted(found, key=lambda entry: (entry[0], entry[1]))

    def waiters(self, without: Iterable[int] = ()) -> str:
        """Returns "ranks 0, 1 and 3 wait in allreduce of tensor 'x' (train.py:40)", or ""."""
        places: dict[str, list[int]] = defaultdict(list)
        for rank, calls in self.open.items():
            if calls and rank not in without:
                places[calls[0].text()].append(rank)
        verbs = ("waits", "wait") if self.lives else ("waited", "waited")
        return "; ".join(
            f"{ranks_text(ranks)} {verbs[len(ranks) > 1]} in {place}"
            for place, ranks in places.items()
        )

    def doing(self, rank: int) -> str:
        """Returns "sleeps in load_batch (data.py:12)" from a rank's stacks; "" without them."""
        seen = self.seen.get(rank, Seen(None))
        where = "" if KEEPS_LOCK in seen.stacks else find_place(seen.stacks, seen.kernel)
        if not where:
            return ""
        where, _, waits = where.partition(", ")
        if waits == "sleeping":
            return f"sleeps in {where}"
        if waits.startswith("waiting for "):
            return f"waits for {waits.removeprefix('waiting for ')} in {where}"
        verb = {True: "computes", False: "waits", None: "is"}[seen.busy]
        return f"{verb} in {where}" + (f", {waits}" if waits else "")

    def place_text(self, rank: int) -> str:
        """Returns " It is in load_batch (data.py:12)." from a rank's stacks; "" without them."""
        seen = self.seen.get(rank, Seen(None))
        if KEEPS_LOCK in seen.stacks:
            pid = self.job.records[rank].pid
            return (
                f" Its current line is unknown, because {KEEPS_LOCK}. `py-spy dump --pid {pid}` "
                "shows it."
            )
        where = find_place(seen.stacks, seen.kernel)
        return f" It is in {where}." if where else ""


def make_key(call: Call) -> Key:
    """Returns which call of its process set a call is."""
    return Key(call.process_set, call.name, call.invocation)


def duration(nanoseconds: float) -> str:
    """Returns "12 s" or "0.4 s"."""
    return time_text(nanoseconds / SECOND)
