"""Processes started by ``tfring run``."""

from __future__ import annotations

from collections.abc import Mapping

from tfring.environments.identity import (
    Identity,
    Meeting,
    check_rank,
    read_int,
    read_optional_int,
    require_all,
)

_SOURCE = "tfring run"
_NAMES = ("TFRING_RANK", "TFRING_SIZE", "TFRING_RENDEZVOUS_ADDR", "TFRING_RENDEZVOUS_PORT")


def detect(environ: Mapping[str, str]) -> Identity | None:
    """The identity that the launcher gave us, or None if it did not start this process."""
    if not environ.get("TFRING_RANK") and not environ.get("TFRING_SIZE"):
        return None
    require_all(environ, (*_NAMES, "TFRING_SECRET"), _SOURCE)
    rank = read_int(environ, "TFRING_RANK")
    size = read_int(environ, "TFRING_SIZE", low=1)
    check_rank(_SOURCE, rank, size)
    return Identity(
        source=_SOURCE,
        rank=rank,
        size=size,
        meeting=Meeting.RENDEZVOUS if size > 1 else Meeting.ALONE,
        local_rank=read_optional_int(environ, "TFRING_LOCAL_RANK"),
        local_size=read_optional_int(environ, "TFRING_LOCAL_SIZE", low=1),
        address=environ["TFRING_RENDEZVOUS_ADDR"],
        port=read_int(environ, "TFRING_RENDEZVOUS_PORT", low=1),
        job_id=environ.get("TFRING_JOB_ID", ""),
    )
