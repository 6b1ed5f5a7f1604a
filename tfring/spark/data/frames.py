"""Writes data frames of Spark as Parquet that the ranks can read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from pyspark.ml.functions import vector_to_array
from pyspark.sql import functions as F
from pyspark.sql import types as T

from tfring.spark.data.parquet import Column, ParquetData
from tfring.spark.store import Store

# The least and the most.
_GROUP_BYTES, _PAGE_BYTES = (1 << 20, 64 << 20), (16 << 10, 1 << 20)
_NUMBERS = (T.NumericType, T.BooleanType)


class Prepared(NamedTuple):
    """The data of a training, in a store.

    Attributes:
        store: the store.
        train: the path of the training data.
        validation: the path of the validation data; None: there is none.
        columns: the type of each column.
        rows: the number of training rows.
    """

    store: Store
    train: str
    validation: str | None
    columns: dict[str, Column]
    rows: int


def is_vector(kind: T.DataType) -> bool:
    """Whether a column holds vectors of Spark ML.

    Args:
        kind: The column's type.
    """
    return type(kind).__name__ == "VectorUDT"


def column(name: str) -> Any:
    """Returns a column of any name; without the quotes a dot would mean a field."""
    return F.col("`" + name.replace("`", "``") + "`")


def as_numbers(frame: Any, name: str) -> Any:
    """Returns a column as Parquet and pyarrow hold it: numbers, or lists of numbers.

    Args:
        frame: the data frame.
        name: the column.

    Raises:
        TypeError: the column holds something else.
    """
    kind = frame.schema[name].dataType
    if is_vector(kind):
        found = column(name)  # null stays null, for which the function fails
        return F.when(found.isNotNull(), vector_to_array(found, "float32")).alias(name)
    if isinstance(kind, T.DecimalType):
        return column(name).cast("double").alias(name)
    inner = kind.elementType if isinstance(kind, T.ArrayType) else kind
    if isinstance(inner, T.DecimalType) or not isinstance(inner, _NUMBERS):
        raise TypeError(
            f"column {name!r} holds {kind.simpleString()}, but estimators take numbers, vectors "
            "and lists of numbers. Cast the column before fit"
        )
    return column(name)


def write(
    frame: Any,
    store: Store,
    columns: Sequence[str],
    *,
    run_id: str,
    validation: float | str | None,
    partitions: int | None,
    memory_bytes: int,
    seed: int | None,
) -> Prepared:
    """Writes a data frame into a store.

    Args:
        frame: the data frame.
        store: the store.
        columns: those that the ranks need.
        run_id: distinguishes data of different trainings.
        validation: the part of the rows for validation, or the column that marks them; None: none.
        partitions: the number of partitions for the rows, in random order; None: they stay.
        memory_bytes: the most memory for rows when a rank reads them.
        seed: of the choice of rows; None: any.

    Raises:
        ValueError: a column is missing, or there are no rows.
        TypeError: a column has a type that cannot be trained with.
    """
    missing = [name for name in columns if name not in frame.columns]
    if missing:
        raise ValueError(f"the data frame has no columns {missing}; it has {frame.columns}")
    train, held_out = _split(frame, validation, seed)
    wanted = list(dict.fromkeys(columns))
    paths = [store.get_train_data_path(run_id), store.get_val_data_path(run_id)]
    uses = ("to train with", "for validation")
    for use, part, path in zip(uses, (train, held_out), paths, strict=True):
        if part is None:
            continue
        chosen = part.select(*[as_numbers(frame, name) for name in wanted])
        chosen = chosen if partitions is None else chosen.repartition(partitions)
        writer = chosen.write.mode("overwrite").options(**_sizes(memory_bytes))
        writer.parquet(store.path_for_spark(path))
        if not _rows(store, path):
            raise ValueError(
                f"there are no rows {use}: the data frame is empty, or has too few rows for "
                f"validation={validation!r}"
            )
    return prepared(store, paths[0], paths[1] if held_out is not None else None, wanted)


def prepared(store: Store, train: str, validation: str | None, columns: Sequence[str]) -> Prepared:
    """Returns the description of data in a store.

    Args:
        store: the store.
        train: the path of the training data.
        validation: the path of the validation data; None: there is none.
        columns: those that the ranks need.
    """
    filesystem = store.filesystem()
    found = ParquetData(filesystem, store.path_in_filesystem(train))
    if validation is not None and not _rows(store, validation):
        raise ValueError(f"there are no rows for validation in {validation}")
    by_name = {one.name: one for one in found.columns(columns)}
    return Prepared(store, train, validation, by_name, found.rows)


def _sizes(memory_bytes: int) -> dict[str, int]:
    """Returns the sizes for writing Parquet that can be read with this much memory.

    A reader holds a whole page of each column, and the rows that it reads of a row group.
    """
    page = min(max(memory_bytes // 16, _PAGE_BYTES[0]), _PAGE_BYTES[1])
    group = min(max(memory_bytes // 4, _GROUP_BYTES[0]), _GROUP_BYTES[1])
    sizes = {"block.size": group, "page.size": page, "dictionary.page.size": page}
    return {f"parquet.{name}": number for name, number in sizes.items()}


def _rows(store: Store, path: str) -> int:
    return ParquetData(store.filesystem(), store.path_in_filesystem(path)).rows


def _split(frame: Any, validation: float | str | None, seed: int | None) -> tuple[Any, Any]:
    if validation is None or validation == 0:
        return frame, None
    if isinstance(validation, str):
        if validation not in frame.columns:
            raise ValueError(
                f"validation={validation!r}: the data frame has no such column; it has "
                f"{frame.columns}"
            )
        # Null means training.
        held = F.coalesce(column(validation).cast("double") > 0, F.lit(False))
        return frame.filter(~held), frame.filter(held)
    if not 0 < validation < 1:
        raise ValueError(f"validation={validation}: it must be more than 0 and less than 1")
    train, held_out = frame.randomSplit([1 - validation, validation], seed)
    return train, held_out
