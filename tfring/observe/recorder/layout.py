"""The layout of a record's file: the same as ops/runtime/recorder/record_layout.h.

All times are nanoseconds of the host's monotonic clock; 0 means "not yet".
"""

from __future__ import annotations

import enum

import numpy as np

MAGIC = b"TFRINGRC"
VERSION = 1
HEADER_BYTES = 4096
MOST_RANKS = 100_000  # of a job
MOST_SLOTS = 1 << 22  # of a ring, in the spool of a timeline

_LIVE = 512  # where the fields begin that change while the rank runs

# Name, type and offset.
_HEADER_FIELDS: list[tuple[str, str, int]] = [
    ("magic", "S8", 0),
    ("version", "<u4", 8),
    ("header_bytes", "<u4", 12),
    ("call_bytes", "<u4", 16),
    ("call_slots", "<u4", 20),
    ("plan_bytes", "<u4", 24),
    ("plan_slots", "<u4", 28),
    ("event_bytes", "<u4", 32),
    ("event_slots", "<u4", 36),
    ("rank_bytes", "<u4", 40),
    ("rank_slots", "<u4", 44),
    ("rank", "<i4", 48),
    ("size", "<i4", 52),
    ("local_rank", "<i4", 56),
    ("pid", "<i4", 60),
    ("generation", "<u8", 64),
    ("started_wall", "<i8", 72),
    ("started_monotonic", "<i8", 80),
    ("pid_started", "<i8", 88),
    ("pid_space", "<i8", 96),
    ("boot", "S40", 104),
    ("host", "S64", 144),
    ("job", "S64", 208),
    ("stall_shutdown", "<i8", 272),
    ("heartbeat_timeout", "<i8", 280),
    ("calls", "<u8", _LIVE),
    ("overwritten", "<u8", _LIVE + 8),
    ("ended", "<i8", _LIVE + 16),
    ("failed", "<i8", _LIVE + 24),
    ("bytes", "<i8", _LIVE + 32),
    ("plans", "<u8", _LIVE + 64),
    ("events", "<u8", _LIVE + 72),
    ("awake", "<i8", _LIVE + 80),
    ("cache_hits", "<i8", _LIVE + 88),
    ("bytes_sent", "<i8", _LIVE + 96),
    ("state", "<i4", _LIVE + 104),
    ("step", "<i8", _LIVE + 128),
    ("step_began", "<i8", _LIVE + 136),
    ("samples", "<i8", _LIVE + 144),
    ("input_time", "<i8", _LIVE + 152),
    ("locks", "<i8", _LIVE + 160),
    ("unlocks", "<i8", _LIVE + 168),
    ("lock_rounds", "<i8", _LIVE + 176),
    ("callback_time", "<i8", _LIVE + 184),
    ("epoch", "<i8", _LIVE + 192),
    ("epochs", "<i8", _LIVE + 200),
    ("last_step", "<i8", _LIVE + 208),
    ("has_loss", "<i8", _LIVE + 216),
    ("loss", "<f8", _LIVE + 224),
    ("weights_memory", "<i8", _LIVE + 232),
    ("states_memory", "<i8", _LIVE + 240),
    ("copies_memory", "<i8", _LIVE + 248),
    ("buckets_memory", "<i8", _LIVE + 256),
]
HEADER = np.dtype(
    {
        "names": [name for name, _, _ in _HEADER_FIELDS],
        "formats": [kind for _, kind, _ in _HEADER_FIELDS],
        "offsets": [offset for _, _, offset in _HEADER_FIELDS],
        "itemsize": HEADER_BYTES,
    }
)

CALL = np.dtype(
    [
        ("number", "<u8"),
        ("submitted", "<i8"),
        ("planned", "<i8"),
        ("ended", "<i8"),
        ("sequence", "<u8"),
        ("bytes", "<i8"),
        ("attempt", "<u8"),
        ("process_set", "<i4"),
        ("last_rank", "<i4"),
        ("first_asked", "<i8"),
        ("second_last_asked", "<i8"),
        ("last_asked", "<i8"),
        ("invocation", "<u4"),
        ("tensors", "<u4"),
        ("root", "<i4"),
        ("peer", "<i4"),
        ("kind", "u1"),
        ("dtype", "u1"),
        ("op", "u1"),
        ("path", "u1"),
        ("status", "u1"),
        ("flags", "u1"),
        ("unused", "u1", 2),
        ("shapes", "<i4", 12),
        ("name", "S104"),
        ("call_site", "S56"),
    ]
)

PLAN = np.dtype(
    [
        ("sequence", "<u8"),
        ("queued", "<i8"),
        ("started", "<i8"),
        ("launched", "<i8"),
        ("ended", "<i8"),
        ("waits_since", "<i8"),
        ("waits_bytes", "<i8"),
        ("waits_peer", "<i4"),
        ("waits_receives", "<u4"),
        ("bytes", "<i8"),
        ("process_set", "<i4"),
        ("calls", "<u4"),
        ("tensors", "<u4"),
        ("members", "<u4"),
        ("kind", "u1"),
        ("dtype", "u1"),
        ("op", "u1"),
        ("path", "u1"),
        ("status", "u1"),
        ("unused", "u1", 35),
    ]
)

EVENT = np.dtype(
    [
        ("number", "<u8"),
        ("time", "<i8"),
        ("type", "<i4"),
        ("code", "<i4"),
        ("value", "<i8"),
        ("text", "S480"),
    ]
)

RANK = np.dtype([("late", "<i8"), ("times", "<i8"), ("asked", "<i8"), ("sent", "<i8")])


class CallFlags(enum.IntFlag):
    """More facts about a call."""

    BUCKET = 1  # ranks compare a layout in it: gradients (see gradients.py), and some others
    IN_RUN = 2
    UNNAMED = 4
    REFUSED = 8
    EARLY = 16
    COMPILED = 32


class RankState(enum.IntEnum):
    """The state that a rank itself wrote last."""

    RUNNING = 1
    LEFT = 2
    FAILED = 3


class EventType(enum.IntEnum):
    """The kind of an event."""

    INIT = 1
    SHUTDOWN = 2
    ABORT = 3
    CALL_FAILED = 4
    WARNING = 5
    STEP_FAILED = 6
    PROCESS_SETS = 7
    MARK = 8
    BAD_VALUES = 9
    LOCK = 10
    UNLOCK = 11


KINDS = (
    "allreduce",
    "allgather",
    "broadcast",
    "barrier",
    "reducescatter",
    "alltoall",
    "reduce",
    "gather",
    "scatter",
    "send/recv",
    "join",
    "add_process_set",
    "remove_process_set",
)
DTYPES = (
    "bool",
    "uint8",
    "int8",
    "uint16",
    "int16",
    "uint32",
    "int32",
    "uint64",
    "int64",
    "float16",
    "bfloat16",
    "float32",
    "float64",
    "complex64",
    "complex128",
)
ON_DEVICE = 1  # the path of calls that a device can run and of plans that devices run
REDUCE_OPS = ("Average", "Sum", "Adasum", "Min", "Max", "Product")
STATUSES = {
    0: "OK",
    1: "Cancelled",
    3: "InvalidArgument",
    4: "DeadlineExceeded",
    8: "ResourceExhausted",
    9: "FailedPrecondition",
    10: "Aborted",
    12: "Unimplemented",
    13: "Internal",
    14: "Unavailable",
}
