"""EpochMetrics: a model's metrics, of an epoch that training resumes within."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

import numpy as np

from tfring.checkpoint.arrays import dtype_name
from tfring.keras import metric_states


class EpochMetrics:
    """The states of a rank's metrics after some batches of an epoch.

    Keras sets them to zero when the epoch begins, and makes most of them in the first step that a
    process trains. So they are restored before that step if they exist, and else added to what the
    metrics hold after it.
    """

    def __init__(self, values: Sequence[Any]) -> None:
        self._values = list(values)

    @classmethod
    def of(cls, model: Any) -> EpochMetrics:
        """Returns the present states of a model's metrics."""
        return cls([variable.numpy() for variable in _variables(model)])

    def as_json(self) -> list[Any]:
        """Returns them as JSON for a checkpoint."""
        return [
            [dtype_name(value), list(value.shape), base64.b64encode(value.tobytes()).decode()]
            for value in map(np.asarray, self._values)
        ]

    @classmethod
    def of_json(cls, saved: Sequence[Any]) -> EpochMetrics:
        """Returns the object whose `as_json` was saved."""
        return cls(
            [
                np.frombuffer(base64.b64decode(data), np.dtype(dtype)).reshape(shape)
                for dtype, shape, data in saved
            ]
        )

    def give_back(self, model: Any) -> bool:
        """Restores the metrics; returns whether the model has these metrics."""
        variables = _variables(model)
        if not self._fits(variables):
            return False
        for variable, value in zip(variables, self._values, strict=True):
            variable.assign(value)
        return True

    def add_to(self, model: Any) -> bool:
        """Adds them to the metrics after the first step, but for metrics that do not add up."""
        variables = _variables(model)
        if not self._fits(variables):
            return False
        adds = {id(v) for v in metric_states.states_of(model).variables}
        for variable, value in zip(variables, self._values, strict=True):
            if id(variable) in adds:
                variable.assign(variable.numpy() + value)
        return True

    def _fits(self, variables: Sequence[Any]) -> bool:
        shapes = [tuple(variable.shape) for variable in variables]
        return shapes == [np.shape(value) for value in self._values]


def _variables(model: Any) -> list[Any]:
    return [variable for metric in model.metrics for variable in metric.variables]
