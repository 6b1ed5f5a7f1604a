"""rank and size as Horovod's scripts ask for them, also before they are known.

A process that is added to an elastic job is alone, rank 0 of 1, until `elastic.run` takes it in.
Horovod's scripts decide before that what only rank 0 does: `if hvd.rank() == 0` and then a callback
that writes checkpoints. Two processes would write them. Under Horovod's names such a process
therefore is the rank that it is likely to become, which the launcher has told it.
"""

from __future__ import annotations

import os

import tfring
from tfring.integration import waiting


def rank() -> int:
    """As `tfring.rank`; of a process that has not been taken in yet: the rank that is likely."""
    return _likely("HOROVOD_RANK") if waiting() else tfring.rank()


def size() -> int:
    """As `tfring.size`; of a process that has not been taken in yet: the size that is likely."""
    return max(_likely("HOROVOD_SIZE"), rank() + 1) if waiting() else tfring.size()


def _likely(name: str) -> int:
    """The number that the launcher has told; 0 if there is none."""
    told = os.environ.get(name, "")
    return int(told) if told.isdigit() else 0
