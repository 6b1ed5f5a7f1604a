"""Keras callbacks for training on several ranks: the same ones in the same order on each."""

from __future__ import annotations

from typing import Any

from tfring.keras.callbacks.batch_norm import BatchNormAverageCallback
from tfring.keras.callbacks.broadcast import BroadcastGlobalVariablesCallback
from tfring.keras.callbacks.checkpoint import BestModelCheckpoint
from tfring.keras.callbacks.checkpoints.callback import CheckpointCallback
from tfring.keras.callbacks.consistency import ConsistencyCheckCallback
from tfring.keras.callbacks.cursor import CursorCallback
from tfring.keras.callbacks.join import JoinCallback
from tfring.keras.callbacks.learning_rate import (
    LearningRateScheduleCallback,
    LearningRateWarmupCallback,
)
from tfring.keras.callbacks.metrics import MetricAverageCallback
from tfring.keras.callbacks.observing.communication import CommunicationMetricsCallback
from tfring.keras.callbacks.observing.stragglers import StragglerCallback
from tfring.runtime.public_names import missing

__all__ = [
    "BatchNormAverageCallback",
    "BestModelCheckpoint",
    "BroadcastGlobalVariablesCallback",
    "CheckpointCallback",
    "CommunicationMetricsCallback",
    "ConsistencyCheckCallback",
    "CursorCallback",
    "JoinCallback",
    "LearningRateScheduleCallback",
    "LearningRateWarmupCallback",
    "MetricAverageCallback",
    "StragglerCallback",
]


def __getattr__(name: str) -> Any:
    raise missing(__name__, name)
