"""A checkpoint keeps the state of metrics within an epoch, in any dtype."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

pytest.importorskip("tensorflow")

import keras

from tfring.keras.callbacks.checkpoints.rank_state import EpochMetrics


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_metrics_get_their_values_back(dtype: str) -> None:
    metric = keras.metrics.Mean(dtype=dtype)
    model = SimpleNamespace(metrics=[metric])
    metric.update_state([1.0, 4.0])
    saved = json.loads(json.dumps(EpochMetrics.of(model).as_json()))
    metric.reset_state()
    assert EpochMetrics.of_json(saved).give_back(model)
    assert float(metric.result()) == 2.5
