"""The file that a rank writes while a timeline is on: valid at any time, and bounded in size.

It begins with a line of JSON. Then come parts: a tag of four letters, the number of bytes, the
bytes. A part that a crash cut off is ignored. When the file has half of the allowed size, it is
renamed, replacing the one before, and a new one begins. Entries are those of the record, so a spool
becomes a record with longer rings.
"""

from __future__ import annotations

import contextlib
import glob
import json
import struct
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tfring.observe.recorder import layout
from tfring.observe.recorder.files import check_header, open_file
from tfring.observe.recorder.job import JobRecords, join_records, load_job
from tfring.observe.recorder.reader import Record, RecordError, make_record, read_record
from tfring.observe.timeline.phases import PHASE, Phases

SUFFIX = ".spool"
OLDER = ".older"
FORMAT = "tfring timeline spool"
RINGS = {"call": layout.CALL, "plan": layout.PLAN, "event": layout.EVENT, "rank": layout.RANK}
# What the first line says of the rank: the names of a record's header, and three more.
IDENTITY: dict[str, type] = {
    "job": str,
    "boot": str,
    **dict.fromkeys(("started_monotonic", "pid_space", "pid", "pid_started", "generation"), int),
}
FACTS = IDENTITY | {"record": str, "rank": int, "began": int}
_NUMBERS = {"call": "number", "plan": "sequence", "event": "number"}
_TAGS = {
    b"HEAD": "header",
    b"CALL": "call",
    b"PLAN": "plan",
    b"EVNT": "event",
    b"RANK": "rank",
    b"PHAS": "phases",
}
_TAG_OF = {name: tag for tag, name in _TAGS.items()}
_END = b"DONE"
_PART = struct.Struct("<4sI")
_MOST_PART = 64 << 20  # bytes: a drain writes no more at once


