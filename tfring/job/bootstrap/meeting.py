"""Where the ranks of a job meet: rank 0 serves a store, others connect to it.

All know the address and a sequence of ports. The launcher may have opened one of them for rank 0.
With `init(init_method="file:///path")` a file says where rank 0 is: it has mode 0600 and holds the
secret of the store. Rank 0 writes it, replaces the file of an earlier job, and removes its own when
the job has begun.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tfring.job.bootstrap import hosts
from tfring.job.bootstrap.listening import listen, stop_listening
from tfring.job.bootstrap.patience import Patience
from tfring.job.bootstrap.store_exchange import StoreExchange, TooEarlyError
from tfring.job.environments import Identity, Rendezvous
from tfring.job.handshake import auth
from tfring.job.handshake.connector import ask
from tfring.job.handshake.errors import AuthError, BootstrapError
from tfring.job.handshake.listener import ports_to_try
from tfring.job.security import munge
from tfring.job.security.errors import SecretError
from tfring.job.security.files import replace_file
from tfring.job.security.secret import derived_secret, expand, fresh_secret, job_key
from tfring.job.security.sources import (
    JobSecret,
    find_secret,
    optional_secret,
    read_secret_file,
    secret_of_this_user,
)
from tfring.job.store import Limits, ServerLimits, Store, StoreAuthError, StoreError, TCPStore
from tfring.job.store.tcp.connection import Server
from tfring.job.store.tcp.server import StoreServer
from tfring.runtime.settings.environment import Settings

# A rank whose connection is gone for longer is lost, so that another may come in its place.
_LEASE = 0.001
_LOST_AFTER = 2.0
_OWN_STORE_SECONDS = 5.0
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
# With a file: for one address of rank 0's host, and before the file is read again.
_MOST_ADDRESSES = 32
_FILE_SECONDS = 3.0
_FILE_PAUSE_SECONDS = 0.05


class Meeting(NamedTuple):
    """Where the ranks of a job meet."""

    address: str  # name or address of rank 0's host, as all ranks know it
    ports: Sequence[int]  # the ports to try there, in this order
    key: bytes = b""  # what they prove to know; with munge others than rank 0 have to ask for it
    bind_address: str = ""  # rank 0: the address to listen at, "" for all
    # Rank 0: a listening socket on the only port that the launcher passed on.
    inherited_fd: int | None = None
    secret: JobSecret = JobSecret("")
    # What tells the job from others: in its key, and in a credential of munge.
    job_id: str = ""
    seed: str = ""

    def describe(self) -> str:
        """Returns ``host port 1234``, with the number of other ports."""
        more = f" (or {len(self.ports) - 1} others)" if len(self.ports) > 1 else ""
        return f"{self.address} port {self.ports[0]}{more}"

    def hint(self) -> str:
        """Returns what to do for ranks on other hosts that do not come."""
        if self.secret.loopback_only:
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
    given: Store | None,
) -> tuple[StoreExchange, str, bool]:
    """Meets the other ranks in the store that is given, or else in the one that rank 0 serves.

    `members` are the launched ranks that form the job; None: all. Returns the exchange, the job's
    secret, and whether only processes of this host know that.
    """
    rank, size = identity.rank, identity.size
    assert size is not None
    meeting = None
    hint = "check that they use the same store"
    if identity.rendezvous is not Rendezvous.STORE:
        meeting = _meeting(identity, settings, environ)
        hint = meeting.hint()
    secret = optional_secret(settings) if meeting is None else ""
    patience = Patience(f"rank {rank}", settings.start_timeout)
    while True:
        with contextlib.ExitStack() as failed:
            owned = contextlib.ExitStack() if given is None else None
            store = given
            if owned is not None:
                failed.callback(owned.close)
                if meeting is None:
                    path = Path(str(identity.address))
                    store = file_store(path, rank, size, patience, owned)
                elif rank == 0:
                    store, secret = serve(meeting, size, owned), meeting.secret.text
                else:
                    store, secret = join(meeting, rank, patience, owned)
            assert store is not None
            ranks = range(size) if members is None else members
            try:
                exchange = StoreExchange(store, rank, ranks, patience, owned=owned, hint=hint)
            except TooEarlyError:
                if meeting is None or patience.is_over:
                    raise
            else:
                failed.pop_all()
                break
        time.sleep(_EARLY_SECONDS)
    secret = secret or store.secret() or ""
    return exchange, secret or secret_of_this_user(), not secret


def _meeting(identity: Identity, settings: Settings, environ: Mapping[str, str]) -> Meeting:
    """Returns where the ranks meet: at a port that was given, or at those that the job's key makes.

    With munge no rank but 0 knows the secret before it has found rank 0.
    """
    rank, local_size, seed = identity.rank, identity.local_size, identity.public_seed or ""
    address = settings.rendezvous_addr or identity.address
    assert address is not None and identity.size is not None
    several_hosts, bind_address = identity.several_hosts, settings.bind_addr
    if several_hosts is None and local_size is not None:
        several_hosts = local_size < identity.size
    if several_hosts is None and bind_address is not None:
        several_hosts = True
    if several_hosts is None or (rank == 0 and bind_address is None):
        is_here, by_name = hosts.look_here(address)
        several_hosts = not is_here if several_hosts is None else several_hosts
        bind_address = by_name if bind_address is None else bind_address
    secret = find_secret(identity, settings, several_hosts=several_hosts)
    job_id = settings.job_id or identity.job_id
    if environ.get("TFRING_X_RESTART_COUNT", "0") != "0":
        # Ranks of the lives before are strangers to this one.
        job_id += f".{environ['TFRING_X_RESTART_COUNT']}"
    port_key = job_key(derived_secret(seed) if secret.by_munge else secret.text, job_id)
    key = job_key(secret.text, job_id) if secret.text else b""
    given = identity.port if settings.rendezvous_port is None else settings.rendezvous_port
    ports = [] if given is None else [given]
    if settings.rendezvous_port is None and not identity.fixed_port:
        ports += candidate_ports(port_key)
    fd = environ.get("TFRING_X_RENDEZVOUS_FD", "")
    return Meeting(
        address=hosts.LOOPBACK if secret.loopback_only else address,
        ports=ports,
        key=key,
        bind_address=hosts.LOOPBACK if secret.loopback_only else bind_address or "",
        inherited_fd=int(fd) if rank == 0 and fd.isdigit() else None,
        secret=secret,
        job_id=job_id,
        seed=seed,
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


def serve(meeting: Meeting, size: int, owned: contextlib.ExitStack) -> TCPStore:
    """Rank 0: serves the store; BootstrapError if it cannot.

    Any process that asks for the credential of the secret gets it: see security/munge.py. `owned`
    closes the store, which ends it for all, and keeps the port of a launcher for the next init.
    """
    sock, by_launcher = listen(
        meeting.bind_address, meeting.ports, meeting.inherited_fd, size, meeting.describe()
    )
    if by_launcher:
        owned.callback(stop_listening, sock.dup())
    limits = ServerLimits(
        Limits(keys=max(_MOST.table.keys, _KEYS_OF_A_RANK * size)), max(_MOST.clients, 2 * size)
    )
    role = auth.Role.RENDEZVOUS
    credential = meeting.secret.credential
    server = StoreServer(sock, meeting.key, limits, role=role, credential=credential)
    host, port = server.address
    own = hosts.LOOPBACK if host in ("0.0.0.0", "::") else host
    hello = auth.Hello(role, 0, 0)
    at = Server(own, port, meeting.key, _LEASE, _LOST_AFTER, hello)
    store = TCPStore.of_job(at, _OWN_STORE_SECONDS, server)
    owned.callback(store.close)
    return store


def join(
    meeting: Meeting, rank: int, patience: Patience, owned: contextlib.ExitStack
) -> tuple[TCPStore, str]:
    """The other ranks: connects with the store, which `owned` closes; returns it, and the secret.

    Another program on one of the ports, or a credential that is out of date, is no reason to give
    up: the next port is tried, and with munge each with the credential that it gives, which holds
    the secret.

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
                text, key = meeting.secret.text, meeting.key
                if meeting.secret.by_munge:
                    hello = auth.Hello(auth.Role.MUNGE, rank, 0)
                    where = (meeting.address, port)
                    credential = ask(where, hello, munge.LONGEST, _CREDENTIAL_SECONDS)
                    text = munge.secret_in(credential, meeting.seed)
                    key = job_key(text, meeting.job_id)
                seconds = min(most, patience.until_next_word)
                return _connect(meeting.address, port, rank, key, seconds, owned), text
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


