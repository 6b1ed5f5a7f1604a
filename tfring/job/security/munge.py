"""munge, with which Slurm authenticates: it hands a secret to processes of the same user.

Rank 0 makes a secret and has munge wrap it into a credential that only this user's processes on
hosts of the cluster can open. The credential is of no use to other users, so rank 0 gives it to any
process that asks.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile

from tfring.job.security.errors import SecretError

_SECONDS = 10.0
# What unmunge returns for a credential that another rank of this host has opened before. That does
# no harm: this user made it for this user, and its sender has yet to prove that it knows the
# secret.
_REPLAYED = 17
LONGEST = 4096


def available() -> bool:
    """Whether munge's commands are installed."""
    return shutil.which("munge") is not None and shutil.which("unmunge") is not None


def credential(secret: str, job: str) -> bytes:
    """Returns a credential that only this user's processes can open, for the next hour.

    `job` names the job and is not secret: a kept credential of another job is useless.
    SecretError: munge does not work on this host.
    """
    made = _run(
        ["munge", f"--restrict-uid={os.geteuid()}", "--ttl=3600"], f"{secret} {job}".encode()
    )
    if made.returncode != 0 or not made.stdout.startswith(b"MUNGE:"):
        raise SecretError(f"munge made no credential for the job's secret: {_reason(made)}")
    return made.stdout.strip()


def secret_in(received: bytes, job: str) -> str:
    """Opens a credential; SecretError if it is none of this user for this job."""
    if not received.startswith(b"MUNGE:") or len(received) > LONGEST:
        raise SecretError("the process that listens as rank 0 sent no credential of munge")
    with tempfile.NamedTemporaryFile() as metadata:
        opened = _run(["unmunge", f"--metadata={metadata.name}", "--numeric"], received)
        described = metadata.read().decode(errors="replace")
    if opened.returncode not in (0, _REPLAYED):
        raise SecretError(f"the credential of rank 0 cannot be opened: {_reason(opened)}")
    made_by = _field(described, "UID")
    if made_by != str(os.geteuid()):
        raise SecretError(
            f"the process that listens as rank 0 belongs to user {made_by}, not to {os.geteuid()}"
        )
    secret, _, made_for = opened.stdout.decode(errors="replace").partition(" ")
    if made_for != job:
        raise SecretError("the process that listens as rank 0 sent a credential of another job")
    return secret


def _field(described: str, name: str) -> str:
    for line in described.splitlines():
        key, _, value = line.partition(":")
        if key == name:
            return value.strip()
    return ""


def _run(command: list[str], data: bytes) -> subprocess.CompletedProcess[bytes]:
    try:
        return subprocess.run(command, input=data, capture_output=True, timeout=_SECONDS)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SecretError(f"{command[0]} cannot be run: {error}") from None


def _reason(ended: subprocess.CompletedProcess[bytes]) -> str:
    return ended.stderr.decode(errors="replace").strip() or f"exit code {ended.returncode}"
