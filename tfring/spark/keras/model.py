"""KerasModel: an estimator's trained model, as a transformer of Spark ML."""

from __future__ import annotations

from typing import Any

from pyspark.ml import Model
from pyspark.ml.functions import array_to_vector
from pyspark.sql import functions as F
from pyspark.sql import types as T

from tfring.spark.data.frames import as_numbers, is_vector
from tfring.spark.keras.params import MODEL, set_defaults, set_params, with_params
from tfring.spark.keras.prediction import Prediction
from tfring.spark.keras.saved import model_bytes, model_of
from tfring.spark.keras.shapes import Arrangement, outputs_of

_PREDICTED = "__tfring_predicted"


@with_params(MODEL)
class KerasModel(Model):  # type: ignore[misc]
    """Adds the predictions of a Keras model to the rows of a data frame.

    `transform(data_frame)` adds a column for each label, `LABEL__output`, with the type of the
    label's column: a vector, a list, or a number if the model has one per row. Integers are
    rounded. The result is a list if the model has several numbers per row and the label's column is
    a number or missing.

    Args:
        **params: parameters, each with a setter and a getter; tfring/spark/keras/params.py and
            `tfring help spark` list them.
    """

    def __init__(self, **params: Any) -> None:
        super().__init__()
        set_defaults(self, MODEL)
        self.setParams(**params)

    def setParams(self, **params: Any) -> Any:
        """Sets parameters; returns this object.

        Args:
            **params: as in the constructor.
        """
        return set_params(self, MODEL, params)

    def getModel(self) -> Any:
        """Returns the Keras model."""
        model = self.getOrDefault("model")
        if isinstance(model, bytes):
            return model_of(model, self.getOrDefault("custom_objects"))
        return model

    def _transform(self, dataset: Any) -> Any:
        """Spark ML's `transform` calls it."""
        model = self.getModel()
        features = self.getOrDefault("feature_columns")
        labels = self.getOrDefault("label_columns")
        arrange = Arrangement.of(model, features, labels)
        given = self.getOrDefault("model")
        content = given if isinstance(given, bytes) else model_bytes(model)
        kinds = [
            _kind(dataset, label, out) for label, out in zip(labels, outputs_of(model), strict=True)
        ]
        schema = T.StructType(
            [T.StructField(f"out{number}", kind) for number, kind in enumerate(kinds)]
        )
        shared = dataset.sparkSession.sparkContext.broadcast(content)
        prediction = Prediction(
            shared, arrange, self.getOrDefault("custom_objects"), self.getOrDefault("batch_size")
        )
        columns = [as_numbers(dataset, name) for name in features]
        found = dataset.withColumn(_PREDICTED, prediction.of(schema)(*columns))
        names = self.getOrDefault("output_cols") or [f"{label}__output" for label in labels]
        for number, (label, name) in enumerate(zip(labels, names, strict=True)):
            value = F.col(f"{_PREDICTED}.out{number}")
            if label in dataset.columns and is_vector(dataset.schema[label].dataType):
                value = array_to_vector(value)
            found = found.withColumn(name, value)
        return found.drop(_PREDICTED)


def _kind(dataset: Any, label: str, output: Any) -> T.DataType:
    """Returns the type of the predictions of an output; vectors are converted later."""
    several = T.ArrayType(T.DoubleType())
    kind = dataset.schema[label].dataType if label in dataset.columns else None
    single = list(output.shape[1:]) in ([], [1])
    if kind is None:
        return T.DoubleType() if single else several
    if is_vector(kind) or isinstance(kind, T.ArrayType) or not single:
        return several
    return T.LongType() if isinstance(kind, T.IntegralType) else T.DoubleType()
