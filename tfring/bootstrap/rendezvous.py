"""The exchange without MPI: rank 0 listens at an address that all ranks know, others connect."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import stat
import time
from collections.abc import Callable, Sequence
from typing import Any

from tfring.bootstrap import auth, frames
from tfring.bootstrap.errors import BootstrapError
from tfring.bootstrap.listener import RETRY_LATER, Listener, bind, connect

# Added to the time limit, so that a rank that failed to connect can still tell the others.
_REPORT_SECONDS = 5.0
_RETRY_SECONDS = 0.05

# The launcher's listening sockets by port, kept open for the next init: the port is from the range
# of outgoing connections, so that another program could get it in between.
_adopted: dict[int, socket.socket] = {}


def describe_ranks(ranks: list[int]) -> str:
    """``rank 3`` or ``ranks 1, 2 and 5``; long lists are cut short."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    if len(ranks) > 16:
        shown = ", ".join(str(r) for r in ranks[:16])
        return f"{len(ranks)} ranks ({shown}, ...)"
    return f"ranks {', '.join(str(r) for r in ranks[:-1])} and {ranks[-1]}"


class RendezvousServer:
    """Rank 0's side: one connection to every other rank. Owns them until close()."""

    def __init__(
        self, peers: dict[int, socket.socket], deadline: float, members: Sequence[int]
    ) -> None:
        self._peers = peers
        self._deadline = deadline
        self._members = list(members)

    def allgather(self, value: Any) -> list[Any]:
        """Collects a value from every rank and sends the list, in order of members, to all."""
        values: dict[int, Any] = {0: value}
        for rank in sorted(self._peers):
            with self._peer_errors(rank):
                data = frames.receive_frame(self._timed(rank), frames.MAX_RECORD_BYTES)
                values[rank] = frames.decode(data)
        ordered = [values[rank] for rank in self._members]
        answer = frames.encode({"values": ordered, "members": self._members})
        for rank in sorted(self._peers):
            with self._peer_errors(rank):
                frames.send_frame(self._timed(rank), answer)
        return ordered

    def refuse(self, reason: str) -> None:
        """Tells every connected rank why the job does not start."""
        for sock in self._peers.values():
            with contextlib.suppress(OSError):
                sock.settimeout(1.0)
                frames.send_frame(sock, frames.encode({"error": reason}))
        self.close()

    def close(self) -> None:
        """Closes all connections."""
        for sock in self._peers.values():
            sock.close()

    def _timed(self, rank: int) -> socket.socket:
        sock = self._peers[rank]
        sock.settimeout(max(0.01, self._deadline - time.monotonic()))
        return sock

    @contextlib.contextmanager
    def _peer_errors(self, rank: int) -> Any:
        """Turns an error on the connection to one rank into an error that all ranks get."""
        try:
            yield
        except (OSError, BootstrapError) as error:
            reason = f"the job could not start: rank 0 lost rank {rank} while it started ({error})"
            self.refuse(reason)
            raise BootstrapError(reason) from None


class RendezvousClient:
    """The side of every other rank: one connection to rank 0. Owns it until close().

    While rank 0 starts an earlier job that does not include this rank, it answers that we have to
    retry. So the connection is made anew until rank 0 starts the job that we are part of.
    """

    def __init__(
        self,
        connect_until: Callable[[float], socket.socket],
        rank: int,
        deadline: float,
        members: Sequence[int],
    ) -> None:
        """Connects with `connect_until`, which gets the deadline; more often if rank 0 says so."""
        self._connect_until = connect_until
        self._sock = connect_until(deadline)
        self._rank = rank
        self._retry_until = deadline
        self._deadline = deadline + _REPORT_SECONDS
        self._members = list(members)

    def allgather(self, value: Any) -> list[Any]:
        """Sends a value to rank 0 and receives the list of all ranks' values."""
        answer = self._exchange(value)
        while answer == RETRY_LATER and time.monotonic() < self._retry_until:
            self._sock.close()
            time.sleep(_RETRY_SECONDS)
            self._sock = self._connect_until(self._retry_until)
            answer = self._exchange(value)
        if answer == RETRY_LATER:
            raise BootstrapError(
                f"rank 0 waited for other ranks, and not for rank {self._rank}, until the time was "
                f"up: only the ranks of a job call init(comm=[...]), here {self._members}"
            )
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
        limit = frames.MAX_RECORD_BYTES * (len(self._members) + 1)
        try:
            self._sock.settimeout(max(0.01, self._deadline - time.monotonic()))
            # A rank 0 that rejects us has answered and closed the connection already.
            with contextlib.suppress(ConnectionError):
                frames.send_frame(self._sock, frames.encode(value))
            return frames.decode(frames.receive_frame(self._sock, limit))
        except OSError as error:
            raise BootstrapError(
                f"the job could not start: rank {self._rank} lost rank 0 while it started ({error})"
            ) from None

    def close(self) -> None:
        """Closes the connection."""
        self._sock.close()


