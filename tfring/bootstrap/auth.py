"""Each side of a connection proves to know the job's key before anything else is read from it.

Three messages of fixed size, so that there is nothing to parse before the proof:

    connector -> listener   magic, role, both ranks, the connector's nonce
    listener -> connector   the listener's nonce, HMAC(key, "listener", all of the above)
    connector -> listener   HMAC(key, "connector", all of the above)

Each proof covers both nonces, so that it cannot be replayed, and the name of its side, so that it
cannot be sent back to the one who made it. What follows on the connection is not encrypted.
"""

from __future__ import annotations

import enum
import hashlib
import hmac
import secrets
import socket
import struct
from dataclasses import dataclass

from tfring.bootstrap.errors import AuthError

_MAGIC = b"TFRING\x00\x01"
_HELLO = struct.Struct(">8sBII32s")
_NONCE_SIZE = 32
_PROOF_SIZE = hashlib.sha256().digest_size

HELLO_SIZE = _HELLO.size
CHALLENGE_SIZE = _NONCE_SIZE + _PROOF_SIZE
PROOF_SIZE = _PROOF_SIZE


class Role(enum.IntEnum):
    """What a connection is used for; covered by the proofs."""

    RENDEZVOUS = 1
    CONTROL = 2
    DATA = 3
    FUNCTION = 4


@dataclass(frozen=True)
class Hello:
    """Which rank connects to which, and what for. Not trusted until the proof is checked."""

    role: Role
    connector: int
    listener: int


def _proof(key: bytes, side: bytes, hello: bytes, nonce: bytes) -> bytes:
    return hmac.new(key, b"tfring " + side + b"\0" + hello + nonce, hashlib.sha256).digest()


class ListenerHandshake:
    """The listener's side of the handshake on one connection.

    It gets bytes and returns bytes; the caller owns the socket and the time limit.
    """

    def __init__(self, key: bytes, rank: int) -> None:
        self._key = key
        self._rank = rank
        self._hello = b""
        self._nonce = secrets.token_bytes(_NONCE_SIZE)
        self.claim: Hello | None = None

    def challenge(self, hello: bytes) -> bytes:
        """Returns the answer to the connector's first message.

        Raises:
            AuthError: It is not a hello, or is addressed to another rank.
        """
        magic, role, connector, listener, _ = _HELLO.unpack(hello)
        if magic != _MAGIC or role not in set(Role) or listener != self._rank:
            raise AuthError(
                "the other end does not speak tfring's protocol, or connects to another rank"
            )
        self._hello = hello
        self.claim = Hello(Role(role), connector, listener)
        return self._nonce + _proof(self._key, b"listener", hello, self._nonce)

    def finish(self, proof: bytes) -> Hello:
        """Checks the connector's proof and returns its hello, which can be trusted now.

        Raises:
            AuthError: The connector does not know the key.
        """
        assert self.claim is not None
        if not hmac.compare_digest(
            proof, _proof(self._key, b"connector", self._hello, self._nonce)
        ):
            raise AuthError(
                f"the process that connected as rank {self.claim.connector} has the wrong secret"
            )
        return self.claim


def prove_to_listener(sock: socket.socket, key: bytes, hello: Hello) -> None:
    """Runs the connector's side of the handshake.

    Args:
        sock: A connected blocking socket with a time limit.
        key: The job's key.
        hello: Our rank, the rank that we connect to, and what for.

    Raises:
        AuthError: The listener does not know the key.
        ConnectionError: It closed the connection.
        TimeoutError: It did not answer in time.
    """
    first = _HELLO.pack(
        _MAGIC, hello.role, hello.connector, hello.listener, secrets.token_bytes(_NONCE_SIZE)
    )
    sock.sendall(first)
    answer = receive_exactly(sock, CHALLENGE_SIZE)
    nonce, proof = answer[:_NONCE_SIZE], answer[_NONCE_SIZE:]
    if not hmac.compare_digest(proof, _proof(key, b"listener", first, nonce)):
        raise AuthError(
            f"the process that listens as rank {hello.listener} has the wrong secret: another job "
            "uses the same port, or the ranks were started with different TFRING_SECRET"
        )
    sock.sendall(_proof(key, b"connector", first, nonce))


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
