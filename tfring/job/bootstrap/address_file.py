"""`init(init_method="file:///path")`: a file says where rank 0 serves the store of the job.

The file has mode 0600 and holds the secret of the store. Rank 0 writes it, replaces the file of an
earlier job, and removes its own when the job has begun.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from tfring.job.bootstrap import hosts
from tfring.job.bootstrap.meeting import Meeting, connect, serve
from tfring.job.bootstrap.patience import Patience
from tfring.job.handshake.errors import BootstrapError
from tfring.job.security.errors import SecretError
from tfring.job.security.files import replace_file
from tfring.job.security.secret import fresh_secret, job_key
from tfring.job.security.sources import read_secret_file
from tfring.job.store import StoreError, TCPStore

_MOST_ADDRESSES = 32
_CONNECT_SECONDS = 3.0  # for one address of rank 0's host
_PAUSE_SECONDS = 0.05


def store_of(
    path: Path, rank: int, size: int, patience: Patience, owned: contextlib.ExitStack
) -> TCPStore:
    """Returns the store of the job; rank 0 serves it and says in the file where.

    `owned` closes the store and removes the file.

    BootstrapError: the file cannot be written; or rank 0 did not write it in time, or could not be
    reached.
    """
    if rank != 0:
        store = _found(path, rank, patience)
        owned.callback(store.close)
        return store
    secret = fresh_secret()
    meeting = Meeting("", [0], bind_address="")
    store = serve(meeting, size, job_key(secret, "file"), None, owned)
    owned.callback(store.close)
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


def _found(path: Path, rank: int, patience: Patience) -> TCPStore:
    """Returns the store whose address and key are in the file."""
    reason: Exception = TimeoutError("rank 0 has not come")
    while not patience.is_over:
        try:
            place = _Place(**json.loads(read_secret_file(path)))
            key = job_key(place.secret, "file")
            here = place.host == hosts.host_identity()
            for address in [hosts.LOOPBACK] if here else place.addresses:
                try:
                    return connect(address, place.port, rank, key, _CONNECT_SECONDS)
                except StoreError as error:  # of an earlier job, perhaps
                    reason = error
        except (SecretError, TypeError, ValueError) as error:
            reason = error
        if rank == 1:  # one of those that wait is enough
            said = reason
            patience.tell(lambda: f"rank 0, whose address is in {path} ({said})")  # noqa: B023
        time.sleep(_PAUSE_SECONDS)
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
