"""How a record lies in its file: the same as ops/runtime/recorder/record_layout.h.

All times are nanoseconds of the host's monotonic clock; 0 means "not yet".
"""

from __future__ import annotations

import enum

import numpy as np

MAGIC = b"TFRINGRC"
VERSION = 1
HEADER_BYTES = 4096

_LIVE = 512  # where the fields begin that change while the rank runs

HEADER = np.dtype(
    {
        "names": [
            *("magic", "version", "header_bytes", "call_bytes", "call_slots", "plan_bytes"),
            *("plan_slots", "event_bytes", "event_slots", "rank_bytes", "rank_slots"),
            *("rank", "size", "local_rank", "pid", "generation", "started_wall"),
            *("started_monotonic", "pid_started", "pid_space", "boot", "host", "job"),
            *("calls", "overwritten", "ended", "failed", "bytes"),
            *("plans", "events", "awake", "cache_hits", "bytes_sent", "state"),
            *("step", "step_began", "samples", "input_time", "locks", "unlocks", "lock_rounds"),
        ],
        "formats": [
            *("S8", *["<u4"] * 10, *["<i4"] * 4, "<u8", *["<i8"] * 4, "S40", "S64", "S64"),
            *("<u8", "<u8", *["<i8"] * 3),
            *("<u8", "<u8", *["<i8"] * 3, "<i4", *["<i8"] * 7),
        ],
        "offsets": [
            *(0, *range(8, 48, 4), *range(48, 64, 4), *range(64, 104, 8), 104, 144, 208),
            *range(_LIVE, _LIVE + 40, 8),
            *(*range(_LIVE + 64, _LIVE + 104, 8), _LIVE + 104),
            *range(_LIVE + 128, _LIVE + 184, 8),
        ],
        "itemsize": HEADER_BYTES,
    }
)

CALL = np.dtype(
    [
        *(("number", "<u8"), ("submitted", "<i8"), ("planned", "<i8"), ("ended", "<i8")),
        *(("sequence", "<u8"), ("bytes", "<i8"), ("attempt", "<u8"), ("process_set", "<i4")),
        *(("last_rank", "<i4"), ("first_asked", "<i8"), ("second_last_asked", "<i8")),
        *(("last_asked", "<i8"), ("invocation", "<u4")),
        *(("tensors", "<u4"), ("root", "<i4"), ("peer", "<i4"), ("kind", "u1")),
        *(("dtype", "u1"), ("op", "u1"), ("path", "u1"), ("status", "u1"), ("flags", "u1")),
        *(("unused", "u1", 2), ("shapes", "<i4", 12), ("name", "S104"), ("call_site", "S56")),
    ]
)

PLAN = np.dtype(
    [
        *(("sequence", "<u8"), ("queued", "<i8"), ("started", "<i8"), ("launched", "<i8")),
        *(("ended", "<i8"), ("waits_since", "<i8"), ("waits_bytes", "<i8")),
        *(("waits_peer", "<i4"), ("waits_receives", "<u4"), ("bytes", "<i8")),
        *(("process_set", "<i4"), ("calls", "<u4"), ("tensors", "<u4"), ("members", "<u4")),
        *(("kind", "u1"), ("dtype", "u1"), ("op", "u1"), ("path", "u1"), ("status", "u1")),
        ("unused", "u1", 35),
    ]
)

EVENT = np.dtype(
    [
        *(("number", "<u8"), ("time", "<i8"), ("type", "<i4"), ("code", "<i4")),
        *(("value", "<i8"), ("text", "S480")),
    ]
)

RANK = np.dtype([("late", "<i8"), ("times", "<i8"), ("asked", "<i8"), ("sent", "<i8")])


class CallFlags(enum.IntFlag):
    """What else is known of a call."""

    BUCKET = 1  # ranks compare a layout in it: gradients (see gradients.py), and some others
    IN_RUN = 2
    UNNAMED = 4
    REFUSED = 8
    EARLY = 16


class RankState(enum.IntEnum):
    """How a rank is, as far as it could write that down itself."""

    RUNNING = 1
    LEFT = 2
    FAILED = 3


class EventType(enum.IntEnum):
    """What an event is about."""

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
    *("allreduce", "allgather", "broadcast", "barrier", "reducescatter", "alltoall", "reduce"),
    *("gather", "scatter", "send/recv", "join", "add_process_set", "remove_process_set"),
)
DTYPES = (
    *("bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64"),
    *("float16", "bfloat16", "float32", "float64", "complex64", "complex128"),
)
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