class SpoolWriter:
    """Writes the spool of one rank. For one thread."""

    def __init__(self, path: Path, limit: int, facts: dict[str, Any]) -> None:
        """Makes the file; one of an earlier job is removed.

        Args:
            path: The file.
            limit: How many bytes both files may have together.
            facts: For the first line.

        Raises:
            OSError: It cannot be written.
        """
        self.path, self._limit, self._used = path, max(limit // 2, 1 << 16), 0
        self._whole = 0  # how many bytes of the newest file are complete
        self._line = json.dumps({"format": FORMAT, **facts}).encode() + b"\n"
        older_file(path).unlink(missing_ok=True)
        path.unlink(missing_ok=True)
        self._file = self._begin()

    def add(self, name: str, data: bytes) -> None:
        """Adds a part: "header", "call", "plan", "event", "rank" or "phases"."""
        self._write(_TAG_OF[name], data)

    def flush(self, header: bytes) -> None:
        """Makes what was added visible; begins a new file if this one is large enough."""
        self._file.flush()
        self._whole = self._used
        if self._used < self._limit:
            return
        self._file.close()
        self.path.replace(older_file(self.path))
        self._file = self._begin()
        self._whole = 0
        self.add("header", header)
        self._file.flush()
        self._whole = self._used

    def close(self, done: bool) -> None:
        """Closes the file; `done`: the rank has written everything."""
        if done:
            self._write(_END, b"")
        self._file.close()

    def give_up(self) -> None:
        """Marks the end after writing has failed, so that readers do not wait."""
        with contextlib.suppress(OSError):
            self._file.close()  # fails again, and is closed
        with contextlib.suppress(OSError), self.path.open("r+b") as file:
            file.truncate(self._whole)  # on a full disk this frees what is needed
            file.seek(self._whole)
            file.write(_PART.pack(_END, 0))

    def _begin(self) -> Any:
        file = self.path.open("wb")
        file.write(self._line)
        self._used = len(self._line)
        return file

    def _write(self, tag: bytes, data: bytes) -> None:
        if data or tag == _END:
            self._file.write(_PART.pack(tag, len(data)) + data)
            self._used += _PART.size + len(data)


def older_file(path: Path) -> Path:
    """Returns the file with what was written before."""
    return path.with_name(path.name + OLDER)


def spool_path(timeline: Path, rank: int) -> Path:
    """Returns the spool of a rank for a timeline."""
    return timeline.with_name(f"{timeline.name}.rank-{rank}{SUFFIX}")


def find_spools(timeline: Path) -> list[Path]:
    """Returns the spools of a timeline."""
    found = timeline.parent.glob(f"{glob.escape(timeline.name)}.rank-*{SUFFIX}")
    return sorted(found, key=lambda path: (len(path.name), path.name))


def remove_spool(path: Path) -> None:
    """Removes both files of a spool."""
    for one in (path, older_file(path)):
        with contextlib.suppress(OSError):
            one.unlink()


def is_spool(path: Path) -> bool:
    """Tells whether a file is a spool."""
    with contextlib.suppress(OSError, RecordError), open_file(path, -1) as file:
        return file.readline(4096).startswith(json.dumps({"format": FORMAT}).encode()[:-1])
    return False


def read_facts(path: Path) -> dict[str, Any]:
    """Returns the first line of a spool.

    Raises:
        RecordError: The file is no spool.
        OSError: It cannot be read.
    """
    with open_file(path, -1) as file:
        try:
            facts = json.loads(file.readline(1 << 16))
        except ValueError:
            facts = None
    if not isinstance(facts, dict) or facts.get("format") != FORMAT:
        raise RecordError(f"{path} is no spool of a timeline")
    if any(type(facts.get(name)) is not kind for name, kind in FACTS.items()):
        raise RecordError(
            f"{path} is a spool of a different version of tfring: read it with that version"
        )
    return facts


def is_done(path: Path) -> bool:
    """Tells whether the rank of a spool has written everything."""
    try:
        with open_file(path) as file:
            file.seek(-_PART.size, 2)
            return file.read() == _PART.pack(_END, 0)
    except (OSError, RecordError):
        return False


def read_spool(path: Path, most: int | None = None) -> tuple[Record, int]:
    """Makes a record of a spool; returns it and the number of calls that were left out.

    Args:
        path: The spool.
        most: The largest number of calls; the newest stay.

    Raises:
        RecordError: The file is no spool, or holds nothing yet.
        OSError: A file cannot be read.
    """
    facts = read_facts(path)
    header: bytes | None = None
    found: dict[str, list[bytes]] = {name: [] for name in RINGS}
    files = [one for one in (older_file(path), path) if one.exists()]
    for name, data in (part for one in files for part in _parts(one)):
        if name == "header":
            header = data
        elif name == "rank":
            found[name] = [data]  # counters: the newest count
        elif name in found:
            found[name].append(data)
    if header is None:
        raise RecordError(f"{path} holds nothing yet")
    if not is_done(path):
        for name, entries in _after_the_last_drain(facts).items():
            found[name].append(entries)
    rings, left_out = dict[str, np.ndarray[Any, Any]](), 0
    for name, dtype in RINGS.items():
        ring = np.frombuffer(b"".join(found[name]), dtype)
        if name in _NUMBERS:
            ring = _newest(ring, _NUMBERS[name])
        if name in ("call", "plan") and most is not None and len(ring) > most:
            left_out += len(ring) - most if name == "call" else 0
            ring = ring[-most:]
        rings[name] = ring
    checked = check_header(path, header)
    if len(rings["rank"]) not in (0, checked["size"]):
        raise RecordError(f"{path} is damaged: it is of {len(rings['rank'])} ranks")
    now = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
    return make_record(path, checked, rings, now), left_out


def _phases(path: Path, most: int | None) -> Phases:
    """Returns what `fit` did when, in order of time; of more than `most` phases the newest."""
    files = [one for one in (older_file(path), path) if one.exists()]
    data = [part for one in files for name, part in _parts(one) if name == "phases"]
    entries = np.frombuffer(b"".join(data), PHASE)
    return entries if most is None else entries[-most:]


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
        most: The largest number of calls in all spools; the newest stay.

    Raises:
        RecordError: There is no record, a file is none, or the files are of several jobs.
        OSError: A file cannot be read.
    """
    spools: list[Path] = []
    others: list[str] = []
    for one in map(Path, given):
        found = [one] if is_spool(one) else find_spools(one)
        spools += found
        others += [] if found else [str(one)]
    records = list(load_job(others).records.values()) if others or not spools else []
    left_out, phases = 0, dict[int, Phases]()
    each = None if most is None or not spools else most // len(spools)
    for path in spools:
        record, more = read_spool(path, each)
        records.append(record)
        left_out += more
        phases[record.rank] = _phases(path, each)
    return Loaded(join_records(records), phases, left_out)


def _newest(ring: np.ndarray[Any, Any], key: str) -> np.ndarray[Any, Any]:
    """Returns each entry once, as it was written last; open entries are written again."""
    backwards = ring[::-1]
    _, first = np.unique(backwards[key], return_index=True)
    newest: np.ndarray[Any, Any] = backwards[first]
    return newest


def _after_the_last_drain(facts: dict[str, Any]) -> dict[str, bytes]:
    """Returns what the record has that the spool lacks, for example of a killed rank."""
    try:
        record = read_record(facts["record"])
    except (OSError, RecordError):
        return {}
    if any(record.header[name] != facts[name] for name in ("job", "started_monotonic")):
        return {}
    rings = {"call": record.raw_calls, "plan": record.raw_plans}
    return {
        name: ring[(ring["ended"] == 0) | (ring["ended"] >= facts["began"])].tobytes()
        for name, ring in rings.items()
    }


def _parts(path: Path) -> Iterator[tuple[str, bytes]]:
    """Yields the parts of a file up to one that is cut off."""
    sizes = {"header": layout.HEADER.itemsize, **{n: d.itemsize for n, d in RINGS.items()}}
    sizes["phases"] = PHASE.itemsize
    with open_file(path, -1) as file:
        file.readline()
        while len(head := file.read(_PART.size)) == _PART.size:
            tag, length = _PART.unpack(head)
            if length > _MOST_PART:
                return
            data = file.read(length)
            name = _TAGS.get(tag)
            if len(data) < length:
                return
            if name is not None and length % sizes[name] == 0:
                yield name, data
