"""The exchange without MPI: rank 0 listens at an address that all ranks know, others connect."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import socket
import stat
import time
import zlib
from collections.abc import Sequence
from typing import Any, NamedTuple

from tfring.bootstrap import hosts
from tfring.bootstrap.exchange import decode, encode
from tfring.handshake import auth
from tfring.handshake.connector import connect, in_turn, open_connection
from tfring.handshake.errors import BootstrapError, NotAdmittedError
from tfring.handshake.listener import Listener, bind
from tfring.security import munge
from tfring.security.errors import IntegrityError, SecretError
from tfring.security.seal import Channel
from tfring.security.secret import expand
from tfring.texts.ranks import ranks_text

_log = logging.getLogger("tfring")

# Added to the time limit, so that a rank that failed to connect can still tell the others.
_REPORT_SECONDS = 5.0
# One rank's record has about 1 KiB.
MAX_RECORD_BYTES = 64 << 10
_IN_USE_SECONDS = 5.0
_CREDENTIAL_SECONDS = 3.0
_RETRY_SECONDS = 0.1
_CANDIDATES = 8
_FIRST_PORT = 20000
_PORTS = 12000

# By port, the sockets with which this process keeps ports of the launcher's for the next init: they
# are from the range of outgoing connections, so that another program could get them in between.
# They are bound and do not listen, because nobody accepts what comes.
_kept: dict[int, socket.socket] = {}


class Meeting(NamedTuple):
    """Where the ranks of a job meet.

    Attributes:
        address: Name or address of rank 0's host, as all ranks know it.
        ports: The ports to try there, in this order.
        bind_address: Rank 0: the address to listen at, "" for all; None: what `address` suggests.
        inherited_fd: Rank 0: a listening socket on the only port that the launcher passed on.
        credential: Rank 0: what the listener gives to anybody; see security/munge.py.
        loopback_only: Nobody on another host can join.
    """

    address: str
    ports: Sequence[int]
    bind_address: str | None = None
    inherited_fd: int | None = None
    credential: bytes | None = None
    loopback_only: bool = False

    def describe(self) -> str:
        """Returns ``host port 1234``, with the number of other ports."""
        more = f" (or {len(self.ports) - 1} others)" if len(self.ports) > 1 else ""
        return f"{self.address} port {self.ports[0]}{more}"


def candidate_ports(key: bytes) -> list[int]:
    """Returns ports that all ranks of a job try in this order, and that others cannot foresee.

    They lie below the range that Linux takes ports of outgoing connections from.

    Args:
        key: The job's key.
    """
    words = [expand(key, b"port %d" % number)[:4] for number in range(_CANDIDATES)]
    return [_FIRST_PORT + int.from_bytes(word, "big") % _PORTS for word in words]


def ask_for_secret(meeting: Meeting, rank: int, job: str, deadline: float) -> str:
    """Returns the secret in the credential that rank 0 gives to all; see security/munge.py.

    Args:
        meeting: Where rank 0 listens.
        rank: Our rank.
        job: What tells the job from others: see munge.credential.
        deadline: ``time.monotonic()`` at which to give up.

    Raises:
        BootstrapError: Nobody gave one that could be opened.
    """
    reason: Exception = TimeoutError("the time was up")
    wrong: Exception | None = None  # says more than the reason
    while time.monotonic() < deadline:
        for port in in_turn(meeting.ports):
            try:
                soon = min(deadline, time.monotonic() + _CREDENTIAL_SECONDS)
                with open_connection((meeting.address, port), soon) as sock:
                    sock.settimeout(_CREDENTIAL_SECONDS)
                    sock.sendall(auth.first_message(auth.Hello(auth.Role.MUNGE, rank, 0)))
                    return munge.secret_in(_read_to_end(sock, munge.LONGEST), job)
            except SecretError as error:
                wrong = error
            except OSError as error:
                reason = error
        time.sleep(_RETRY_SECONDS)
    raise BootstrapError(
        f"rank {rank} got no credential with the job's secret from {meeting.describe()}: "
        f"{wrong or reason}"
    )


def _read_to_end(sock: socket.socket, limit: int) -> bytes:
    data = b""
    while len(data) <= limit:
        chunk = sock.recv(limit)
        if not chunk:
            break
        data += chunk
    if not data:  # rank 0 may have given up meanwhile
        raise ConnectionResetError("the connection was closed without an answer")
    return data


class RendezvousServer:
    """Rank 0's side: one connection to every other rank. Owns them until close()."""

    def __init__(self, peers: dict[int, Channel], deadline: float, members: Sequence[int]) -> None:
        self._peers = peers
        self._deadline = deadline
        self._members = list(members)

    def allgather(self, value: Any) -> list[Any]:
        """Collects a value from every rank and sends the list, in order of members, to all."""
        values: dict[int, Any] = {0: value}
        for rank in sorted(self._peers):
            with self._peer_errors(rank):
                values[rank] = decode(self._timed(rank).receive(MAX_RECORD_BYTES))
        ordered = [values[rank] for rank in self._members]
        answer = _packed({"values": ordered, "members": self._members})
        for rank in sorted(self._peers):
            with self._peer_errors(rank):
                self._timed(rank).send(answer)
        return ordered

    def refuse(self, reason: str) -> None:
        """Tells every connected rank why the job does not start."""
        for channel in self._peers.values():
            with contextlib.suppress(OSError):
                channel.sock.settimeout(1.0)
                channel.send(_packed({"error": reason}))
        self.close()

    def close(self) -> None:
        """Closes all connections."""
        for channel in self._peers.values():
            channel.sock.close()

    def _timed(self, rank: int) -> Channel:
        self._peers[rank].sock.settimeout(max(0.01, self._deadline - time.monotonic()))
        return self._peers[rank]

    @contextlib.contextmanager
    def _peer_errors(self, rank: int) -> Any:
        """Turns an error on the connection to one rank into an error that all ranks get."""
        try:
            yield
        except (OSError, BootstrapError, IntegrityError) as error:
            reason = f"the job could not start: rank 0 lost rank {rank} while it started ({error})"
            self.refuse(reason)
            raise BootstrapError(reason) from None


