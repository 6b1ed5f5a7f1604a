"""Columns as the inputs, labels and weights of a model."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from tfring.spark.data.parquet import Column

Dims = tuple[int | None, ...]


class Arrangement:
    """Turns a batch, a dictionary of tensors by column, into the arguments of `fit`.

    A column gets the shape of the input at its position. For a model with one input, several
    columns of one number each lie side by side. Keras knows all of these shapes.

    Attributes:
        features: the columns for the inputs.

    Args:
        inputs: shape and dtype of each input of the model, without the rows.
        input_names: the keys of the inputs, if they are a dictionary.
        output_names: the keys of the outputs, if they are a dictionary.
        features: the inputs' columns.
        labels: the outputs' columns.
        label_shapes: the shape of each label, the first number for the rows; None: unchanged.
        weight: the column with weights.
    """

    def __init__(
        self,
        inputs: Sequence[tuple[Dims, str]],
        input_names: Sequence[str] | None,
        output_names: Sequence[str] | None,
        features: Sequence[str],
        labels: Sequence[str],
        label_shapes: Sequence[Sequence[int]] | None = None,
        weight: str | None = None,
    ) -> None:
        self._inputs = list(inputs)
        self._input_names = input_names
        self._output_names = output_names
        self.features = list(features)
        self._labels = list(labels)
        self._label_shapes = label_shapes
        self._weight = weight
        if len(features) != len(inputs) and len(inputs) != 1:
            raise ValueError(
                f"feature_cols={list(features)}, but the model has {len(inputs)} inputs. Give one "
                "column for each, in their order"
            )

    @classmethod
    def of(
        cls,
        model: Any,
        features: Sequence[str],
        labels: Sequence[str],
        label_shapes: Sequence[Sequence[int]] | None = None,
        weight: str | None = None,
    ) -> Arrangement:
        """Returns the arrangement for a Keras model.

        Args:
            model: the model.
            features: as above.
            labels: as above.
            label_shapes: as above.
            weight: as above.

        Raises:
            ValueError: the model is not built, or has a different number of inputs or outputs.
        """
        if not getattr(model, "inputs", None):
            raise ValueError("the model has no inputs yet. Begin it with keras.Input(shape)")
        if len(labels) != len(model.outputs):
            raise ValueError(
                f"label_cols={list(labels)}, but the model has {len(model.outputs)} outputs. Give "
                "one column for each, in their order"
            )
        tensors, input_names = _in_order(model.inputs, getattr(model, "_inputs_struct", None))
        inputs = [(tuple(one.shape[1:]), str(one.dtype)) for one in tensors]
        output_names = _in_order(model.outputs, getattr(model, "_outputs_struct", None))[1]
        return cls(inputs, input_names, output_names, features, labels, label_shapes, weight)

    def check(self, columns: Mapping[str, Column]) -> None:
        """Compares the columns with the model's inputs.

        Args:
            columns: by name; includes the features.

        Raises:
            ValueError: a row has more or fewer numbers than an input.
        """
        lengths = [columns[name].length for name in self.features]
        sizes = [1 if length is None else length for length in lengths]
        groups = [[name] for name in self.features]
        if len(sizes) != len(self._inputs):
            sizes, groups = [sum(sizes)], [self.features]
        for number, (size, names) in enumerate(zip(sizes, groups, strict=True)):
            dims = self._inputs[number][0]
            if any(dim is None for dim in dims):
                continue
            wanted = math.prod(dim for dim in dims if dim is not None)
            if size != wanted:
                raise ValueError(
                    f"feature_cols={names} have {size} numbers per row, but input {number} of the "
                    f"model, of shape {dims}, takes {wanted}. Change the columns or the model"
                )

    def __call__(self, batch: dict[str, Any]) -> Any:
        """Returns inputs, labels and, if there are any, weights.

        Args:
            batch: The tensors.
        """
        inputs = self.inputs(batch)
        labels = [self._label(number, batch[name]) for number, name in enumerate(self._labels)]
        if self._weight is None:
            return inputs, _structure(labels, self._output_names)
        weights = [batch[self._weight]] * len(labels)
        return inputs, *(_structure(one, self._output_names) for one in (labels, weights))

    def by_name(self, values: Sequence[Any]) -> dict[str, Any]:
        """Returns the values of the features, in their order, as a batch."""
        return dict(zip(self.features, values, strict=True))

    def inputs(self, batch: dict[str, Any]) -> Any:
        """Returns the model's inputs: a tensor, a tuple of them, or a dictionary."""
        import tensorflow as tf

        values = [tf.convert_to_tensor(batch[name]) for name in self.features]
        if len(values) != len(self._inputs):
            kind = self._inputs[0][1]
            flat = [tf.reshape(tf.cast(v, kind), (tf.shape(v)[0], -1)) for v in values]
            values = [tf.concat(flat, axis=1)]
        shaped = [
            _shaped(tf.cast(value, kind), dims)
            for value, (dims, kind) in zip(values, self._inputs, strict=True)
        ]
        return _structure(shaped, self._input_names)

    def outputs(self, predicted: Any) -> list[Any]:
        """Returns the model's predictions in the order of the labels."""
        if self._output_names is not None:
            return [predicted[name] for name in self._output_names]
        return list(predicted) if isinstance(predicted, (list, tuple)) else [predicted]

    def _label(self, number: int, value: Any) -> Any:
        import tensorflow as tf

        if value.dtype == tf.float64:
            value = tf.cast(value, tf.float32)
        if self._label_shapes is not None:
            value = tf.reshape(value, self._label_shapes[number])
        return value


def outputs_of(model: Any) -> list[Any]:
    """Returns the outputs of a Keras model, without values, in the order of the labels."""
    return _in_order(model.outputs, getattr(model, "_outputs_struct", None))[0]


def _in_order(tensors: list[Any], structure: Any) -> tuple[list[Any], list[str] | None]:
    """Returns inputs or outputs in the order of the columns, and their keys in a dictionary.

    `model.inputs` and `model.outputs` have them in the order of sorted keys. Users name columns in
    the order of the dictionary that they wrote.

    Args:
        tensors: all of them.
        structure: as the model takes or returns them; None: the model is not functional.
    """
    if not isinstance(structure, dict):
        return tensors, None
    return list(structure.values()), list(structure)


def _structure(values: Sequence[Any], names: Sequence[str] | None) -> Any:
    """Returns values as Keras takes them: a dictionary, a tuple, or a single value."""
    if names is not None:
        return dict(zip(names, values, strict=True))
    return tuple(values) if len(values) > 1 else values[0]


def _shaped(value: Any, dims: Dims) -> Any:
    """Returns a tensor with the shape of an input; ragged lengths stay."""
    import tensorflow as tf

    known: list[int] = [dim for dim in dims if dim is not None]
    if len(known) < len(dims) or (len(value.shape) == 1 + len(dims) and value.shape[1:] == dims):
        return value
    return tf.ensure_shape(tf.reshape(value, (tf.shape(value)[0], *known)), (None, *known))
