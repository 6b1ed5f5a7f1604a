"""The spool of a rank: a record with longer rings, which grows while a timeline is on.

A thread of the rank copies there what is new in its own record, a few times a second. So whatever
reads records reads spools, at any time, also after a crash. Behind the record is a ring of what
`fit` noted.
"""

from __future__ import annotations

import glob
import mmap
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from tfring.observe.recorder import layout
from tfring.observe.recorder.files import open_file, parse_rings, size_of
from tfring.observe.recorder.job import JobRecords, find_files, join_records
from tfring.observe.recorder.reader import Record, RecordError, read_header, read_record
from tfring.observe.timeline.phases import PHASE, Phases, PhaseSource

SUFFIX = ".spool"
# Per ring: what numbers its entries, and what is written last.
_KEYS = {"call": ("number", "ended"), "plan": ("sequence", "ended"), "event": ("number", "time")}
_DTYPES = {"call": layout.CALL, "plan": layout.PLAN, "event": layout.EVENT}
# A part of a spool has this many calls, plans and phases, and one event.
_CALLS = 16
_PART_BYTES = _CALLS * (layout.CALL.itemsize + layout.PLAN.itemsize + PHASE.itemsize)
# In a part of the header that records do not use: whether the rank has written everything, and how
# many phases it has noted.
_MORE = np.dtype(
    {
        "names": ["done", "phases"],
        "formats": ["<i8", "<i8"],
        "offsets": [2048, 2056],
        "itemsize": layout.HEADER_BYTES,
    }
)


