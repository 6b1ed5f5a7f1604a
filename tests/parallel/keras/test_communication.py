"""CommunicationMetricsCallback: what steps spent in communication, in logs and event files."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import keras
import pytest
from keras_cases import compiled, fit, written

import tfring.keras as hvd
from tfring.keras import callbacks
from tfring.keras.callbacks.observing.communication import NAMES
from tfring.observe.recorder import own
from tfring.training import first_steps, weights


def gradient_bytes(model: Any) -> float:
    """With Keras 3 the weight of the rank travels with the gradients."""
    more = [weights.WIRE] if isinstance(model, keras.Model) else []
    sent = [*model.trainable_variables, *more, first_steps.WIRE]
    return float(sum(4 * math.prod(v.shape) for v in sent))


def check(history: dict[str, list[float]], model: Any, epochs: int) -> None:
    """Holds for the values of every epoch, and of all ranks or their mean."""
    assert all(len(history[name]) == epochs for name in NAMES)
    for epoch in range(epochs):
        values = {name: history[name][epoch] for name in NAMES}
        assert values["comm_bytes"] == gradient_bytes(model)
        assert 0 < values["comm_seconds"] < 60
        assert 0 <= values["comm_waiting_seconds"] <= values["comm_exposed_seconds"] < 60
        assert values["comm_tensors_per_plan"] >= 1


def test_logs_and_event_files_have_every_epoch(tmp_path: Path) -> None:
    model = compiled(keras.optimizers.SGD(0.1))
    communication = callbacks.CommunicationMetricsCallback(log_dir=tmp_path)
    history = fit(model, communication, epochs=2).history
    check(history, model, 2)
    files = written(tmp_path / f"rank-{hvd.rank()}")
    assert set(files) == set(NAMES)
    for name in NAMES:
        assert files[name] == pytest.approx(dict(enumerate(history[name])), rel=1e-5)
    # A second fit with the same callback, and the means over the ranks.
    mean = callbacks.MetricAverageCallback()
    check(fit(model, communication, mean, epochs=1).history, model, 1)


@pytest.mark.usefixtures("eager_functions")
def test_event_files_after_some_batches(tmp_path: Path) -> None:
    model = compiled(keras.optimizers.SGD(0.1))
    communication = callbacks.CommunicationMetricsCallback(tmp_path, update_freq=2)
    history = fit(model, communication, steps=3, epochs=2).history
    check(history, model, 2)
    files = written(tmp_path / f"rank-{hvd.rank()}")
    assert {step: files["comm_bytes"][step] for step in (2, 4, 6)} == files["comm_bytes"]
    assert set(files["comm_bytes"].values()) == {gradient_bytes(model)}
    with pytest.raises(ValueError, match="update_freq"):
        callbacks.CommunicationMetricsCallback(update_freq=0)


@pytest.mark.usefixtures("eager_functions")
def test_a_folder_that_cannot_be_written_does_not_end_training(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    model = compiled(keras.optimizers.SGD(0.1))
    communication = callbacks.CommunicationMetricsCallback(log_dir=tmp_path / "file", update_freq=1)
    check(fit(model, communication, epochs=2).history, model, 2)
    assert caplog.text.count("writes no event files any more") == 1


@pytest.mark.usefixtures("eager_functions")
def test_without_a_record_values_are_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own, "_own", None)
    model = compiled(keras.optimizers.SGD(0.1))
    history = fit(model, callbacks.CommunicationMetricsCallback()).history
    assert all(math.isnan(history[name][0]) for name in NAMES)
