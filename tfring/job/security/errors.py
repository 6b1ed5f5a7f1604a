"""Errors of secrets and of MACs."""

from __future__ import annotations


class SecretError(RuntimeError):
    """The job has no secret, or one that it cannot use."""


class IntegrityError(RuntimeError):
    """Another process than the expected rank sent a message, or it was changed on its way."""
