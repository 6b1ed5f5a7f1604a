"""What is wrong with a record."""

from __future__ import annotations


class RecordError(ValueError):
    """A file is no record, or one of another version. The message names the file."""
