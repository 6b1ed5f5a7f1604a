"""Proves which rank an object comes from, in the present generation.

Objects travel as the data of collectives, over connections without MACs, and the receiver
unpickles them. Each carries a MAC over its sender's rank, the name of the collective and a number
that grows. So nobody without the key can forge a message, change one, or send one again.
"""

from __future__ import annotations

import hmac
import itertools
import struct
import threading

from tfring.job.security.errors import IntegrityError
from tfring.job.security.mac import MAC_SIZE, mac_of
from tfring.job.security.secret import expand, fresh_secret

_NUMBER = struct.Struct("<Q")
OVERHEAD = _NUMBER.size + MAC_SIZE


class _Generation:
    """The key of one generation, and the last number of each sender. Thread-safe."""

    def __init__(self, key: bytes) -> None:
        self.key = expand(key, b"objects")
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()  # guards _last
        self._last: dict[tuple[str, int], int] = {}  # by name and sender

    def next_number(self) -> int:
        with self._lock:
            return next(self._numbers)

    def accept(self, name: str, sender: int, number: int) -> bool:
        """Accepts a number if it is higher than the last of this name and sender."""
        with self._lock:
            if number <= self._last.get((name, sender), 0):
                return False
            self._last[name, sender] = number
            return True


_current: _Generation | None = None


def begin(key: bytes | None) -> None:
    """Starts a generation; in a job of one rank there is no key."""
    global _current
    _current = _Generation(key or fresh_secret().encode())


def end() -> None:
    """Ends the generation. Nothing can be signed or verified until the next one begins."""
    global _current
    _current = None


def sign(payload: bytes, name: str, sender: int) -> bytes:
    """Returns a payload with its MAC in front, `OVERHEAD` bytes longer."""
    generation = _generation()
    number = generation.next_number()
    return _NUMBER.pack(number) + _mac(generation, number, name, sender, payload) + payload


def verify(signed: bytes, name: str, sender: int) -> bytes:
    """Checks a MAC and returns the payload.

    IntegrityError: another process sent it, it was changed, or it was received before.
    """
    generation = _generation()
    if len(signed) >= OVERHEAD:
        (number,) = _NUMBER.unpack_from(signed)
        payload = signed[OVERHEAD:]
        right = _mac(generation, number, name, sender, payload)
        fine = hmac.compare_digest(signed[_NUMBER.size : OVERHEAD], right)
        if fine and generation.accept(name, sender, number):
            return payload
    raise IntegrityError(
        f"{name}: the message failed authentication: it was not sent by rank {sender} in this "
        "collective, or was modified on the way. It was discarded without unpickling. Check the "
        "network between the hosts."
    )


def _mac(generation: _Generation, number: int, name: str, sender: int, payload: bytes) -> bytes:
    text = name.encode()
    return mac_of(generation.key, number, struct.pack("<II", sender, len(text)), text, payload)


def _generation() -> _Generation:
    if _current is None:
        raise IntegrityError("tfring is not initialized: there is no key to sign objects with")
    return _current
