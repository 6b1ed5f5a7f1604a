"""rank and size for Horovod scripts, also before they are known.

A process that joins an elastic job is alone, rank 0 of 1, until `elastic.run` accepts it. Horovod
scripts use the rank before that: `if hvd.rank() == 0`, and then a callback that writes checkpoints.
Two processes would write them. So under Horovod's names this process has its likely rank, which the
launcher has told it.
"""

from __future__ import annotations

import os

import tfring
from tfring.integration import waiting


def rank() -> int:
    """As `tfring.rank`; before the process is accepted, its likely rank."""
    return _likely("HOROVOD_RANK") if waiting() else tfring.rank()


def size() -> int:
    """As `tfring.size`; before the process is accepted, its likely size."""
    return max(_likely("HOROVOD_SIZE"), rank() + 1) if waiting() else tfring.size()


def _likely(name: str) -> int:
    """Returns the number from the launcher; 0 if there is none."""
    told = os.environ.get(name, "")
    return int(told) if told.isdigit() else 0