def open_exchange(
    *,
    rank: int,
    size: int,
    address: str,
    port: int,
    key: bytes,
    timeout: float,
    inherited_fd: int | None = None,
    members: Sequence[int] | None = None,
) -> RendezvousServer | RendezvousClient:
    """Connects this rank to rank 0, or as rank 0 waits until all members have connected.

    Args:
        rank: Our rank among all that were launched.
        size: Number of ranks that were launched.
        address: Where rank 0 listens.
        port: The port at that address.
        key: The job's key.
        timeout: Seconds to wait for all members.
        inherited_fd: Rank 0: a listening socket on that port that the launcher passed on.
        members: The ranks of the job, in the order in which allgather returns their values; rank 0
            is one of them. None: all.

    Raises:
        AuthError: The process that listens there does not know the secret.
        BootstrapError: A rank did not connect in time; the message names it.
    """
    deadline = time.monotonic() + timeout
    members = range(size) if members is None else members
    if rank == 0:
        listener = Listener(_listening_socket(address, port, size, inherited_fd), key, 0)
        return _accept_members(listener, members, deadline, timeout, f"{address} port {port}")
    hello = auth.Hello(auth.Role.RENDEZVOUS, rank, 0)

    def connect_until(until: float) -> socket.socket:
        try:
            return connect(address, port, key, hello, until)
        except TimeoutError as error:
            raise BootstrapError(str(error)) from None

    return RendezvousClient(connect_until, rank, deadline, members)


def _accept_members(
    listener: Listener, members: Sequence[int], deadline: float, timeout: float, where: str
) -> RendezvousServer:
    """Waits on rank 0 until all members have connected. Closes the listener."""
    expected = {(auth.Role.RENDEZVOUS, other) for other in members if other != 0}
    try:
        present = listener.accept(expected, deadline)
    finally:
        listener.close()
    server = RendezvousServer(
        {who[1]: sock for who, sock in present.items()}, deadline + _REPORT_SECONDS, members
    )
    missing = sorted(other for role, other in expected if (role, other) not in present)
    if missing:
        reason = (
            f"rank 0 waited {timeout:g} s at {where}, and {describe_ranks(missing)} of "
            f"{len(members)} did not come: look at their output for an earlier error; if they only "
            "need longer, raise TFRING_START_TIMEOUT; if they run on other hosts, check that they "
            f"can reach {where}"
        )
        server.refuse(reason)
        raise BootstrapError(reason)
    return server


def _listening_socket(address: str, port: int, size: int, inherited: int | None) -> socket.socket:
    sock = _adopted.get(port)
    if sock is None and inherited is not None:
        sock = adopt_listener(inherited, port)
    if sock is not None:
        _adopted[port] = sock
        return sock.dup()
    # The next init after a shutdown uses the same port; a process that is about to end may hold it.
    return _retry_in_use(lambda: bind(address, port, min(4096, size + 16)), address, port)


def _retry_in_use(attempt: Callable[[], socket.socket], address: str, port: int) -> socket.socket:
    deadline = time.monotonic() + 5.0
    while True:
        try:
            return attempt()
        except OSError as error:
            if error.errno == errno.EADDRINUSE and time.monotonic() < deadline:
                time.sleep(0.1)
                continue
            hint = "the name of a host where rank 0 does not run"
            if error.errno == errno.EADDRINUSE:
                hint = "a port that another program uses"
            raise BootstrapError(
                f"rank 0 cannot listen at {address} port {port} ({error}), probably {hint}; "
                "TFRING_RENDEZVOUS_ADDR and TFRING_RENDEZVOUS_PORT, the same for all ranks, "
                "override it"
            ) from None


def adopt_listener(fd: int, port: int) -> socket.socket | None:
    """Takes over an inherited listening socket; None if ``fd`` is not one for that port."""
    try:
        if not stat.S_ISSOCK(os.fstat(fd).st_mode):
            return None
        probe = socket.socket(fileno=os.dup(fd))
    except OSError:
        return None
    try:
        listening = probe.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
        name = probe.getsockname()
    except OSError:
        listening, name = 0, ()
    if not listening or len(name) < 2 or name[1] != port:
        probe.close()
        return None
    os.close(fd)  # so that neither a child process nor a second init can use it
    return probe
