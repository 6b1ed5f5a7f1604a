"""Processes started by ``tfring run``."""

from __future__ import annotations

from collections.abc import Mapping

from tfring.job.environments.identity import (
    Identity,
    Rendezvous,
    read_int,
    read_optional_int,
    read_rank_and_size,
)

_SOURCE = "tfring run"
_NAMES = ("TFRING_X_RANK", "TFRING_X_SIZE", "TFRING_RENDEZVOUS_ADDR", "TFRING_RENDEZVOUS_PORT")


def detect(environ: Mapping[str, str]) -> Identity | None:
    """Returns the identity that ``tfring run`` set, or None if it did not start this process."""
    if not environ.get("TFRING_X_RANK") and not environ.get("TFRING_X_SIZE"):
        return None
    rank, size = read_rank_and_size(environ, _SOURCE, _NAMES)
    return Identity(
        source=_SOURCE,
        rank=rank,
        size=size,
        rendezvous=Rendezvous.TCP if size > 1 else Rendezvous.NONE,
        local_rank=read_optional_int(environ, "TFRING_X_LOCAL_RANK"),
        local_size=read_optional_int(environ, "TFRING_X_LOCAL_SIZE", low=1),
        address=environ["TFRING_RENDEZVOUS_ADDR"],
        port=read_int(environ, "TFRING_RENDEZVOUS_PORT", low=1),
        fixed_port=True,
        job_id=environ.get("TFRING_JOB_ID", ""),
    )
