"""JSON values on an authenticated connection, each preceded by its length. Never pickle."""

from __future__ import annotations

import json
import socket
import struct
from typing import Any

from tfring.bootstrap.auth import receive_exactly
from tfring.bootstrap.errors import BootstrapError

_LENGTH = struct.Struct(">I")
# One rank's record has about 1 KiB; the largest frame is the list of all records.
MAX_RECORD_BYTES = 64 << 10


def encode(value: Any) -> bytes:
    """Returns a value as JSON, without the length."""
    return json.dumps(value, separators=(",", ":"), sort_keys=True).encode()


def decode(data: bytes) -> Any:
    """Returns the value that some JSON describes.

    Raises:
        BootstrapError: They are not JSON.
    """
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise BootstrapError(f"a rank sent a record that is not JSON: {error}") from None


def send_frame(sock: socket.socket, data: bytes) -> None:
    """Sends one frame on a blocking socket."""
    sock.sendall(_LENGTH.pack(len(data)) + data)


def receive_frame(sock: socket.socket, limit: int) -> bytes:
    """Receives one frame of at most ``limit`` bytes from a blocking socket.

    Raises:
        BootstrapError: The frame is larger; none of it has been read then.
    """
    (length,) = _LENGTH.unpack(receive_exactly(sock, _LENGTH.size))
    if length > limit:
        raise BootstrapError(f"a rank announced a record of {length} bytes; {limit} are allowed")
    return receive_exactly(sock, length)