def _connect(
    address: str, port: int, rank: int, key: bytes, seconds: float, owned: contextlib.ExitStack
) -> TCPStore:
    """Tries once to connect with the store that rank 0 serves; raises what a TCPStore does."""
    hello = auth.Hello(auth.Role.RENDEZVOUS, rank, 0)
    server = Server(address, port, key, _LEASE, _LOST_AFTER, hello)
    store = TCPStore.of_job(server, seconds, again=False)
    owned.callback(store.close)
    return store


def file_store(
    path: Path, rank: int, size: int, patience: Patience, owned: contextlib.ExitStack
) -> TCPStore:
    """Returns the store of the job; rank 0 serves it and says in the file where.

    `owned` closes the store and removes the file.

    BootstrapError: the file cannot be written; or rank 0 did not write it in time, or could not be
    reached.
    """
    if rank != 0:
        return _found(path, rank, patience, owned)
    secret = fresh_secret()
    store = serve(Meeting("", [0], job_key(secret, "file")), size, owned)
    owned.enter_context(_written(path, store.port, secret))
    return store


@contextlib.contextmanager
def _written(path: Path, port: int, secret: str) -> Iterator[None]:
    """Says in the file where rank 0 listens, while the block runs."""
    addresses = [each.address for each in hosts.interface_addresses() if not each.loopback]
    place = _Place(hosts.host_identity(), addresses[:_MOST_ADDRESSES], port, secret)
    text = json.dumps(place._asdict())
    try:
        replace_file(path, text)
    except OSError as error:
        raise BootstrapError(
            f"rank 0 cannot write {path}, where the other ranks look for it: {error}"
        ) from None
    try:
        yield
    finally:
        with contextlib.suppress(OSError, SecretError):
            if read_secret_file(path) == text:
                path.unlink()


