"""What can go wrong while a job starts."""

from __future__ import annotations


class BootstrapError(RuntimeError):
    """The ranks could not be brought together. The message names the ranks that are missing."""


class AuthError(BootstrapError):
    """The other end does not know this job's secret, or is not who we wanted to reach."""
