"""MACs: short proofs that a message was sent by a rank of the job, at this place in its stream.

A MAC is BLAKE2b with a key, which the runtime computes too (ops/runtime/transport/frame_mac.h),
over the number of the message and its bytes. Nothing is encrypted.
"""

from __future__ import annotations

import hashlib
import hmac
import socket
import struct
from typing import NamedTuple

from tfring.job.security.errors import IntegrityError

MAC_SIZE = 16
_NUMBER = struct.Struct("<Q")
_HEAD = struct.Struct(f"<I{MAC_SIZE}s")  # length and MAC of a message


def mac_of(key: bytes, number: int, *parts: bytes | memoryview) -> bytes:
    """Returns the MAC of a message with this number in its stream: 16 bytes.

    The key has 32 bytes, which only sender and receiver know.
    """
    mac = hashlib.blake2b(_NUMBER.pack(number), key=key, digest_size=MAC_SIZE)
    for part in parts:
        mac.update(part)
    return mac.digest()


class ChannelKeys(NamedTuple):
    """The keys of both directions of one connection, as one of its ends sees them."""

    send: bytes
    receive: bytes


class Channel:
    """Messages with MACs over a connected socket, which belongs to the caller.

    A message has its length and its MAC in front: what was not sent by the other end is noticed
    before it is parsed. Not thread-safe, but one thread may send while another receives.
    """

    def __init__(self, sock: socket.socket, keys: ChannelKeys) -> None:
        """Takes a blocking socket and the handshake's keys."""
        self.sock = sock
        self.keys = keys
        self._sent = 0
        self._received = 0

    def send(self, data: bytes) -> None:
        """Sends one message.

        Raises:
            OSError: The connection is lost, or its timeout has passed.
        """
        self.sock.sendall(self.framed(data))

    def framed(self, data: bytes) -> bytes:
        """Returns the bytes of the next message, which the caller has to send."""
        head = _HEAD.pack(len(data), mac_of(self.keys.send, self._sent, data))
        self._sent += 1
        return head + data

    def receive(self, limit: int) -> bytes:
        """Receives one message of at most `limit` bytes.

        Raises:
            IntegrityError: It was not sent by the other end, or is longer.
            ConnectionError: The other end closed the connection.
            TimeoutError: The socket's time limit has passed.
        """
        arriving = Arriving(self, limit)
        while (message := arriving.next()) is None:
            arriving.add(receive_exactly(self.sock, arriving.missing))
        return message

    def check(self, mac: bytes, message: bytes) -> bytes:
        """Returns the next message that has come; IntegrityError if this is not its MAC."""
        if not hmac.compare_digest(mac, mac_of(self.keys.receive, self._received, message)):
            raise IntegrityError(
                f"message {self._received} on the connection failed authentication: it was not "
                "sent by the other end, or was modified on the way. Check the network between the "
                "hosts"
            )
        self._received += 1
        return message


class Arriving:
    """Takes messages of at most `limit` bytes out of the bytes that come over a channel."""

    def __init__(self, channel: Channel, limit: int) -> None:
        self._channel = channel
        self._limit = limit
        self._bytes = bytearray()

    @property
    def missing(self) -> int:
        """How many bytes the next message lacks, as far as that is known."""
        have = len(self._bytes)
        if have < _HEAD.size:
            return _HEAD.size - have
        return _HEAD.size + int(_HEAD.unpack_from(self._bytes)[0]) - have

    def add(self, data: bytes) -> None:
        """Adds bytes that have come."""
        self._bytes += data

    def next(self) -> bytes | None:
        """Returns the next message; None as long as it is not complete.

        Raises:
            IntegrityError: It was not sent by the other end, or is longer than the limit.
        """
        if len(self._bytes) < _HEAD.size:
            return None
        length, mac = _HEAD.unpack_from(self._bytes)
        if length > self._limit:
            raise IntegrityError(
                f"a message of {length} bytes was announced; {self._limit} are allowed"
            )
        end = _HEAD.size + length
        if len(self._bytes) < end:
            return None
        message = bytes(memoryview(self._bytes)[_HEAD.size : end])
        del self._bytes[:end]
        return self._channel.check(mac, message)


def receive_exactly(sock: socket.socket, count: int) -> bytes:
    """Reads ``count`` bytes from a blocking socket.

    Raises:
        ConnectionError: The other end closed the connection before that.
        TimeoutError: The socket's time limit has passed.
    """
    chunks: list[bytes] = []
    while count > 0:
        chunk = sock.recv(min(count, 1 << 20))
        if not chunk:
            raise ConnectionResetError("the other end closed the connection")
        chunks.append(chunk)
        count -= len(chunk)
    return b"".join(chunks)
