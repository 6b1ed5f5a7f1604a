"""Mutual proof of knowing the job's key, before anything else is read from a connection.

Three messages of fixed size, so that there is nothing to parse before the proof:

    connector -> listener   magic, role, both ranks, the connector's nonce
    listener -> connector   the listener's nonce, HMAC(key, "listener", all of the above)
    connector -> listener   HMAC(key, "connector", all of the above)

Both proofs cover both nonces, so neither can be replayed, and the side that speaks, so neither can
be reflected. What follows on the connection is not encrypted.
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
    """What a connection is for; part of what is proven."""

    RENDEZVOUS = 1
    CONTROL = 2
    DATA = 3
    FUNCTION = 4


@dataclass(frozen=True)
class Hello:
    """Who connects to whom, and what for; a claim until it is proven."""

    role: Role
    connector: int
    listener: int


def _proof(key: bytes, side: bytes, hello: bytes, nonce: bytes) -> bytes:
    return hmac.new(key, b"tfring " + side + b"\0" + hello + nonce, hashlib.sha256).digest()


class ListenerHandshake:
    """The listener's side of one connection, fed with bytes; no socket, no clock.

    Lives as long as the handshake; used by one thread.
    """

    def __init__(self, key: bytes, rank: int) -> None:
        self._key = key
        self._rank = rank
        self._hello = b""
        self._nonce = secrets.token_bytes(_NONCE_SIZE)
        self.claim: Hello | None = None

    def challenge(self, hello: bytes) -> bytes:
        """Answers the first message.

        Raises:
            AuthError: It is not a hello, or is meant for another rank.
        """
        magic, role, connector, listener, _ = _HELLO.unpack(hello)
        if magic != _MAGIC or role not in set(Role) or listener != self._rank:
            raise AuthError("what connected does not speak tfring's protocol or wants another rank")
        self._hello = hello
        self.claim = Hello(Role(role), connector, listener)
        return self._nonce + _proof(self._key, b"listener", hello, self._nonce)

    def finish(self, proof: bytes) -> Hello:
        """Checks the last message.

        Raises:
            AuthError: The connector does not know the key.
        """
        assert self.claim is not None
        if not hmac.compare_digest(
            proof, _proof(self._key, b"connector", self._hello, self._nonce)
        ):
            raise AuthError(f"what connected as rank {self.claim.connector} has the wrong secret")
        return self.claim


def prove_to_listener(sock: socket.socket, key: bytes, hello: Hello) -> None:
    """The connector's side, on a connected blocking socket that has a time limit.

    Args:
        sock: The connection.
        key: The job's key.
        hello: Who we are, whom we want and what for.

    Raises:
        AuthError: The listener does not know the key.
        ConnectionError: It hung up.
        TimeoutError: It is silent.
    """
    first = _HELLO.pack(
        _MAGIC, hello.role, hello.connector, hello.listener, secrets.token_bytes(_NONCE_SIZE)
    )
    sock.sendall(first)
    answer = receive_exactly(sock, CHALLENGE_SIZE)
    nonce, proof = answer[:_NONCE_SIZE], answer[_NONCE_SIZE:]
    if not hmac.compare_digest(proof, _proof(key, b"listener", first, nonce)):
        raise AuthError(
            f"what listens as rank {hello.listener} has the wrong secret: another job on the same "
            "port, or ranks that were started with different TFRING_SECRET"
        )
    sock.sendall(_proof(key, b"connector", first, nonce))


def receive_exactly(sock: socket.socket, count: int) -> bytes:
    """Reads ``count`` bytes from a blocking socket.

    Raises:
        ConnectionError: The other end hung up before.
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