class SpoolWriter:
    """Copies the record of this process, while the runtime writes it, to a spool. For one thread.

    Args:
        record: The file of this rank's record.
        path: The spool. One of an earlier job is replaced.
        megabytes: The largest size of the spool.
        phases: Has what `fit` notes, which is not in the record.

    Raises:
        OSError: The record cannot be read, or the spool not be written.
    """

    def __init__(self, record: Path, path: Path, megabytes: int, phases: PhaseSource) -> None:
        with record.open("rb") as file:
            # It stays readable when the runtime removes the file.
            self._memory = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self._rings = parse_rings(record, self._memory)
        self._phases, self._noted = phases, 0
        parts = (megabytes << 20) // (_PART_BYTES + layout.EVENT.itemsize)
        parts = min(parts, layout.MOST_SLOTS // _CALLS)
        calls = _CALLS * parts
        self._slots = {"call": calls, "plan": calls, "event": parts, "phases": calls}
        self._at, at = dict[str, int](), layout.HEADER_BYTES
        for name, dtype in _DTYPES.items():
            self._at[name] = at
            at += self._slots[name] * dtype.itemsize
        self._at["rank"] = at
        self._at["phases"] = at + self._rings["rank"].nbytes
        # Number and end of each entry at the last look. Calls and plans that have ended already are
        # left out. What else happened before, init among it, belongs to the timeline.
        self._seen = {name: self._look(name) for name in _KEYS}
        for name, (numbers, ends) in self._seen.items():
            numbers[(ends == 0) | (name == "event")] = 0
        path.unlink(missing_ok=True)
        # Without a buffer: after an error nothing is left to write.
        self._file = path.open("wb", buffering=0)
        self.take()
        self._file.truncate(self._at["phases"] + calls * PHASE.itemsize)

    def take(self) -> None:
        """Copies what is new or has changed."""
        for name in _KEYS:
            self._take(name)
        self._write(self._at["rank"], self._rings["rank"].tobytes())
        noted = np.frombuffer(self._phases.take(), PHASE)
        self._put("phases", noted, self._noted + np.arange(len(noted)))
        self._noted += len(noted)
        self._write(0, self._header(done=False))

    def close(self) -> None:
        """Closes the file. If writing has failed, readers do not wait for more."""
        self._write(0, self._header(done=True))
        self._file.close()

    def _take(self, name: str) -> None:
        key, ring = _KEYS[name][0], self._rings[name]
        seen_numbers, seen_ends = self._seen[name]
        numbers, ends = self._look(name)
        slots = np.flatnonzero((numbers != 0) & ((numbers != seen_numbers) | (ends != seen_ends)))
        entries = ring[slots]  # a copy
        # A slot that was given to another entry meanwhile comes with the next ones.
        whole = (entries[key] == numbers[slots]) & (ring[key][slots] == numbers[slots])
        slots, entries = slots[whole], entries[whole]
        seen_numbers[slots], seen_ends[slots] = numbers[slots], ends[slots]
        self._put(name, entries, entries[key].astype(np.int64) - 1)

    def _look(self, name: str) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        number, end = _KEYS[name]
        ends = self._rings[name][end].copy()
        return self._rings[name][number].copy(), ends

    def _put(self, name: str, entries: np.ndarray[Any, Any], places: np.ndarray[Any, Any]) -> None:
        """Writes entries to their slots; those of neighbouring slots together."""
        slots = places % self._slots[name]
        order = np.argsort(slots, kind="stable")
        for run in np.split(order, np.flatnonzero(np.diff(slots[order]) != 1) + 1):
            if len(run):
                at = self._at[name] + int(slots[run[0]]) * entries.itemsize
                self._write(at, entries[run].tobytes())

    def _header(self, *, done: bool) -> bytes:
        header = bytearray(self._memory[: layout.HEADER_BYTES])
        fields = np.frombuffer(header, layout.HEADER)
        for name in _KEYS:
            fields[f"{name}_slots"] = self._slots[name]
        more = np.frombuffer(header, _MORE)
        more["done"], more["phases"] = done, self._noted
        return bytes(header)

    def _write(self, at: int, data: bytes) -> None:
        while data:
            written = os.pwrite(self._file.fileno(), data, at)
            data, at = data[written:], at + written


def spool_path(timeline: Path, rank: int) -> Path:
    """Returns the spool of a rank for a timeline."""
    return timeline.with_name(f"{timeline.name}.rank-{rank}{SUFFIX}")


def find_spools(timeline: Path) -> list[Path]:
    """Returns the spools of a timeline."""
    found = timeline.parent.glob(f"{glob.escape(timeline.name)}.rank-*{SUFFIX}")
    return sorted(found, key=lambda path: (len(path.name), path.name))


def is_done(path: Path) -> bool:
    """Tells whether the rank of a spool has written everything."""
    try:
        return bool(_more(path)["done"])
    except (OSError, RecordError, IndexError):
        return False


@dataclass(frozen=True)
class Loaded:
    """A job read from spools and records.

    Attributes:
        job: The records.
        phases: What `fit` did when, by rank; of ranks with a spool.
        left_out: How many calls were left out because there are too many.
    """

    job: JobRecords
    phases: dict[int, Phases]
    left_out: int


def load_timeline(given: Sequence[Path | str] = (), most: int | None = None) -> Loaded:
    """Reads a job as `load_job` does, and from the spools of a timeline.

    Args:
        given: Spools, the name of a timeline with spools beside it, records, folders, or the id of
            a job.
        most: The largest number of calls in all files; the newest stay.

    Raises:
        RecordError: There is no record, a file is none, or the files are of several jobs.
        OSError: A file cannot be read.
    """
    named = [file for one in map(Path, given) for file in (find_spools(one) or [one])]
    files = find_files(named)
    kept, left_out, phases = list[Record](), 0, dict[int, Phases]()
    each = None if most is None else max(1, most // max(1, len(files)))
    for path in files:
        record = read_record(path)
        if path.suffix == SUFFIX:
            phases[record.rank] = _phases(path, record.header)[-(each or 0) :]
        if each is not None:
            left_out += max(0, len(record.raw_calls) - each)
            newest = {name: getattr(record, name)[-each:] for name in ("raw_calls", "raw_plans")}
            record = replace(record, **newest)
        kept.append(record)
    return Loaded(join_records(kept), phases, left_out)


def _phases(path: Path, header: dict[str, Any]) -> Phases:
    """Returns what `fit` did when, in the order in which it was noted."""
    noted, slots = int(_more(path)["phases"]), int(header["call_slots"])
    ring = np.fromfile(path, PHASE, min(noted, slots), offset=size_of(header))
    return np.roll(ring, -(noted % slots)) if noted > slots else ring


def _more(path: Path) -> Any:
    read_header(path)
    with open_file(path) as file:
        return np.frombuffer(file.read(layout.HEADER_BYTES), _MORE)[0]
