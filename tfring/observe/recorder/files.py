"""What is in the file of a record, taken while its rank may be writing to it."""

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
    """Opens a file to read it.

    Args:
        path: Of the file.
        buffering: As of `open`; without it every reading is of the file as it is then.

    Raises:
        RecordError: It is a pipe or the like, at which a reader could wait for ever.
        OSError: It cannot be read.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return os.fdopen(descriptor, "rb", buffering)
    os.close(descriptor)
    raise RecordError(f"{path} is no regular file")


def settled_copy(path: Path) -> bytes:
    """Returns what is in a record's file, without the entries that are being written.

    Args:
        path: The file of one rank.

    Returns:
        A record as of the moment when reading began: newer calls are left out, too.

    Raises:
        RecordError: The file is no record, or of another version.
        OSError: The file cannot be read.
    """
    copies = _copies(path)
    first, second, third = (rings_of(path, copy) for copy in copies)
    header = header_of(copies[0])
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


def rings_of(path: Path, data: bytes | mmap.mmap) -> dict[str, np.ndarray[Any, Any]]:
    """Returns the arrays behind the header of a record.

    Args:
        path: Of its file, for messages.
        data: What is in the file, or its memory.

    Returns:
        By "call", "plan", "event" and "rank"; not to be written to.

    Raises:
        RecordError: It is no record, cut off, or of another version.
    """
    header = checked_header(path, data[: layout.HEADER_BYTES])
    if len(data) < size_of(header):
        raise RecordError(f"{path} is cut off: it has {len(data)} bytes")
    rings, at = {}, layout.HEADER_BYTES
    for name, dtype in _TYPES.items():
        count = int(header[f"{name}_slots"])
        rings[name] = np.frombuffer(data, dtype, count, at)
        at += count * dtype.itemsize
    return rings


def checked_header(path: Path, data: bytes) -> dict[str, Any]:
    """Returns the header of a record by name.

    Args:
        path: Of its file, for messages.
        data: How the file begins.

    Raises:
        RecordError: It is no record, or one of another version.
    """
    if len(data) < layout.HEADER_BYTES or not data.startswith(layout.MAGIC):
        raise RecordError(f"{path} is no record of tfring")
    header = header_of(data)
    if header["version"] != layout.VERSION or any(
        header[f"{name}_bytes"] != dtype.itemsize for name, dtype in _TYPES.items()
    ):
        raise RecordError(
            f"{path} is a record of version {header['version']}, and this tfring reads version "
            f"{layout.VERSION}: read it with the tfring that the job ran with"
        )
    rank, size = header["rank"], header["size"]
    # A spool of a killed rank has nothing of each rank.
    if not 0 <= rank < size <= layout.MOST_RANKS or header["rank_slots"] not in (0, size):
        raise RecordError(f"{path} is damaged: it says that it is of rank {rank} of {size}")
    for name, most in layout.SLOTS.items():
        if header[f"{name}_slots"] > most:
            slots = header[f"{name}_slots"]
            raise RecordError(f"{path} is damaged: it says that it has {slots} slots for {name}s")
    if not _NAME.fullmatch(header["job"]):
        raise RecordError(f"{path} is damaged: {header['job']!r} is no number of a job")
    return header


def size_of(header: dict[str, Any]) -> int:
    """Returns how many bytes a record has by its header."""
    rings = (header[f"{name}_slots"] * dtype.itemsize for name, dtype in _TYPES.items())
    return int(layout.HEADER_BYTES + sum(rings))


def header_of(data: bytes) -> dict[str, Any]:
    """Returns the numbers and texts of a record's header by name."""
    entry = np.frombuffer(data, layout.HEADER, 1)[0]
    return {
        name: text_of(entry[name]) if layout.HEADER[name].kind == "S" else entry[name].item()
        for name in layout.HEADER.names or ()
    }


def _copies(path: Path) -> tuple[bytes, bytes, bytes]:
    """Reads the file three times: what is equal before and after has not changed in between."""
    with open_file(path) as file:
        size = size_of(checked_header(path, file.read(layout.HEADER_BYTES)))
        file.seek(0)
        first = file.read(size)
        file.seek(0)
        second = file.read(size)
        file.seek(0)
        return first, second, file.read(size)


def text_of(value: Any) -> str:
    r"""Returns a text that ends with a zero byte, or with its field; with "\x1b" for an escape.

    Of a long text the middle is left out, which may cut letters of several bytes in two.
    """
    text = bytes(value).split(b"\0")[0].decode("utf-8", "replace")
    return _CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", text)
