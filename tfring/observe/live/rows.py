"""Turns the record of a rank, and /proc, into what is known of the rank at one moment."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tfring.observe.recorder import layout
from tfring.observe.recorder.entries import make_plans
from tfring.observe.recorder.gradients import find_gradient_calls
from tfring.observe.recorder.job import JobRecords, find_members
from tfring.observe.recorder.layout import EventType, RankState
from tfring.observe.recorder.processes import process_state, stat_fields
from tfring.observe.recorder.reader import Call, Record
from tfring.observe.recorder.rounds import rounds_of
from tfring.observe.recorder.steps import steps_of
from tfring.runtime.gpu.usage import GpuUse

# Efficiency is computed in this many of the newest calls.
_NEWEST_CALLS = 2048
_LEAST_STEPS = 2
_TROUBLE = (EventType.ABORT, EventType.WARNING, EventType.CALL_FAILED, EventType.STEP_FAILED)


@dataclass(frozen=True)
class Row:
    """One rank at one moment: plain values that go through JSON.

    Attributes:
        record: The header of its record, see layout.HEADER: counters such as "bytes_sent".
        time: When this was read, in nanoseconds of the host's monotonic clock.
        process: "running", "stopped", "gone", or "unknown" for a process in another container.
        step: The step it is in: marked by its program, else counted; -1: unknown.
        cpu: Processor time of its process so far, in seconds; 0: unknown.
        memory: Resident, in bytes; 0: unknown.
        gpu: How busy its GPU is, in percent; -1: unknown.
        gpu_memory: Bytes that its process holds on the GPU.
        asked: Process set, name, invocation, kind, call site and time of the waiting calls, the
            oldest first.
        members: The ranks that the oldest waiting call needs, if its process set is known.
        waits_peer: The rank at the other end of the stream that the running plan waits for; -1:
            none.
        waits_since: Since when.
        waits_in: What runs.
        runs_in: The oldest call that has a plan and has not ended; "": none. In a locked schedule
            some rank may not have made it.
        runs_since: When that was made.
        late: On rank 0: how long the others waited for each rank, in nanoseconds; else empty.
        efficiency: Share of the time of the newest steps in which the rank did not wait for
            gradients after its backward pass; -1: unknown.
        trouble: The newest error or warning of the runtime on this rank.
        trouble_at: When that was; 0: there was none.
    """

    record: dict[str, Any]
    time: int
    process: str
    step: int
    cpu: float
    memory: int
    gpu: float
    gpu_memory: int
    asked: list[tuple[int, str, int, str, str, int]]
    members: list[int]
    waits_peer: int
    waits_since: int
    waits_in: str
    runs_in: str
    runs_since: int
    late: list[int]
    efficiency: float
    trouble: str
    trouble_at: int

    @property
    def rank(self) -> int:
        """Its rank in the job."""
        return int(self.record["rank"])

    @property
    def host(self) -> str:
        """The name of its host."""
        return str(self.record["host"])

    @property
    def state(self) -> RankState:
        """What the rank wrote last."""
        return RankState(self.record["state"])

    @property
    def loss(self) -> float | None:
        """Of the epoch so far, in `fit`; None: unknown."""
        return float(self.record["loss"]) if self.record["has_loss"] else None


def parse_row(values: dict[str, Any]) -> Row:
    """Returns a row from what `as_object` made of one; other values are ignored.

    Raises:
        ValueError: A value is missing.
    """
    try:
        taken = {field.name: values[field.name] for field in dataclasses.fields(Row)}
        record = {name: values["record"][name] for name in layout.HEADER.names or ()}
        asked = [tuple(one) for one in taken["asked"]]
        return Row(**{**taken, "record": record, "asked": asked})
    except (KeyError, TypeError) as error:
        raise ValueError(
            "another host runs a different version of tfring: install one version on all hosts"
        ) from error


def make_row(record: Record, gpus: Mapping[int, GpuUse] | None = None) -> Row:
    """Returns what a record, /proc of its process, and NVML say.

    Args:
        record: Just read.
        gpus: As `gpu_use` returns it, just now.
    """
    process = process_state(record.header) or "unknown"
    here = process not in ("gone", "unknown")
    gpu = (gpus or {}).get(record.pid, GpuUse(-1.0, 0)) if here else GpuUse(-1.0, 0)
    waiting = [call for call in record.open_calls if call.waits]
    running = [call for call in record.open_calls if call.runs]
    waits = record.raw_plans[
        (record.raw_plans["ended"] == 0) & (record.raw_plans["waits_since"] != 0)
    ]
    plan = next(iter(make_plans(waits[:1])), None)
    trouble = [event for event in record.events if event.type in _TROUBLE]
    return Row(
        record=record.header,
        time=record.read or 0,
        process=process,
        step=_step(record),
        cpu=_cpu(record.pid) if here else 0.0,
        memory=_memory(record.pid) if here else 0,
        gpu=gpu.percent,
        gpu_memory=gpu.memory,
        asked=[_asked(call) for call in waiting],
        members=_members(record, waiting[0]) if waiting else [],
        waits_peer=plan.waits_peer if plan else -1,
        waits_since=plan.waits_since if plan else 0,
        waits_in=_names([call for call in running if plan and call.sequence == plan.sequence]),
        runs_in=running[0].text() if running else "",
        runs_since=running[0].submitted if running else 0,
        late=record.ranks["late"].tolist() if record.rank == 0 else [],
        efficiency=_efficiency(record.raw_calls[-_NEWEST_CALLS:]),
        trouble=trouble[-1].text if trouble else "",
        trouble_at=trouble[-1].time if trouble else 0,
    )


def _asked(call: Call) -> tuple[int, str, int, str, str, int]:
    where = (call.process_set, call.name, call.invocation, call.kind)
    return (*where, call.call_site, call.submitted)


def _members(record: Record, call: Call) -> list[int]:
    if call.kind == "send/recv":
        return sorted({call.root, call.peer})
    sets = find_members(JobRecords({record.rank: record}, {}))
    return list(sets.get(call.process_set, ()))


def _names(calls: list[Call]) -> str:
    if not calls:
        return ""
    more = f" and {len(calls) - 1} more" if len(calls) > 1 else ""
    return f"{calls[0].kind} of '{calls[0].name}'{more}"


def _step(record: Record) -> int:
    if record.header["step"] >= 0:
        return int(record.header["step"])
    calls = record.raw_calls[-_NEWEST_CALLS:]
    found = find_gradient_calls(calls)
    newest = np.argsort(calls["number"][found.at])[-1:]
    return int(found.number[newest[0]]) if len(newest) else -1


def _efficiency(calls: np.ndarray[Any, Any]) -> float:
    """Returns the share of time that was not spent in communication that nothing hid."""
    rounds = rounds_of(steps_of(calls))
    time = int((rounds.end - rounds.began).sum())
    return float(rounds.own.sum()) / time if time and len(rounds) >= _LEAST_STEPS else -1.0


def _cpu(pid: int) -> float:
    with contextlib.suppress(OSError, ValueError, IndexError):
        user, system = stat_fields(pid)[11:13]
        return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")
    return 0.0


def _memory(pid: int) -> int:
    with contextlib.suppress(OSError, ValueError, IndexError):
        pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")
    return 0