class RendezvousClient:
    """The side of every other rank: one connection to rank 0. Owns it until close()."""

    def __init__(
        self, channel: Channel, rank: int, deadline: float, members: Sequence[int]
    ) -> None:
        self._channel = channel
        self._rank = rank
        self._deadline = deadline
        self._members = list(members)

    def allgather(self, value: Any) -> list[Any]:
        """Sends a value to rank 0 and receives the list of all ranks' values."""
        answer = self._exchange(value)
        if not isinstance(answer, dict) or "error" in answer:
            text = answer.get("error") if isinstance(answer, dict) else "a malformed answer"
            raise BootstrapError(str(text))
        if answer.get("members") != self._members:
            raise BootstrapError(
                f"rank 0 starts a job of the ranks {answer.get('members')}, and rank {self._rank} "
                f"one of {self._members}: init(comm=[...]) has to be the same on all of them"
            )
        values = answer.get("values")
        if not isinstance(values, list) or len(values) != len(self._members):
            raise BootstrapError("rank 0 sent a malformed list of records")
        return values

    def _exchange(self, value: Any) -> Any:
        limit = MAX_RECORD_BYTES * (len(self._members) + 1)
        try:
            self._channel.sock.settimeout(max(0.01, self._deadline - time.monotonic()))
            self._channel.send(encode(value))
            return _unpacked(self._channel.receive(limit), limit)
        except (OSError, IntegrityError) as error:
            raise BootstrapError(
                f"the job could not start: rank {self._rank} lost rank 0 while it started ({error})"
            ) from None

    def close(self) -> None:
        """Closes the connection."""
        self._channel.sock.close()


def _packed(value: Any) -> bytes:
    """JSON, compressed: the records of many ranks are alike, and rank 0 sends them to all."""
    return zlib.compress(encode(value))


def _unpacked(data: bytes, limit: int) -> Any:
    try:
        return decode(zlib.decompressobj().decompress(data, limit))
    except zlib.error:
        raise BootstrapError("rank 0 sent a malformed list of records") from None


def open_exchange(
    *,
    rank: int,
    size: int,
    meeting: Meeting,
    key: bytes,
    timeout: float,
    members: Sequence[int] | None = None,
) -> RendezvousServer | RendezvousClient:
    """Connects this rank to rank 0, or as rank 0 waits until all members have connected.

    Args:
        rank: Our rank among all that were launched.
        size: Number of ranks that were launched.
        meeting: Where rank 0 listens.
        key: The job's key.
        timeout: Seconds to wait for all members.
        members: The ranks of the job, in the order in which allgather returns their values; rank 0
            is one of them. None: all.

    Raises:
        AuthError: The process that listens there does not know the secret.
        BootstrapError: A rank did not connect in time; the message names it.
    """
    deadline = time.monotonic() + timeout
    members = range(size) if members is None else members
    if rank == 0:
        sock, by_launcher = _listening_socket(meeting, size)
        try:
            listener = Listener(sock.dup(), key, 0, credential=meeting.credential)
            return _accept_members(listener, members, deadline, timeout, meeting)
        finally:
            if by_launcher:
                _stop_listening(sock)
            else:
                sock.close()
    hello = auth.Hello(auth.Role.RENDEZVOUS, rank, 0)
    try:
        channel = connect(meeting.address, meeting.ports, key, hello, deadline)
    except NotAdmittedError:
        raise BootstrapError(
            f"rank 0 waited for other ranks, and not for rank {rank}, until the time was up: only "
            f"the ranks of a job call init(comm=[...]), here {list(members)}"
        ) from None
    return RendezvousClient(channel, rank, deadline + _REPORT_SECONDS, members)


