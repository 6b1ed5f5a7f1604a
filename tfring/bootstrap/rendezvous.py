"""Brings the ranks together without MPI: rank 0 listens where everybody knows, the others come."""

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
from tfring.bootstrap.listener import COME_AGAIN, Listener, bind, connect

# After everybody came, so that those who failed to connect to each other can still say so.
_REPORT_SECONDS = 5.0
_AGAIN_SECONDS = 0.05

# The launcher's listening sockets by port, for the next init: the port is one of those for outgoing
# connections, and in between anybody could get it.
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
    """Rank 0's end: one connection to every other rank.

    Used by one thread; owns its connections until close().
    """

    def __init__(
        self, peers: dict[int, socket.socket], deadline: float, members: Sequence[int]
    ) -> None:
        self._peers = peers
        self._deadline = deadline
        self._members = list(members)

    @property
    def size(self) -> int:
        """Number of ranks."""
        return len(self._members)

    def allgather(self, value: Any) -> list[Any]:
        """Collects a value from every rank and gives the list, in order of members, to all."""
        values: dict[int, Any] = {0: value}
        for rank in sorted(self._peers):
            with self._explained(rank):
                data = frames.receive_frame(self._timed(rank), frames.MAX_RECORD_BYTES)
                values[rank] = frames.decode(data)
        ordered = [values[rank] for rank in self._members]
        answer = frames.encode({"values": ordered, "members": self._members})
        for rank in sorted(self._peers):
            with self._explained(rank):
                frames.send_frame(self._timed(rank), answer)
        return ordered

    def refuse(self, reason: str) -> None:
        """Tells everybody who is there why the job does not start."""
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
    def _explained(self, rank: int) -> Any:
        """Turns trouble with one rank into an error that all ranks get."""
        try:
            yield
        except (OSError, BootstrapError) as error:
            reason = f"the job could not start: rank 0 lost rank {rank} while it started ({error})"
            self.refuse(reason)
            raise BootstrapError(reason) from None


class RendezvousClient:
    """The end of every other rank: one connection to rank 0.

    Used by one thread; owns its connection until close(). While rank 0 meets the ranks of an
    earlier job that we are not part of, it tells us to come again.
    """

    def __init__(
        self,
        reach: Callable[[float], socket.socket],
        rank: int,
        deadline: float,
        members: Sequence[int],
    ) -> None:
        """Connects with `reach`, which gets the deadline, as often as rank 0 wants it."""
        self._reach = reach
        self._sock = reach(deadline)
        self._rank = rank
        self._begin_until = deadline
        self._deadline = deadline + _REPORT_SECONDS
        self._members = list(members)

    @property
    def size(self) -> int:
        """Number of ranks."""
        return len(self._members)

    def allgather(self, value: Any) -> list[Any]:
        """Sends a value to rank 0 and receives the list of all."""
        answer = self._ask(value)
        while answer == COME_AGAIN and time.monotonic() < self._begin_until:
            self._sock.close()
            time.sleep(_AGAIN_SECONDS)
            self._sock = self._reach(self._begin_until)
            answer = self._ask(value)
        if answer == COME_AGAIN:
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
        if not isinstance(values, list) or len(values) != self.size:
            raise BootstrapError("rank 0 sent a malformed list of records")
        return values

    def _ask(self, value: Any) -> Any:
        limit = frames.MAX_RECORD_BYTES * (self.size + 1)
        try:
            self._sock.settimeout(max(0.01, self._deadline - time.monotonic()))
            # Who does not want us has answered and hung up already.
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


def meet(
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
    """Brings this rank together with all others.

    Args:
        rank: Our rank among all that were launched.
        size: Number of ranks that were launched.
        address: Where rank 0 listens.
        port: The port for it.
        key: The job's key.
        timeout: Seconds to wait for everybody.
        inherited_fd: Rank 0: a listening socket on that port that the launcher passed on.
        members: The ranks that come, in the order in which their values are wanted; rank 0 is one
            of them. None: all.

    Raises:
        AuthError: Whoever listens there does not know the secret.
        BootstrapError: Somebody did not come in time; the message names the ranks.
    """
    deadline = time.monotonic() + timeout
    members = range(size) if members is None else members
    if rank > 0:
        hello = auth.Hello(auth.Role.RENDEZVOUS, rank, 0)

        def reach(until: float) -> socket.socket:
            try:
                return connect(address, port, key, hello, until)
            except TimeoutError as error:
                raise BootstrapError(str(error)) from None

        return RendezvousClient(reach, rank, deadline, members)
    listener = Listener(_listening_socket(address, port, size, inherited_fd), key, 0)
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
            f"rank 0 waited {timeout:g} s at {address} port {port}, and {describe_ranks(missing)} "
            f"of {len(members)} did not come: look at their output for an earlier error; if they "
            "only need longer, raise TFRING_START_TIMEOUT; if they run on other hosts, check that "
            f"they can reach {address} port {port}"
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
    # After a shutdown the next init uses the same port; a process that is just leaving may hold it.
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
    """A listening socket that was inherited, if ``fd`` really is the one for that port."""
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
    os.close(fd)  # so that neither a child of ours nor a second init meets it
    return probe
