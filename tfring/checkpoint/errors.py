"""What goes wrong with checkpoints."""

from __future__ import annotations


class CheckpointError(RuntimeError):
    """A checkpoint could not be written or read; the base class of the others."""


class InvalidCheckpointError(CheckpointError):
    """A checkpoint is torn, changed or incomplete, so it must not be used."""


class FencedError(CheckpointError):
    """This process may not publish any more: a newer generation of the job has taken over."""


class CheckpointTimeoutError(CheckpointError):
    """The storage did not finish in the time that it was given."""
