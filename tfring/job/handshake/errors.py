"""Errors while a job starts."""

from __future__ import annotations


class BootstrapError(RuntimeError):
    """The job could not start. The message names the ranks that are missing or failed."""


class UnreachableError(BootstrapError):
    """A rank (`rank`) could not be reached, or did not connect, in time."""

    def __init__(self, message: str, *, rank: int) -> None:
        super().__init__(message)
        self.rank = rank


class AuthError(BootstrapError):
    """The other end does not know this job's secret, or is not the rank that we connected to."""


class NotAdmittedError(BootstrapError):
    """The other end knows the secret and does not wait for this rank, or not yet (`later`)."""

    def __init__(self, message: str, *, later: bool) -> None:
        super().__init__(message)
        self.later = later
