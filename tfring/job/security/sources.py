"""Finds the secret of a job, and refuses jobs without one."""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import stat
import tempfile
from collections.abc import Iterator, Mapping, MutableMapping
from pathlib import Path
from typing import NamedTuple

from tfring.job.environments.identity import Identity
from tfring.job.security import munge
from tfring.job.security.errors import SecretError
from tfring.job.security.files import make_file
from tfring.job.security.secret import ADVICE, derived_secret, fresh_secret, job_key
from tfring.runtime.settings.environment import Settings

_log = logging.getLogger("tfring")

_MAX_FILE_BYTES = 4096

# The TFRING_SECRET that was taken out of the environment, for the next init.
_taken: str | None = None


class JobSecret(NamedTuple):
    """The secret of a job."""

    text: str  # the secret; empty where rank 0 has yet to give it to us in a credential
    # It is worth something on this host only: connections stay within it.
    loopback_only: bool = False
    credential: bytes | None = None  # rank 0: what any process may have; see munge.py
    by_munge: bool = False  # the other ranks ask rank 0 for the credential


def take_secret(environ: MutableMapping[str, str]) -> str | None:
    """Takes TFRING_SECRET out of the environment, so that child processes do not inherit it.

    Returns it, or what an earlier call took; None if there never was one.
    """
    global _taken
    _taken = environ.pop("TFRING_SECRET", None) or _taken
    return _taken


def given_secret(environ: Mapping[str, str]) -> str | None:
    """Returns TFRING_SECRET, also after take_secret(), or what is in TFRING_SECRET_FILE, or None.

    SecretError: the file cannot be read, or others can.
    """
    text = environ.get("TFRING_SECRET") or _taken
    file = environ.get("TFRING_SECRET_FILE")
    return read_secret_file(Path(file)) if text is None and file else text


def optional_secret(settings: Settings) -> str:
    """Returns the secret for a job that may need none; checks it where there is one."""
    if settings.secret is None and settings.secret_file is None:
        return ""
    text = settings.secret or read_secret_file(Path(str(settings.secret_file)))
    job_key(text, "")  # raises if it is too short
    return text


def find_secret(identity: Identity, settings: Settings, *, several_hosts: bool) -> JobSecret:
    """Finds the secret of a job whose ranks meet over TCP, on several hosts or one.

    In this order: the one that was given; on one host the user's own; munge under Slurm; with
    TFRING_INSECURE one that others can compute. SecretError: there is none; the message says how to
    give one.
    """
    if settings.secret is not None:
        return JobSecret(settings.secret)
    if settings.secret_file is not None:
        return JobSecret(read_secret_file(Path(settings.secret_file)))
    seed = identity.public_seed
    if seed is None:
        raise SecretError(
            f"{identity.source} started this job, and this process has no secret (TFRING_SECRET): "
            "a rank takes it out of its environment, so that a process that a rank starts cannot "
            "join the job in its place"
        )
    if not several_hosts:
        # A folder that another user has made is an error also with TFRING_INSECURE.
        with contextlib.suppress(OSError):
            return JobSecret(secret_of_this_user(), loopback_only=True)
    by_munge = several_hosts and identity.by_slurm and munge.available()
    if not by_munge and not settings.insecure:
        raise SecretError(_refusal(identity, several_hosts))
    if by_munge and identity.rank != 0:
        return JobSecret("", by_munge=True)
    if by_munge:
        text = fresh_secret()
        return JobSecret(text, by_munge=True, credential=munge.credential(text, seed))
    if identity.rank == 0:
        _log.warning(
            "TFRING_INSECURE is set, and %s, which started the job, sets no secret. Anybody who "
            "can reach rank 0 can join the job and run code in its processes",
            identity.source,
        )
    return JobSecret(derived_secret(seed), loopback_only=not several_hosts)