def _accept_members(
    listener: Listener, members: Sequence[int], deadline: float, timeout: float, meeting: Meeting
) -> RendezvousServer:
    """Waits on rank 0 until all members have connected. Closes the listener."""
    expected = {(auth.Role.RENDEZVOUS, other) for other in members if other != 0}
    try:
        present = listener.accept(expected, deadline)
    finally:
        listener.close()
    server = RendezvousServer(
        {who[1]: channel for who, channel in present.items()}, deadline + _REPORT_SECONDS, members
    )
    missing = sorted(other for role, other in expected if (role, other) not in present)
    if missing:
        where = meeting.describe()
        elsewhere = f"check that they can reach {where}"
        left = f" ({ranks_text(sorted(listener.gone))} came and went)" if listener.gone else ""
        if meeting.loopback_only:
            elsewhere = (
                "set TFRING_SECRET_FILE or TFRING_SECRET, without which none of them can join"
            )
        reason = (
            f"rank 0 waited {timeout:g} s at {where}, and {ranks_text(missing)} of "
            f"{len(members)} did not come{left}: look at their output for an earlier error; if "
            "they only need longer, raise TFRING_START_TIMEOUT; if they run on other hosts, "
            f"{elsewhere}"
        )
        server.refuse(reason)
        raise BootstrapError(reason)
    return server


def _listening_socket(meeting: Meeting, size: int) -> tuple[socket.socket, bool]:
    """Returns where to accept the others, and whether the launcher has chosen the port."""
    backlog = max(1024, size + 16)
    for port in meeting.ports:
        sock = _kept.pop(port, None)
        if sock is None and meeting.inherited_fd is not None:
            sock = adopt_socket(meeting.inherited_fd, port)
        if sock is not None:
            try:
                # While connections of an earlier init are in TIME_WAIT.
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                sock.listen(backlog)
                return sock, True
            except OSError as error:
                _log.info("port %d of the launcher cannot be used: %s", port, error)
                sock.close()
    address = meeting.bind_address
    if address is None:
        address = hosts.listening_address(meeting.address)
    if not address:
        _log.info("rank 0 listens on all addresses of this host, port %d", meeting.ports[0])
    return _bind_one(address, meeting, backlog), False


def _stop_listening(sock: socket.socket) -> None:
    """Ends the listening of a socket, in all processes that have it, and keeps its port.

    The kernel keeps a port that was bound by its number. Without SO_REUSEADDR nobody else can bind
    it, too.
    """
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
    _kept[sock.getsockname()[1]] = sock


def _bind_one(address: str, meeting: Meeting, backlog: int) -> socket.socket:
    # The next init after a shutdown uses the same port; a process that is about to end may hold it.
    deadline = time.monotonic() + _IN_USE_SECONDS
    while True:
        for port in meeting.ports:
            try:
                return bind(address, port, backlog)
            except OSError as error:
                failure = error
                if error.errno != errno.EADDRINUSE:
                    break
        if failure.errno == errno.EADDRINUSE and time.monotonic() < deadline:
            time.sleep(0.1)
            continue
        hint = "TFRING_BIND_ADDR says where rank 0 listens"
        if failure.errno == errno.EADDRINUSE:
            hint = "another program uses the port"
        raise BootstrapError(
            f"rank 0 cannot listen at {meeting.describe()} ({failure}): {hint}; "
            "TFRING_RENDEZVOUS_ADDR and TFRING_RENDEZVOUS_PORT, the same for all ranks, override it"
        )


def adopt_socket(fd: int, port: int) -> socket.socket | None:
    """Takes over an inherited socket; None if ``fd`` is not one that is bound to that port."""
    try:
        if not stat.S_ISSOCK(os.fstat(fd).st_mode):
            return None
        probe = socket.socket(fileno=os.dup(fd))
    except OSError:
        return None
    try:
        name = probe.getsockname()
        connected = probe.getpeername()
    except OSError:
        connected = ()
    if connected or len(name) < 2 or name[1] != port:
        probe.close()
        return None
    os.close(fd)  # so that neither a child process nor a second init can use it
    return probe
