"""What a TCPStore's client and its server send each other.

A request has the operation, a number that grows with every request of a client, and the number of
the oldest request whose answer the client still waits for; then its fields. An answer has its kind
and the number of the request. A field is its length and its bytes. Every message has a MAC and
its length in front (job/security/mac.py).
"""

from __future__ import annotations

import enum
import struct
from typing import NamedTuple

from tfring.job.store.table import Limits

_REQUEST = struct.Struct(">BQQ")
_ANSWER = struct.Struct(">BQ")
_LENGTH = struct.Struct(">I")
# Keys of one `wait` or `check`, with some space for what else a message has.
_MOST_FIELDS = 16384


class Op(enum.IntEnum):
    """What a client asks for."""

    OPEN = 1  # session, lease in ms, how many clients to wait for -> instance, resumed
    SET = 2  # key, value, b"1" if ephemeral
    GET = 3  # key -> value, when there is one
    WAIT = 4  # keys -> when all exist
    CHECK = 5  # keys -> b"1" or b""
    ADD = 6  # key, amount -> sum
    COMPARE_SET = 7  # key, expected, desired -> value
    DELETE = 8  # key -> b"1" or b""
    NUM_KEYS = 9  # prefix -> number
    WATCH = 10  # prefix -> and then CHANGED and SYNCED with this number
    UNWATCH = 11  # number of the watch
    CANCEL = 12  # number of a GET or WAIT that nobody waits for any more; no answer
    PING = 13
    GOODBYE = 14  # the session ends
    APPEND = 15  # key, what to add to the end of its value


# A request of these that is sent again must not happen again.
CHANGING = frozenset({Op.SET, Op.ADD, Op.APPEND, Op.COMPARE_SET, Op.DELETE})


class Kind(enum.IntEnum):
    """What an answer is."""

    DONE = 1
    ERROR = 2  # class, text
    CHANGED = 3  # key, revision, and the value unless the key was deleted
    SYNCED = 4  # revision: all keys that existed when the watch began were sent


class Request(NamedTuple):
    """What a client asks for; see the top of the file."""

    op: Op
    number: int
    oldest: int
    fields: tuple[bytes, ...] = ()

    def encode(self) -> bytes:
        """Returns the message."""
        return _REQUEST.pack(self.op, self.number, self.oldest) + _joined(self.fields)

    @staticmethod
    def decode(message: bytes) -> Request:
        """Reads a message; ValueError if it is none."""
        op, number, oldest = _unpacked(_REQUEST, message)
        return Request(Op(op), number, oldest, _split(message, _REQUEST.size))


class Answer(NamedTuple):
    """What a server answers; see the top of the file."""

    kind: Kind
    number: int
    fields: tuple[bytes, ...] = ()

    def encode(self) -> bytes:
        """Returns the message."""
        return _ANSWER.pack(self.kind, self.number) + _joined(self.fields)

    @staticmethod
    def decode(message: bytes) -> Answer:
        """Reads a message; ValueError if it is none."""
        kind, number = _unpacked(_ANSWER, message)
        return Answer(Kind(kind), number, _split(message, _ANSWER.size))


def longest_message(limits: Limits) -> int:
    """Returns the bytes that a message may have: a value or two, or a list of keys."""
    return max(2 * limits.value_bytes, 1 << 20) + limits.key_bytes + 1024


def number(field: bytes) -> int:
    """Reads a whole number of at most 20 characters; ValueError for anything else."""
    if len(field) > 20:
        raise ValueError(f"a number of {len(field)} characters")
    return int(field)


def _unpacked(struct_: struct.Struct, message: bytes) -> tuple[int, ...]:
    if len(message) < struct_.size:
        raise ValueError(f"a message of {len(message)} bytes")
    return struct_.unpack_from(message)


def _joined(fields: tuple[bytes, ...]) -> bytes:
    return b"".join(part for field in fields for part in (_LENGTH.pack(len(field)), field))


def _split(message: bytes, start: int) -> tuple[bytes, ...]:
    fields: list[bytes] = []
    while start < len(message):
        if len(fields) >= _MOST_FIELDS or start + _LENGTH.size > len(message):
            raise ValueError("a message with too many fields, or half a field")
        (length,) = _LENGTH.unpack_from(message, start)
        start += _LENGTH.size
        if start + length > len(message):
            raise ValueError("a message that ends within a field")
        fields.append(message[start : start + length])
        start += length
    return tuple(fields)
