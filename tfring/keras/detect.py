"""What belongs to Keras 2, the package tf_keras. Only the user's program imports it."""

from __future__ import annotations

import sys
from typing import Any


def is_optimizer(value: Any) -> bool:
    """Returns whether a value is an optimizer of Keras 2, a new or a legacy one."""
    package = sys.modules.get("tf_keras")
    if package is None:
        return False
    classes = (package.optimizers.Optimizer, package.optimizers.legacy.Optimizer)
    return isinstance(value, classes)


def is_legacy(optimizer: Any) -> bool:
    """Returns whether an optimizer of Keras 2 is one of tf.keras.optimizers.legacy."""
    return isinstance(optimizer, sys.modules["tf_keras"].optimizers.legacy.Optimizer)


def is_model(value: Any) -> bool:
    """Returns whether a value is a model of Keras 2."""
    package = sys.modules.get("tf_keras")
    return package is not None and isinstance(value, package.Model)


def is_batch_norm(value: Any) -> bool:
    """Returns whether a value is a BatchNormalization layer of Keras 2."""
    package = sys.modules.get("tf_keras")
    return package is not None and isinstance(value, package.layers.BatchNormalization)


def model_class() -> Any:
    """Returns tf_keras.Model, of a program that has imported it."""
    return sys.modules["tf_keras"].Model
