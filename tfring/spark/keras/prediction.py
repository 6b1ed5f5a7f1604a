"""Predicts in the tasks of Spark: a pandas function that loads a model once per process."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import numpy as np
import pandas as pd
from pyspark.sql import functions as F
from pyspark.sql import types as T

from tfring.spark.keras.saved import model_of
from tfring.spark.keras.shapes import Arrangement


class _Loaded:
    """The last model of this Spark process. Of its only thread."""

    key = b""
    model: ClassVar[Any] = None


class Prediction:
    """Predicts the rows of a task.

    Args:
        content: a broadcast of Spark with the model's bytes.
        arrange: makes the model's inputs from columns.
        custom_objects: the model's classes and functions, by name.
        batch_size: the number of rows to predict at once.
    """

    def __init__(
        self,
        content: Any,
        arrange: Arrangement,
        custom_objects: Mapping[str, Any] | None,
        batch_size: int,
    ) -> None:
        self._content = content
        self._arrange = arrange
        self._custom_objects = custom_objects
        self._batch_size = batch_size

    def of(self, schema: T.StructType) -> Any:
        """Returns a function of the feature columns, whose value is a struct.

        Args:
            schema: of the struct: the predictions of each output.
        """

        def predict(batches: Iterator[tuple[pd.Series, ...]]) -> Iterator[pd.DataFrame]:
            for columns in batches:
                several = columns if isinstance(columns, tuple) else (columns,)  # one feature
                yield self._predict(several, schema)

        return F.pandas_udf(predict, schema)

    def _predict(self, columns: tuple[pd.Series, ...], schema: T.StructType) -> pd.DataFrame:
        if not len(columns[0]):
            return pd.DataFrame({name: [] for name in schema.names})
        model, found = self._model(), []
        for start in range(0, len(columns[0]), self._batch_size):
            parts = [
                _array(name, one.iloc[start : start + self._batch_size])
                for name, one in zip(self._arrange.features, columns, strict=True)
            ]
            predicted = model(self._arrange.inputs(self._arrange.by_name(parts)), training=False)
            found.append([np.asarray(one) for one in self._arrange.outputs(predicted)])
        rows = {
            field.name: _values(np.concatenate([part[number] for part in found]), field.dataType)
            for number, field in enumerate(schema.fields)
        }
        return pd.DataFrame(rows)

    def _model(self) -> Any:
        content = self._content.value
        key = hashlib.sha256(content).digest()
        if _Loaded.key != key:
            _Loaded.model = model_of(content, self._custom_objects)
            _Loaded.key = key
        return _Loaded.model


def _array(name: str, values: pd.Series) -> np.ndarray[Any, Any]:
    """Returns a column as an array; lists become its second dimension."""
    if values.dtype == object:
        if values.isna().any():
            raise ValueError(
                f"column {name!r} contains nulls, which the model cannot predict from. Drop or "
                "fill those rows"
            )
        return np.stack(values.to_list())
    return np.asarray(values.to_numpy())


def _values(output: np.ndarray[Any, Any], kind: T.DataType) -> Any:
    if isinstance(kind, T.ArrayType):
        return list(output.reshape(len(output), -1).astype(np.float64))
    flat = output.reshape(-1)
    if isinstance(kind, T.LongType):  # NaN has no integer value
        known = np.where(np.isfinite(flat), np.rint(flat), np.nan).astype(np.float64)
        return pd.array(known).astype("Int64")
    return flat.astype(np.float64)
