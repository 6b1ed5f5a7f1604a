"""A rank's rows as a tf.data.Dataset."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tfring.spark.data.parquet import Column, RankRows, shapes


def dataset(
    rows: RankRows,
    columns: Sequence[Column],
    arrange: Callable[[dict[str, Any]], Any],
    *,
    change: Callable[[Any], Any] | None = None,
) -> Any:
    """Returns the batches of a rank; each iteration is the next pass over the rows.

    Args:
        rows: the rows.
        columns: their columns.
        arrange: turns a batch, a dictionary of tensors by column, into the model's arguments.
        change: gets each batch as a pandas data frame and returns it, perhaps changed; None: no
            change.
    """
    import tensorflow as tf

    number = 0

    def batches() -> Any:
        nonlocal number
        current, number = number, number + 1
        for batch in rows.passes(current):
            yield batch if change is None else _changed(batch, columns, change)

    row_shapes = shapes(columns)
    signature = {
        one.name: tf.TensorSpec((None, *row_shapes[one.name]), tf.as_dtype(one.dtype))
        for one in columns
    }
    found = tf.data.Dataset.from_generator(batches, output_signature=signature)
    found = found.map(arrange).apply(tf.data.experimental.assert_cardinality(rows.batches))
    return found.prefetch(1)


def _changed(
    batch: dict[str, Any], columns: Sequence[Column], change: Callable[[Any], Any]
) -> dict[str, Any]:
    """Returns a batch after the user's function."""
    import numpy as np
    import pandas as pd

    values = {name: list(array) if array.ndim > 1 else array for name, array in batch.items()}
    frame = change(pd.DataFrame(values))
    found = {}
    rows = len(next(iter(batch.values())))
    if len(frame) != rows:
        raise ValueError(
            f"transformation_fn returned {len(frame)} rows for {rows}. Keep the number of rows, "
            "so that all ranks have the same number of batches"
        )
    for column in columns:
        array = np.stack(frame[column.name].to_list())
        if not np.can_cast(array.dtype, column.dtype, "same_kind"):
            raise TypeError(
                f"transformation_fn made {array.dtype} of column {column.name!r}, which holds "
                f"{column.dtype}. Keep the type, and cast the column of the data frame before the "
                "training, for example to float"
            )
        found[column.name] = array.astype(column.dtype)
    return found
