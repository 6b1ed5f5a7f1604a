"""What is wrong with a command line."""

from __future__ import annotations


class UsageError(ValueError):
    """The options of the command line or of tfring.run are impossible."""


class NoRanksError(UsageError):
    """Nothing says how many ranks to start."""
