"""Programs of reports to tf.distribute and Keras, here as they should have gone.

docs/bug_reports.md lists them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras_cases import (
    assert_same_weights,
    build_model,
    compiled,
    fit,
    loss,
    my_data,
    train_alone,
    train_together,
    whole_data,
)
from tiers import cases

import tfring.keras as hvd


class Steps(keras.optimizers.schedules.LearningRateSchedule):  # type: ignore[misc]
    """A schedule that has no get_config."""

    def __init__(self, rate: float, after: int) -> None:
        self.rate, self.after = rate, after

    def __call__(self, step: Any) -> Any:
        return tf.where(step < self.after, self.rate, self.rate / 10)


SCHEDULES = {
    "exponential": keras.optimizers.schedules.ExponentialDecay(0.1, 2, 0.5),
    "cosine": keras.optimizers.schedules.CosineDecay(0.1, 5),
    "own": Steps(0.1, 2),
}


@pytest.mark.parametrize("name", cases(SCHEDULES, quick=["own"]))
def test_19504_learning_rate_schedules(name: str) -> None:
    def optimizer() -> Any:
        return keras.optimizers.SGD(SCHEDULES[name], momentum=0.5)

    assert_same_weights(train_together(optimizer(), 5, 1), train_alone(optimizer(), 5, 1))


def test_62065_predictions_of_unequal_parts_in_the_order_of_the_data() -> None:
    x, _ = whole_data(3)
    cuts = [
        len(x) * rank * (rank + 1) // (hvd.size() * (hvd.size() + 1))
        for rank in range(hvd.size() + 1)
    ]
    mine = x[cuts[hvd.rank()] : cuts[hvd.rank() + 1]]
    model = build_model(1)
    together = hvd.allgather(model.predict(mine, batch_size=4, verbose=0))
    np.testing.assert_allclose(together, model.predict(x, verbose=0), atol=1e-6)


class Batches(keras.utils.PyDataset):  # type: ignore[misc]
    def __init__(self, x: Any, y: Any) -> None:
        super().__init__()
        self.x, self.y = x, y

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> Any:
        half = slice(index * len(self.x) // 2, (index + 1) * len(self.x) // 2)
        return self.x[half], self.y[half]


def _generator(x: Any, y: Any) -> Iterator[Any]:
    while True:
        yield x, y


FORMS: dict[str, Any] = {
    "arrays": lambda x, y: {"validation_data": (x, y)},
    "dataset": lambda x, y: {
        "validation_data": tf.data.Dataset.from_tensor_slices((x, y)).batch(4)
    },
    "PyDataset": lambda x, y: {"validation_data": Batches(x, y)},
    "generator": lambda x, y: {"validation_data": _generator(x, y), "validation_steps": 1},
}


@pytest.mark.parametrize("form", cases(FORMS, quick=["generator"]))
def test_28797_validation_data_of_every_form(form: str) -> None:
    model = compiled(keras.optimizers.SGD(0.1), metrics=["accuracy"])
    given = FORMS[form](*my_data(2))
    history = fit(model, *hvd.fit_callbacks(), **given).history
    x, y = whole_data(2)
    alone = build_model(1)
    alone.set_weights(model.get_weights())
    alone.compile(loss=loss(), metrics=["accuracy"])
    expected = alone.evaluate(x, y, verbose=0)
    assert [history["val_loss"][0], history["val_accuracy"][0]] == pytest.approx(expected, abs=1e-5)


def test_28797_validation_data_on_rank_0_only(several: int) -> None:
    model = compiled(keras.optimizers.SGD(0.1))
    given = {"validation_data": my_data(1)} if hvd.rank() == 0 else {}
    with pytest.raises(RuntimeError, match="validation data"):
        fit(model, *hvd.fit_callbacks(), **given)
