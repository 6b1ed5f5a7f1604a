"""Where the ranks of a job meet: rank 0 serves a store, others connect to it.

All know the address and a sequence of ports. The launcher may have opened one of them for rank 0.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import socket
import stat
import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from tfring.job.bootstrap import hosts
from tfring.job.bootstrap.patience import Patience
from tfring.job.bootstrap.store_exchange import StoreExchange, TooEarlyError
from tfring.job.environments import Identity
from tfring.job.handshake import auth
from tfring.job.handshake.connector import open_connection
from tfring.job.handshake.errors import AuthError, BootstrapError
from tfring.job.handshake.listener import bind, ports_to_try
from tfring.job.security import munge
from tfring.job.security.errors import SecretError
from tfring.job.security.secret import derived_secret, expand, job_key
from tfring.job.security.sources import JobSecret, find_secret
from tfring.job.store import Limits, ServerLimits, StoreAuthError, TCPStore
from tfring.job.store.tcp.connection import Server
from tfring.job.store.tcp.server import StoreServer
from tfring.runtime.settings.environment import Settings

_log = logging.getLogger("tfring")

# A rank whose connection is gone for longer is lost, so that another may come in its place.
_LEASE = 0.001
_LOST_AFTER = 2.0
_IN_USE_SECONDS = 5.0
_CREDENTIAL_SECONDS = 3.0
# For one attempt to connect. A firewall may drop what goes to some of several ports, and a process
# that says nothing on one must not keep us from the others.
_ATTEMPT_SECONDS = 20.0
_ATTEMPT_SECONDS_OF_SEVERAL = 2.0
_FIRST_PAUSE = 0.01
_LONGEST_PAUSE = 0.25
# Before a rank asks again whether rank 0 starts its job.
_EARLY_SECONDS = 0.25
_CANDIDATES = 8
_PORTS = range(20000, 32000)
# Of the store: what each rank may set in it.
_KEYS_OF_A_RANK = 16
_MOST = ServerLimits()

# By port, the sockets with which this process keeps ports of the launcher's for the next init: they
# are from the range of outgoing connections, so that another program could get them in between.
# They are bound and do not listen, because nobody accepts what comes.
_kept: dict[int, socket.socket] = {}


class Meeting(NamedTuple):
    """Where the ranks of a job meet."""

    address: str  # name or address of rank 0's host, as all ranks know it
    ports: Sequence[int]  # the ports to try there, in this order
    # Rank 0: the address to listen at, "" for all; None: what `address` suggests.
    bind_address: str | None = None
    # Rank 0: a listening socket on the only port that the launcher passed on.
    inherited_fd: int | None = None
    loopback_only: bool = False  # nobody on another host can join

    def describe(self) -> str:
        """Returns ``host port 1234``, with the number of other ports."""
        more = f" (or {len(self.ports) - 1} others)" if len(self.ports) > 1 else ""
        return f"{self.address} port {self.ports[0]}{more}"

    def hint(self) -> str:
        """Returns what to do for ranks on other hosts that do not come."""
        if self.loopback_only:
            return (
                "if they run on other hosts, set TFRING_SECRET_FILE or TFRING_SECRET, without "
                "which none of them can join"
            )
        return f"if they run on other hosts, check that they can reach {self.describe()}"


def meet(
    identity: Identity,
    settings: Settings,
    environ: Mapping[str, str],
    members: Sequence[int] | None,
) -> tuple[StoreExchange, str]:
    """Meets the other ranks in rank 0's store. Returns the exchange and the job's secret.

    `members` are the launched ranks that form the job; None: all.
    """
    rank, size, seed = identity.rank, identity.size, identity.public_seed or ""
    address = settings.rendezvous_addr or identity.address
    assert address is not None and size is not None
    several_hosts = _spans_hosts(identity, settings, address)
    secret = find_secret(identity, settings, several_hosts=several_hosts)
    job_id = settings.job_id or identity.job_id
    if environ.get("TFRING_X_RESTART_COUNT", "0") != "0":
        # Ranks of the lives before are strangers to this one.
        job_id += f".{environ['TFRING_X_RESTART_COUNT']}"
    meeting = _meeting(identity, settings, environ, secret, address, job_id)
    patience = Patience(f"rank {rank}", settings.start_timeout)
    while True:
        with contextlib.ExitStack() as failed:
            owned = contextlib.ExitStack()
            failed.callback(owned.close)
            text = secret.text
            if rank == 0:
                store = serve(meeting, size, job_key(text, job_id), secret.credential, owned)
            else:
                store, text = join(meeting, rank, secret, seed, job_id, patience)
            owned.callback(store.close)
            ranks = range(size) if members is None else members
            try:
                exchange = StoreExchange(
                    store, rank, ranks, patience, owned=owned, hint=meeting.hint()
                )
            except TooEarlyError:
                if patience.is_over:
                    raise
            else:
                failed.pop_all()
                return exchange, text
        time.sleep(_EARLY_SECONDS)


def _spans_hosts(identity: Identity, settings: Settings, address: str) -> bool:
    """Whether the job has ranks on other hosts, as far as this one can tell."""
    if identity.several_hosts is not None:
        return identity.several_hosts
    if identity.local_size is not None and identity.size is not None:
        return identity.local_size < identity.size
    return settings.bind_addr is not None or not hosts.is_here(address)


def _meeting(
    identity: Identity,
    settings: Settings,
    environ: Mapping[str, str],
    secret: JobSecret,
    address: str,
    job_id: str,
) -> Meeting:
    """Returns where the ranks meet: at a port that was given, or at those that the job's key makes.

    With munge no rank but 0 knows the secret before it has found rank 0.
    """
    given = identity.port if settings.rendezvous_port is None else settings.rendezvous_port
    ports = [] if given is None else [given]
    if settings.rendezvous_port is None and not identity.fixed_port:
        known = "" if secret.by_munge else secret.text
        public = known or derived_secret(identity.public_seed or "")
        ports += candidate_ports(job_key(public, job_id))
    fd = environ.get("TFRING_X_RENDEZVOUS_FD", "")
    return Meeting(
        address=hosts.LOOPBACK if secret.loopback_only else address,
        ports=ports,
        bind_address=hosts.LOOPBACK if secret.loopback_only else settings.bind_addr,
        inherited_fd=int(fd) if identity.rank == 0 and fd.isdigit() else None,
        loopback_only=secret.loopback_only,
    )


def candidate_ports(key: bytes) -> list[int]:
    """Returns ports that all ranks of a job try in this order, and that others cannot foresee.

    They lie in TFRING_PORT_RANGE, else below the range that Linux takes ports of outgoing
    connections from.
    """
    ports = sorted(ports_to_try(os.environ))
    if ports == [0]:
        ports = list(_PORTS)
    words = [expand(key, b"port %d" % number)[:4] for number in range(_CANDIDATES)]
    return [ports[int.from_bytes(word, "big") % len(ports)] for word in words]


def serve(
    meeting: Meeting, size: int, key: bytes, credential: bytes | None, owned: contextlib.ExitStack
) -> TCPStore:
    """Rank 0: serves the store, whose close() ends it for all; BootstrapError if it cannot.

    Any process that asks for the credential gets it: see security/munge.py. `owned`, which is
    closed after the store, keeps the port of a launcher for the next init.
    """
    sock, by_launcher = _listening_socket(meeting, size)
    if by_launcher:
        owned.callback(_stop_listening, sock.dup())
    limits = ServerLimits(
        Limits(keys=max(_MOST.table.keys, _KEYS_OF_A_RANK * size)), max(_MOST.clients, 2 * size)
    )
    role = auth.Role.RENDEZVOUS
    server = StoreServer(sock, key, limits, role=role, credential=credential)
    host, port = server.address
    own = hosts.LOOPBACK if host in ("0.0.0.0", "::") else host
    hello = auth.Hello(role, 0, 0)
    at = Server(own, port, key, _LEASE, _LOST_AFTER, hello)
    return TCPStore.of_job(at, _IN_USE_SECONDS, server)


def join(
    meeting: Meeting, rank: int, secret: JobSecret, seed: str, job_id: str, patience: Patience
) -> tuple[TCPStore, str]:
    """The other ranks: connects with the store; returns it, and the secret.

    Another program on one of the ports, or a credential that is out of date, is no reason to give
    up: the next port is tried, and with munge each with the credential that it gives. That holds
    the secret, and `seed` tells it from those of other jobs.

    Raises:
        AuthError: The process that listens there does not know the secret.
        BootstrapError: Nobody listens there, or gives a credential with the secret.
    """
    reason: Exception = TimeoutError("the time was up before the first attempt")
    wrong: Exception | None = None  # says more than the reason
    pause = _FIRST_PAUSE
    most = _ATTEMPT_SECONDS if len(meeting.ports) == 1 else _ATTEMPT_SECONDS_OF_SEVERAL
    first, *others = meeting.ports
    in_turn = [first, *(port for other in others for port in (other, first))]  # likely the first
    while not patience.is_over:
        for port in in_turn:
            try:
                text = secret.text
                if secret.by_munge:
                    text = munge.secret_in(_credential(meeting.address, port, rank), seed)
                seconds = min(most, patience.until_next_word)
                return connect(meeting.address, port, rank, job_key(text, job_id), seconds), text
            except (SecretError, StoreAuthError) as error:
                wrong = error
            except OSError as error:  # of the store, too
                reason = error
        if rank == 1:  # one of those that wait is enough
            patience.tell(lambda: f"rank 0 at {meeting.describe()}")
        time.sleep(pause)
        pause = min(pause * 1.5, _LONGEST_PAUSE)
    if isinstance(wrong, StoreAuthError):
        raise AuthError(f"rank {rank}: {wrong}")
    raise BootstrapError(
        f"rank {rank} could not reach rank 0 at {meeting.describe()}: {wrong or reason}"
    )


def connect(address: str, port: int, rank: int, key: bytes, seconds: float) -> TCPStore:
    """Tries once to connect with the store that rank 0 serves; raises what a TCPStore does."""
    hello = auth.Hello(auth.Role.RENDEZVOUS, rank, 0)
    server = Server(address, port, key, _LEASE, _LOST_AFTER, hello)
    return TCPStore.of_job(server, seconds, again=False)


def _credential(address: str, port: int, rank: int) -> bytes:
    """Returns what the process that listens at a port gives to everybody."""
    with open_connection((address, port), time.monotonic() + _CREDENTIAL_SECONDS) as sock:
        sock.settimeout(_CREDENTIAL_SECONDS)
        sock.sendall(auth.first_message(auth.Hello(auth.Role.MUNGE, rank, 0)))
        data = b""
        while len(data) <= munge.LONGEST and (chunk := sock.recv(munge.LONGEST)):
            data += chunk
    if not data:  # rank 0 may have given up meanwhile
        raise ConnectionResetError("the connection was closed without an answer")
    return data


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
    if not address and meeting.ports[0]:  # 0: the address is passed on with the port
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
