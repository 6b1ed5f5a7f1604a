"""Columns as the inputs and labels of a model, without a cluster of Spark."""

import keras
import numpy as np
import pandas as pd
import pytest

from tfring.spark.data.datasets import dataset
from tfring.spark.data.parquet import Column
from tfring.spark.keras import training
from tfring.spark.keras.saved import model_bytes, model_of
from tfring.spark.keras.shapes import Arrangement, outputs_of


def _model():
    """Dictionaries whose keys are not in the order of the alphabet, of other shapes and types."""
    price, item = keras.Input((1,), name="price"), keras.Input((2,), dtype="int32", name="item")
    embedded = keras.layers.Flatten()(keras.layers.Embedding(9, 1)(item))
    outputs = {
        "sum": keras.layers.Add()([price, price]),
        "both": keras.layers.Concatenate()([price, embedded]),
    }
    return keras.Model({"price": price, "item": item}, outputs)


@pytest.mark.parametrize("sent", [False, True])
def test_dictionaries_are_in_the_order_of_the_user(sent):
    model = _model()
    model = model_of(model_bytes(model), None) if sent else model
    arrange = Arrangement.of(model, ["euros", "ids"], ["doubled", "all"], weight="weight")
    columns = [Column("euros", "float64", None), Column("ids", "int64", 2)]
    arrange.check({column.name: column for column in columns})
    batch = {
        "euros": np.array([0.99, 2.5]),
        "ids": np.array([[1, 2], [3, 4]]),
        "doubled": np.array([1.98, 5.0]),
        "all": np.zeros((2, 3)),
        "weight": np.ones(2),
    }
    inputs, labels, weights = arrange(batch)
    assert {name: (value.dtype.name, value.shape[1]) for name, value in inputs.items()} == {
        "price": ("float32", 1),
        "item": ("int32", 2),
    }
    assert list(labels) == list(weights) == ["sum", "both"]
    np.testing.assert_allclose(labels["sum"], batch["doubled"])
    doubled, both = arrange.outputs(model(inputs))
    np.testing.assert_allclose(doubled, [[1.98], [5.0]])
    assert both.shape == (2, 3)
    assert [one.shape[1] for one in outputs_of(model)] == [1, 3]


class _Rows:
    """One batch of two rows."""

    batches = 1

    def passes(self, number):
        yield {"pixels": np.array([[0, 128], [255, 64]], "int32"), "x": np.array([1.0, 2.0])}


def _changed(change):
    columns = [Column("pixels", "int32", 2), Column("x", "float64", None)]
    (batch,) = dataset(_Rows(), columns, lambda batch: batch, change=change)
    return batch


def test_a_transformation_keeps_the_types():
    def doubled(frame):
        return pd.DataFrame({"pixels": [v * 2 for v in frame["pixels"]], "x": frame["x"] * 2})

    batch = _changed(doubled)
    np.testing.assert_array_equal(batch["pixels"], [[0, 256], [510, 128]])
    assert batch["pixels"].dtype.name == "int32"

    def scaled(frame):
        return frame.assign(pixels=[v / 255 for v in frame["pixels"]])

    with pytest.raises(Exception, match="made float64 of column 'pixels', which holds int32"):
        _changed(scaled)
    with pytest.raises(Exception, match="returned 0 rows for 2"):
        _changed(lambda frame: frame[:0])


def test_the_learning_rate_of_several_ranks(monkeypatch):
    """It is multiplied by their number, also for callbacks that set it; a schedule stays."""
    monkeypatch.setattr(training.hvd, "size", lambda: 4)
    inner = keras.optimizers.SGD(0.5)
    callback = training.hvd.callbacks.LearningRateWarmupCallback(0.5)
    training._scale_rate(inner, [callback])
    training._scale_rate(scaled := keras.optimizers.LossScaleOptimizer(inner), None)
    assert (callback.initial_lr, float(inner.learning_rate)) == (2, 8)
    assert float(scaled.learning_rate) == 8
    schedule = keras.optimizers.schedules.ExponentialDecay(0.5, 10, 0.9)
    training._scale_rate(decaying := keras.optimizers.SGD(schedule), [callback])
    assert (callback.initial_lr, float(decaying.learning_rate)) == (2, 0.5)
