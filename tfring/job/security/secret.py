"""The secret that the ranks of a job share, and the keys that are made from it."""

from __future__ import annotations

import functools
import hashlib
import hmac
import re
import secrets

from tfring.job.security.errors import SecretError

_MIN_LENGTH = 16
# What needs no stretching: 32 hexadecimal digits have 128 bits. Anything else may be a person's own
# words, however long it is.
_RANDOM = re.compile(r"[0-9A-Fa-f]{32,}")
_SCRYPT = {"n": 1 << 15, "r": 8, "p": 1, "maxmem": 64 << 20, "dklen": 32}

ADVICE = 'python -c "import secrets; print(secrets.token_hex(32))" makes one'


def fresh_secret() -> str:
    """Returns a new secret of 256 bits, as text that fits into an environment variable."""
    return secrets.token_hex(32)


def derived_secret(public_seed: str) -> str:
    """Returns a secret that all ranks can compute from their environment's variables.

    Other users of these machines can compute it as well: it prevents accidents, not attacks.
    """
    return hashlib.sha256(b"tfring public seed\0" + public_seed.encode()).hexdigest()


def job_key(secret: str, job_id: str) -> bytes:
    """Returns the key that the ranks of one job prove to know: 32 bytes.

    Somebody who records a handshake can try secrets at leisure. A secret that may be a person's own
    words goes through scrypt first: each try then takes 0.1 s and 32 MiB. `job_id` tells jobs apart
    that share a secret. SecretError: the secret is too short.
    """
    return expand(_stretched(secret), b"job\0" + job_id.encode())


@functools.lru_cache(maxsize=8)
def _stretched(secret: str) -> bytes:
    if len(secret) < _MIN_LENGTH:
        raise SecretError(
            f"the job's secret (TFRING_SECRET) has {len(secret)} characters and needs at least "
            f"{_MIN_LENGTH}: {ADVICE}"
        )
    if _RANDOM.fullmatch(secret):
        return hashlib.sha256(b"tfring secret\0" + secret.encode()).digest()
    return hashlib.scrypt(secret.encode(), salt=b"tfring secret", **_SCRYPT)


def expand(key: bytes, purpose: bytes) -> bytes:
    """Returns a key of 32 bytes for one purpose: HKDF-Expand of RFC 5869, SHA-256, one block."""
    return hmac.new(key, b"tfring " + purpose + b"\x01", hashlib.sha256).digest()
