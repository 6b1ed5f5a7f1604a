"""Each side of a connection proves that it knows the job's key before the other reads more.

Four messages of fixed size, so that there is nothing to parse before the proof:

    connector -> listener   magic, role, both ranks, the connector's nonce
    listener -> connector   magic, the listener's nonce
    connector -> listener   HMAC(key, "connector", all of the above)
    listener -> connector   verdict, HMAC(key, "listener", all of the above, verdict)

Each proof covers both nonces, so nobody can replay it, and the name of its side, so nobody can send
it back to its maker. The connector proves first: a stranger that asks a listener learns nothing to
try guesses on. The verdict tells the connector whether it was admitted. Both sides then have keys
for the MACs of later messages, which are not encrypted.
"""

from __future__ import annotations

import enum
import hashlib
import hmac
import secrets
import socket
import struct
from dataclasses import dataclass

from tfring.job.handshake.errors import AuthError, NotAdmittedError
from tfring.job.security.mac import ChannelKeys, receive_exactly
from tfring.job.security.secret import expand

# The last two bytes number the protocol of the start; see also PROTOCOL.
PROTOCOL = 2
_MAGIC = b"TFRING" + struct.pack(">H", PROTOCOL)
_HELLO = struct.Struct(">8sBII32s")
_NONCE_SIZE = 32
_PROOF_SIZE = hashlib.sha256().digest_size

HELLO_SIZE = _HELLO.size
CHALLENGE_SIZE = len(_MAGIC) + _NONCE_SIZE
PROOF_SIZE = _PROOF_SIZE
VERDICT_SIZE = 1 + _PROOF_SIZE


class Role(enum.IntEnum):
    """What a connection is used for; covered by the proofs."""

    RENDEZVOUS = 1
    CONTROL = 2
    DATA = 3
    MUNGE = 5  # asks for the credential that has the secret; see security/munge.py
    STORE = 6  # no ranks, but a store and its clients
    TUNNEL = 7  # a task of an engine, with the agent that it has started behind it
    COPY = 8  # two workers of an elastic job: one keeps commits of the other


class Verdict(enum.IntEnum):
    """What the listener decided about a connector."""

    ADMITTED = 1
    LATER = 2  # it starts another job first
    REFUSED = 3  # it waits for other ranks
    WRONG_SECRET = 4  # sent without a proof


@dataclass(frozen=True)
class Hello:
    """Which rank connects to which, and what for. Not trusted until the proof is checked."""

    role: Role
    connector: int
    listener: int

    def connector_name(self) -> str:
        """Returns what the connector is, for messages."""
        names = {
            Role.STORE: "a client",
            Role.TUNNEL: f"task {self.connector}",
            Role.COPY: f"worker {self.connector}",
        }
        return names.get(self.role, f"rank {self.connector}")

    def listener_name(self) -> str:
        """Returns what the listener is, for messages."""
        names = {
            Role.STORE: "the store",
            Role.TUNNEL: "the program that started the job",
            Role.COPY: f"worker {self.listener}",
        }
        return names.get(self.role, f"rank {self.listener}")


def _proof(key: bytes, side: bytes, *parts: bytes) -> bytes:
    return hmac.new(key, b"tfring " + side + b"\0" + b"".join(parts), hashlib.sha256).digest()


def _session(key: bytes, hello: bytes, challenge: bytes) -> tuple[bytes, bytes]:
    """Returns the keys of the MACs from the connector and of those from the listener."""
    session = _proof(key, b"session", hello, challenge)
    return expand(session, b"from connector"), expand(session, b"from listener")


def check_magic(magic: bytes, who: str) -> None:
    """Raises AuthError if `who` speaks another protocol, or another version of it."""
    if magic == _MAGIC:
        return
    if magic[:6] == _MAGIC[:6]:
        (other,) = struct.unpack(">H", magic[6:8])
        raise AuthError(
            f"{who} speaks version {other} of the start-up protocol and this process version "
            f"{PROTOCOL}: install the same version of tfring everywhere"
        )
    raise AuthError(f"{who} does not speak tfring's protocol")


