"""What is wrong with a secret or with a message."""

from __future__ import annotations


class SecretError(RuntimeError):
    """The job has no secret that it could be started with, or one that is none."""


class IntegrityError(RuntimeError):
    """A message was not sent by the rank that it should come from, or was changed on its way."""
