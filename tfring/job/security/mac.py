"""MACs: short proofs that a message was sent by a rank of the job, at this place in its stream.

A MAC is BLAKE2b with a key, which the runtime computes too (ops/runtime/transport/frame_mac.h),
over the number of the message and its bytes. Nothing is encrypted.
"""

from __future__ import annotations

import hashlib
import hmac
import socket
import struct
from collections.abc import Callable, Generator, Iterator
from typing import NamedTuple

from tfring.job.security.errors import IntegrityError

MAC_SIZE = 16
_LENGTH = struct.Struct("<I")
_TOTAL = struct.Struct("<Q")
_NUMBER = struct.Struct("<Q")
# The first piece with a wrong length or MAC is refused, so a lie costs at most this many bytes.
_PIECE_BYTES = 1 << 20

# Yields how many bytes it needs next, gets them, and returns what they are.
Parts = Generator[int, bytes, bytes]


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

    A message is cut into pieces of at most 1 MiB, each with its length in front and its MAC: what
    was not sent by the other end is noticed before it is parsed, or memory is taken for it. Not
    thread-safe, but one thread may send while another receives.
    """

    def __init__(self, sock: socket.socket, keys: ChannelKeys) -> None:
        """Takes a blocking socket, whose timeout holds for each piece, and the handshake's keys."""
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
        view = memoryview(data)
        pieces = [_TOTAL.pack(len(data))]
        pieces += [bytes(view[i : i + _PIECE_BYTES]) for i in range(0, len(data), _PIECE_BYTES)]
        out = []
        for piece in pieces:
            out += [_LENGTH.pack(len(piece)), mac_of(self.keys.send, self._sent, piece), piece]
            self._sent += 1
        return b"".join(out)

    def receive(self, limit: int) -> bytes:
        """Receives one message of at most `limit` bytes.

        Raises:
            IntegrityError: It was not sent by the other end, or is longer.
            ConnectionError: The other end closed the connection.
            TimeoutError: The socket's time limit has passed.
        """
        parts = self._message(limit)
        count = next(parts)
        try:
            while True:
                count = parts.send(receive_exactly(self.sock, count))
        except StopIteration as ended:
            message: bytes = ended.value
            return message

    def arriving(self, limit: int) -> Arriving:
        """Returns what takes messages apart that come in pieces; instead of receive()."""
        return Arriving(lambda: self._message(limit))

    def _message(self, limit: int) -> Parts:
        """Asks for the parts of one message, by their sizes, and returns it."""
        (total,) = _TOTAL.unpack((yield from self._piece(_TOTAL.size)))
        if total > limit:
            raise IntegrityError(f"a message of {total} bytes was announced; {limit} are allowed")
        pieces = []
        while total > 0:
            pieces.append((yield from self._piece(min(total, _PIECE_BYTES))))
            total -= len(pieces[-1])
        return b"".join(pieces)

    def _piece(self, size: int) -> Parts:
        head = yield _LENGTH.size + MAC_SIZE
        (length,) = _LENGTH.unpack_from(head)
        if length != size:
            raise IntegrityError(_changed(self._received))
        piece = yield size
        expected = mac_of(self.keys.receive, self._received, piece)
        if not hmac.compare_digest(head[_LENGTH.size :], expected):
            raise IntegrityError(_changed(self._received))
        self._received += 1
        return piece


class Arriving:
    """Takes messages out of the bytes of a socket that does not block. Holds one piece at most."""

    def __init__(self, message: Callable[[], Parts]) -> None:
        self._message = message
        self._parts = message()
        self._wanted = next(self._parts)
        self._received = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Returns the messages that are complete with these bytes, each when it is asked for.

        The bytes have to be used up before the next call.

        Raises:
            IntegrityError: Something was not sent by the other end, or is longer than the limit.
        """
        view = memoryview(data)
        while view:
            taken = view[: self._wanted - len(self._received)]
            self._received += taken
            view = view[len(taken) :]
            if len(self._received) < self._wanted:
                return
            part = bytes(self._received)
            self._received.clear()
            try:
                self._wanted = self._parts.send(part)
            except StopIteration as ended:
                self._parts = self._message()
                self._wanted = next(self._parts)
                yield ended.value


def _changed(number: int) -> str:
    return (
        f"message {number} on the connection failed authentication: it was not sent by the other "
        "end, or was modified on the way. Check the network between the hosts"
    )


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
