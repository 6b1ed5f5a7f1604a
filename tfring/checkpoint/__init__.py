"""Checkpoints: state of training in a folder or an object store, whole or not at all.

Needs neither TensorFlow nor `init`. For Keras see tfring.keras.callbacks.CheckpointCallback,
tfring.keras.save_checkpoint and tfring.keras.restore_checkpoint, and for the rest
`tfring help checkpoints`.
"""

from tfring.checkpoint.checkpointer import Checkpointer
from tfring.checkpoint.errors import (
    CheckpointError,
    CheckpointTimeoutError,
    FencedError,
    InvalidCheckpointError,
)
from tfring.checkpoint.files import Checkpoint
from tfring.checkpoint.manifest import CheckpointInfo

__all__ = [
    "Checkpoint",
    "CheckpointError",
    "CheckpointInfo",
    "CheckpointTimeoutError",
    "Checkpointer",
    "FencedError",
    "InvalidCheckpointError",
]
