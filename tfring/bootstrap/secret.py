"""The secret that the ranks of a job share, and the keys that are made from it."""

from __future__ import annotations

import hashlib
import hmac
import secrets

_MIN_LENGTH = 16


def fresh_secret() -> str:
    """Returns a new secret of 256 bits, as text that fits into an environment variable."""
    return secrets.token_hex(32)


def derived_secret(public_seed: str) -> str:
    """Returns a secret that all ranks can compute from their environment's variables.

    Other users of these machines can compute it as well: it prevents accidents, not attacks.
    """
    return hashlib.sha256(b"tfring public seed\0" + public_seed.encode()).hexdigest()


def job_key(secret: str, job_id: str) -> bytes:
    """Returns the key that the ranks of one job prove to know.

    Args:
        secret: The job's secret.
        job_id: Tells jobs apart that share a secret.

    Returns:
        32 bytes.

    Raises:
        ValueError: The secret is too short to be one.
    """
    if len(secret) < _MIN_LENGTH:
        raise ValueError(
            f"the job's secret (TFRING_SECRET) has {len(secret)} characters and needs at least "
            f'{_MIN_LENGTH}: python -c "import secrets; print(secrets.token_hex(32))" makes one'
        )
    return hmac.new(secret.encode(), b"tfring job\0" + job_id.encode(), hashlib.sha256).digest()