class ListenerHandshake:
    """The listener's side of the handshake on one connection.

    It gets bytes and returns bytes; the caller owns the socket and the time limit.
    """

    def __init__(self, key: bytes, rank: int) -> None:
        self._key = key
        self._rank = rank
        self._hello = b""
        self._challenge = _MAGIC + secrets.token_bytes(_NONCE_SIZE)
        self.claim: Hello | None = None

    def challenge(self, hello: bytes) -> bytes:
        """Returns the answer to the connector's first message, of `HELLO_SIZE` bytes.

        AuthError: it is no hello, or is addressed to another rank.
        """
        magic, role, connector, listener, _ = _HELLO.unpack(hello)
        check_magic(magic, "a process that connected")
        if role not in set(Role) or listener != self._rank:
            raise AuthError(f"a process connected that looks for rank {listener}, role {role}")
        self._hello = hello
        self.claim = Hello(Role(role), connector, listener)
        return self._challenge

    def finish(self, proof: bytes) -> Hello:
        """Checks the proof, of `PROOF_SIZE` bytes; returns the hello, which can be trusted now.

        AuthError: the connector does not know the key.
        """
        assert self.claim is not None
        right = _proof(self._key, b"connector", self._hello, self._challenge)
        if not hmac.compare_digest(proof, right):
            raise AuthError(
                f"the process that connected as {self.claim.connector_name()} has the wrong secret"
            )
        return self.claim

    def verdict(self, verdict: Verdict) -> bytes:
        """Returns the last message, for a connector that has proved to know the key."""
        said = bytes([verdict])
        return said + _proof(self._key, b"listener", self._hello, self._challenge, said)

    def keys(self) -> ChannelKeys:
        """Returns the keys for what follows on the connection."""
        theirs, ours = _session(self._key, self._hello, self._challenge)
        return ChannelKeys(send=ours, receive=theirs)


# The last message to a connector with the wrong secret: a hint without a proof.
WRONG_SECRET_ANSWER = bytes([Verdict.WRONG_SECRET]) + bytes(_PROOF_SIZE)


def first_message(hello: Hello) -> bytes:
    """Returns the connector's first message."""
    nonce = secrets.token_bytes(_NONCE_SIZE)
    return _HELLO.pack(_MAGIC, hello.role, hello.connector, hello.listener, nonce)


def prove_to_listener(sock: socket.socket, key: bytes, hello: Hello) -> ChannelKeys:
    """Runs the connector's side of the handshake; returns the keys for what follows.

    The socket is connected and blocks, with a time limit.

    Raises:
        AuthError: The listener does not know the key.
        NotAdmittedError: It knows it, and does not wait for this rank now.
        ConnectionError: It closed the connection.
        TimeoutError: It did not answer in time.
    """
    first = first_message(hello)
    sock.sendall(first)
    magic = receive_exactly(sock, len(_MAGIC))
    check_magic(magic, f"the process that listens as {hello.listener_name()}")
    challenge = magic + receive_exactly(sock, _NONCE_SIZE)
    sock.sendall(_proof(key, b"connector", first, challenge))
    answer = receive_exactly(sock, VERDICT_SIZE)
    said, proof = answer[:1], answer[1:]
    if not hmac.compare_digest(proof, _proof(key, b"listener", first, challenge, said)):
        raise AuthError(
            f"the process that listens as {hello.listener_name()} has the wrong secret: another "
            "job uses the same port, or the ranks were started with different TFRING_SECRET"
        )
    if said[0] != Verdict.ADMITTED:
        raise NotAdmittedError(
            f"{hello.listener_name()} does not wait for {hello.connector_name()}",
            later=said[0] == Verdict.LATER,
        )
    theirs, ours = _session(key, first, challenge)
    return ChannelKeys(send=theirs, receive=ours)