def _found(path: Path, rank: int, patience: Patience, owned: contextlib.ExitStack) -> TCPStore:
    """Returns the store whose address and key are in the file."""
    reason: Exception = TimeoutError("rank 0 has not come")
    while not patience.is_over:
        try:
            place = _Place(**json.loads(read_secret_file(path)))
            key = job_key(place.secret, "file")
            here = place.host == hosts.host_identity()
            for address in [hosts.LOOPBACK] if here else place.addresses:
                try:
                    return _connect(address, place.port, rank, key, _FILE_SECONDS, owned)
                except StoreError as error:  # of an earlier job, perhaps
                    reason = error
        except (SecretError, TypeError, ValueError) as error:
            reason = error
        if rank == 1:  # one of those that wait is enough
            said = reason
            patience.tell(lambda: f"rank 0, whose address is in {path} ({said})")  # noqa: B023
        time.sleep(_FILE_PAUSE_SECONDS)
    raise BootstrapError(
        f"rank {rank} waited {patience.seconds:g} s for rank 0, whose address should be in {path}: "
        f"{reason}. Look at the output of rank 0, and check that both see the same file"
    )


class _Place(NamedTuple):
    """What the file says: `host` is the identity of rank 0's host."""

    host: str
    addresses: list[Any]
    port: int
    secret: str