def _refusal(identity: Identity, several_hosts: bool) -> str:
    where = "has ranks on several hosts" if several_hosts else "finds no place for a key"
    munge_hint = ", let the administrator install munge on the nodes" if identity.by_slurm else ""
    return (
        f"the job was started by {identity.source}, which sets no secret, and {where}: set "
        "TFRING_SECRET_FILE to a file of mode 0600 or TFRING_SECRET to random text, the same for "
        f"all ranks ({ADVICE}){munge_hint}, start it with `tfring run`, or set TFRING_INSECURE=1 "
        "to let anyone on the network join it and run code in its processes"
    )


def read_secret_file(path: Path) -> str:
    """Returns the secret in a file that nobody else can read or change.

    SecretError: it cannot be read, is empty or too long, or others can read it or replace it.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise SecretError(f"the file with the secret cannot be read: {error}") from None
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise SecretError(f"{path}, which should hold the secret, is no regular file")
        if status.st_uid not in (os.geteuid(), 0):
            raise SecretError(f"{path}, which holds the secret, belongs to another user")
        if status.st_mode & 0o077:
            mode = stat.S_IMODE(status.st_mode)
            raise SecretError(
                f"{path}, which holds the secret, has mode {mode:04o}, so that others can read or "
                f"change it: chmod 600 {path}, and make a new secret"
            )
        folder = path.resolve().parent
        if folder.stat().st_mode & (stat.S_IWOTH | stat.S_ISVTX) == stat.S_IWOTH:
            raise SecretError(
                f"{path}, which holds the secret, is in {folder}, where everybody can replace it: "
                f"chmod o-w {folder}"
            )
        data = os.read(fd, _MAX_FILE_BYTES + 1)
    finally:
        os.close(fd)
    text = data.decode(errors="replace").strip()
    if not text or len(data) > _MAX_FILE_BYTES:
        raise SecretError(f"{path} should hold a secret and has {len(data)} bytes: {ADVICE}")
    return text


# Where systemd makes a folder for each user, which nobody else can write to.
_RUN = Path("/run/user")


def secret_of_this_user() -> str:
    """Returns a secret that this user's processes on this host share, made at the first call.

    It lies in a folder of mode 0700. The first place that can be used counts: the user's folder of
    the system, the folder for temporary files, the user's home.

    SecretError: no place can be used, and another user has made the folder in one. OSError: no
    place can be written.
    """
    troubles: list[OSError | SecretError] = []
    for place in _places():
        try:
            return _secret_in(place)
        except (OSError, SecretError) as error:
            troubles.append(error)
    raise next((each for each in troubles if isinstance(each, SecretError)), troubles[0])


def _places() -> Iterator[Path]:
    user = os.geteuid()
    own = _RUN / str(user)
    with contextlib.suppress(OSError):
        if own.stat().st_uid == user:
            yield own / "tfring"
    yield Path(tempfile.gettempdir()) / f"tfring-{user}"
    with contextlib.suppress(OSError, RuntimeError):  # this user may have no home
        cache = Path.home() / ".cache"
        cache.mkdir(mode=0o700, exist_ok=True)
        yield cache / "tfring"


def _secret_in(folder: Path) -> str:
    """Returns the secret in a folder, which is made if it is not there.

    SecretError: another user has made the folder or the file. OSError: it cannot be written.
    """
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
        raise SecretError(
            f"{folder} is not a folder that only user {os.geteuid()} can use: it belongs to user "
            f"{status.st_uid} and has mode {stat.S_IMODE(status.st_mode):o}. Remove it, or have "
            "its owner do so"
        )
    path = folder / "secret"
    if not path.exists():
        # First under another name, so that nobody reads half of it; the first link wins.
        own = folder / f"secret.{secrets.token_hex(8)}"
        with open(make_file(own), "w", encoding="ascii") as file:
            file.write(fresh_secret())
        with contextlib.suppress(FileExistsError):
            os.link(own, path)
        own.unlink()
    return read_secret_file(path)
