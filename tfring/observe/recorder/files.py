"""Reads the file of a record while its rank may write to it."""

from __future__ import annotations

import mmap
import os
import re
import stat
from pathlib import Path
from typing import IO, Any

import numpy as np

from tfring.observe.recorder import layout
from tfring.observe.recorder.errors import RecordError as RecordError

# What is known of a call when its plan comes, besides the rank that asked last.
_WITH_PLAN = ("first_asked", "second_last_asked", "last_asked", "sequence")


# A job's name becomes that of a folder or a file.
_NAME = re.compile(r"[A-Za-z0-9][\w.-]*", re.ASCII)
# What a terminal takes for a command, but for line ends: a name must not move its cursor.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_TYPES = {"call": layout.CALL, "plan": layout.PLAN, "event": layout.EVENT, "rank": layout.RANK}


def open_file(path: Path, buffering: int = 0) -> IO[bytes]:
    """Opens a regular file to read it. Without `buffering` each read sees the file as it is then.

    Raises:
        RecordError: It is a pipe or a device, on which a reader could block.
        OSError: It cannot be read.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return os.fdopen(descriptor, "rb", buffering)
    os.close(descriptor)
    raise RecordError(f"{path} is no regular file")


def copy_settled(path: Path) -> bytes:
    """Returns the bytes of a record as of the moment when reading began.

    Entries that were being written, and newer calls, are left out.

    Raises:
        RecordError: The file is no record, or has another version.
        OSError: The file cannot be read.
    """
    copies = _copies(path)
    first, second, third = (parse_rings(path, copy) for copy in copies)
    header = parse_header(copies[0])
    # The runtime writes `planned` after what came with the plan. Where the first copy has it, the
    # second has all of that.
    planned_before = first["call"]["planned"] == second["call"]["planned"]
    calls = np.where(planned_before, second["call"], first["call"])
    for name, value in {**dict.fromkeys(_WITH_PLAN, 0), "last_rank": -1}.items():
        calls[name][calls["planned"] == 0] = value
    second["call"] = calls
    for name, key in (("call", "number"), ("plan", "sequence"), ("event", "number")):
        ring = second[name].copy()
        changed = (first[name][key] != ring[key]) | (ring[key] != third[name][key])
        ring[key][changed] = 0
        second[name] = ring
    if header["calls"] > 0:
        second["call"]["number"][second["call"]["number"] > header["calls"]] = 0
    rings = (second["call"], second["plan"], second["event"], first["rank"])
    return copies[0][: layout.HEADER_BYTES] + b"".join(ring.tobytes() for ring in rings)


def parse_rings(path: Path, data: bytes | mmap.mmap) -> dict[str, np.ndarray[Any, Any]]:
    """Returns the arrays "call", "plan", "event" and "rank" behind the header, to read only.

    Args:
        path: For messages.
        data: The bytes of the file, or its mapping.

    Raises:
        RecordError: It is no record, cut off, or has another version.
    """
    header = check_header(path, data[: layout.HEADER_BYTES])
    if len(data) < size_of(header):
        raise RecordError(f"{path} is cut off: it has {len(data)} bytes")
    rings, at = {}, layout.HEADER_BYTES
    for name, dtype in _TYPES.items():
        count = int(header[f"{name}_slots"])
        rings[name] = np.frombuffer(data, dtype, count, at)
        at += count * dtype.itemsize
    return rings


def check_header(path: Path, data: bytes) -> dict[str, Any]:
    """Returns the fields of the header at the beginning of `data`; `path` is for messages.

    Raises:
        RecordError: It is no record, or has another version.
    """
    if len(data) < layout.HEADER_BYTES or not data.startswith(layout.MAGIC):
        raise RecordError(f"{path} is no record of tfring")
    header = parse_header(data)
    if header["version"] != layout.VERSION or any(
        header[f"{name}_bytes"] != dtype.itemsize for name, dtype in _TYPES.items()
    ):
        raise RecordError(
            f"{path} is a record of version {header['version']}, but this tfring reads version "
            f"{layout.VERSION}: read it with the tfring that ran the job"
        )
    rank, size = header["rank"], header["size"]
    if not 0 <= rank < size <= layout.MOST_RANKS or header["rank_slots"] != size:
        raise RecordError(f"{path} is damaged: it says that it is of rank {rank} of {size}")
    for name in ("call", "plan", "event"):
        slots = header[f"{name}_slots"]
        if slots > layout.MOST_SLOTS:
            raise RecordError(f"{path} is damaged: it says that it has {slots} slots for {name}s")
    if not _NAME.fullmatch(header["job"]):
        raise RecordError(f"{path} is damaged: {header['job']!r} is no number of a job")
    return header


def size_of(header: dict[str, Any]) -> int:
    """Returns how many bytes a record with this header has."""
    rings = (header[f"{name}_slots"] * dtype.itemsize for name, dtype in _TYPES.items())
    return int(layout.HEADER_BYTES + sum(rings))


def parse_header(data: bytes) -> dict[str, Any]:
    """Returns the fields of a header by name."""
    entry = np.frombuffer(data, layout.HEADER, 1)[0]
    return {
        name: parse_text(entry[name]) if layout.HEADER[name].kind == "S" else entry[name].item()
        for name in layout.HEADER.names or ()
    }


def _copies(path: Path) -> tuple[bytes, bytes, bytes]:
    """Reads the file three times: what is equal in two copies did not change in between."""
    with open_file(path) as file:
        size = size_of(check_header(path, file.read(layout.HEADER_BYTES)))
        file.seek(0)
        first = file.read(size)
        file.seek(0)
        second = file.read(size)
        file.seek(0)
        return first, second, file.read(size)


def parse_text(value: Any) -> str:
    r"""Returns a text up to its first zero byte, with control characters written as "\x1b".

    The runtime cuts long texts in the middle, perhaps inside a character of several bytes.
    """
    text = bytes(value).split(b"\0")[0].decode("utf-8", "replace")
    return _CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", text)
