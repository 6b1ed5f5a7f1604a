"""Keeps iterators of tf.data from waiting for their autotuner when they end.

An iterator's autotuner sleeps for up to a minute at a time. An iterator that ends wakes it,
and is marked as ended only afterwards (TensorFlow 2.21, CancellationManager::StartCancel). So the
autotuner sometimes sleeps on. Each `fit` drops an iterator, and then waits for it.
"""

from __future__ import annotations

from typing import Any

import pytest


@pytest.fixture(autouse=True, scope="session")
def without_autotuner() -> None:
    """Switches the autotuner off unless a test sets its own options for it."""
    import tensorflow as tf
    from tensorflow.python.data.ops import dataset_ops

    options = tf.data.Options()
    options.autotune.enabled = False
    kind, original = dataset_ops.DatasetV2, dataset_ops.DatasetV2._apply_debug_options

    def apply_debug_options(self: Any) -> Any:
        changed = original(self)
        if changed.options().autotune.enabled is None:
            return changed.with_options(options)
        return changed

    kind._apply_debug_options = apply_debug_options
