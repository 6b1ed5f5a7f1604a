"""One rank's rows of a Parquet data set, in batches, within a memory limit."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import parquet

from tfring.spark.data.mixing import Rows, mixed, rebatched

# Parts of the memory limit: for rows that wait to be mixed, and for rows that are being read. The
# latter exist as Arrow's data, as arrays, and as one batch at a time.
_MIXING, _READING = 0.5, 0.125
_READ_BUFFER = 1 << 16
_LEAST_ROWS = 1
# numpy holds the number of each waiting row in a random order.
_ORDER_BYTES = 8


class Column(NamedTuple):
    """A column of numbers.

    Attributes:
        name: its name.
        dtype: numpy's name of the numbers' type.
        length: the length of a row's list; None: one number.
    """

    name: str
    dtype: str
    length: int | None

    @property
    def row_bytes(self) -> int:
        """The bytes of a row."""
        return int(np.dtype(self.dtype).itemsize * (1 if self.length is None else self.length))


class RowGroup(NamedTuple):
    """A part of a file that is read at once: the file, the number of the part, and its rows."""

    file: str
    number: int
    rows: int


class ParquetData:
    """A folder of Parquet files. Lists it once; can be read repeatedly. Used by one thread.

    Args:
        filesystem: of fsspec.
        path: the folder, as the file system knows it.

    Raises:
        FileNotFoundError: there is no Parquet file.
    """

    def __init__(self, filesystem: Any, path: str) -> None:
        self._filesystem = filesystem
        self.path = path
        files = sorted(name for name in filesystem.find(path) if name.endswith(".parquet"))
        if not files:
            raise FileNotFoundError(f"there is no Parquet file in {path}")
        self.groups: list[RowGroup] = []
        for name in files:
            with filesystem.open(name, "rb") as file:
                footer = parquet.ParquetFile(file).metadata
            counts = [footer.row_group(i).num_rows for i in range(footer.num_row_groups)]
            self.groups += [RowGroup(name, i, rows) for i, rows in enumerate(counts) if rows]
        self.rows = sum(group.rows for group in self.groups)

    def columns(self, names: Sequence[str]) -> list[Column]:
        """Returns the types of some columns; the length of lists is that of the first row.

        Args:
            names: the columns.

        Raises:
            TypeError: one does not hold numbers.
            ValueError: there are no rows.
        """
        if not self.groups:
            raise ValueError(f"there are no rows in {self.path}")
        group = self.groups[0]
        with self._filesystem.open(group.file, "rb") as file:
            source = parquet.ParquetFile(file)
            (first,) = [next(source.iter_batches(1, row_groups=[group.number], columns=[*names]))]
        return [_column_of(name, first.column(name)) for name in names]

    def read(self, group: RowGroup, columns: Sequence[Column], rows: int) -> Iterator[Rows]:
        """Reads a row group piece by piece.

        Args:
            group: the row group.
            columns: to read.
            rows: of a piece.

        Raises:
            ValueError: a value is missing, or a list's length differs from the others.
        """
        with self._filesystem.open(group.file, "rb") as file:
            # A buffer, so no column of the group is in memory as a whole.
            source = parquet.ParquetFile(file, buffer_size=_READ_BUFFER, pre_buffer=False)
            names = [column.name for column in columns]
            pieces = source.iter_batches(
                rows, row_groups=[group.number], columns=names, use_threads=False
            )
            for piece in pieces:
                yield {one.name: _array(one, piece.column(one.name), group) for one in columns}


class RankRows:
    """One rank's rows of a data set. All ranks have the same number of rows and batches.

    Rows are counted in the order of the row groups; a shuffle changes it in each pass. Each rank
    takes the same number of consecutive rows; the last rank may take some of the first rows again.
    Shuffled rows are mixed with as many others as memory allows.

    Args:
        data: the data set.
        columns: to read.
        rank: the rank.
        size: the number of ranks.
        batch_size: rows of a batch; the last of a pass may have fewer.
        memory_bytes: the most memory for rows; a batch may need more.
        seed: of the order in each pass; None: rows stay in order.
        mixing_rows: the most rows to mix; None: as memory allows.
    """

    def __init__(
        self,
        data: ParquetData,
        columns: Sequence[Column],
        *,
        rank: int,
        size: int,
        batch_size: int,
        memory_bytes: int,
        seed: int | None = None,
        mixing_rows: int | None = None,
    ) -> None:
        self._data = data
        self._columns = list(columns)
        self._rank = rank
        self._seed = seed
        self._batch_size = batch_size
        self.rows = math.ceil(data.rows / size)
        self.batches = math.ceil(self.rows / batch_size)
        row_bytes = sum(column.row_bytes for column in columns) + _ORDER_BYTES
        self.reading_rows = max(_LEAST_ROWS, int(memory_bytes * _READING) // row_bytes)
        self.mixing_rows = max(_LEAST_ROWS, int(memory_bytes * _MIXING) // row_bytes)
        if mixing_rows is not None:
            self.mixing_rows = max(_LEAST_ROWS, min(mixing_rows, self.mixing_rows))

    def passes(self, number: int) -> Iterator[Rows]:
        """Yields the batches of one pass.

        Args:
            number: of the pass, from 0.
        """
        if self._seed is None:
            pieces = self._pieces(self._data.groups)
        else:
            order = np.random.default_rng((self._seed, number)).permutation(len(self._data.groups))
            pieces = self._pieces([self._data.groups[i] for i in order])
            random = np.random.default_rng((self._seed, number, 1 + self._rank))
            pieces = mixed(pieces, self.mixing_rows, random)
        yield from rebatched(pieces, self._batch_size)

    def _pieces(self, groups: Sequence[RowGroup]) -> Iterator[Rows]:
        """Yields this rank's rows of groups in an order, in the pieces that are read."""
        skip, left = self._rank * self.rows, self.rows
        if self._data.rows:
            skip %= self._data.rows
        while left > 0:
            for group in groups:
                if skip >= group.rows:
                    skip -= group.rows
                    continue
                for piece in self._data.read(group, self._columns, self.reading_rows):
                    count = len(next(iter(piece.values())))
                    kept = {n: values[skip : skip + left] for n, values in piece.items()}
                    left -= min(max(count - skip, 0), left)
                    skip = max(0, skip - count)
                    if len(next(iter(kept.values()))):
                        yield kept
                    if left == 0:
                        return


def shapes(columns: Sequence[Column]) -> Mapping[str, tuple[int, ...]]:
    """Returns the shape of a row of each column.

    Args:
        columns: The columns.
    """
    return {one.name: () if one.length is None else (one.length,) for one in columns}


def _column_of(name: str, values: Any) -> Column:
    kind, length = values.type, None
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        if not values[0].is_valid:
            raise ValueError(f"column {name!r}: its first row is null. Drop or fill null rows")
        length, kind = len(values[0]), kind.value_type
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)):
        raise TypeError(
            f"column {name!r} holds {values.type}, but estimators take numbers and lists of "
            "numbers of one length. Cast the column, or make it a vector"
        )
    return Column(
        name, "bool" if pa.types.is_boolean(kind) else str(kind.to_pandas_dtype().__name__), length
    )


def _array(column: Column, values: Any, group: RowGroup) -> np.ndarray[Any, Any]:
    """Returns values of a column as an array."""
    where = f"column {column.name!r} of {group.file}, row group {group.number}"
    if values.null_count:
        raise ValueError(f"{where}: {values.null_count} rows are null. Drop or fill them")
    if column.length is None:
        return np.asarray(values.to_numpy(zero_copy_only=False))
    lengths = pc.unique(pc.list_value_length(values)).to_pylist()
    if lengths != [column.length]:
        raise ValueError(
            f"{where}: lists have the lengths {sorted(lengths)}, but the first row of the data "
            f"has {column.length}. Give all lists one length"
        )
    flat = values.flatten()
    if flat.null_count:
        raise ValueError(
            f"{where}: {flat.null_count} numbers in its lists are null. Drop or fill them"
        )
    return np.asarray(flat.to_numpy(zero_copy_only=False)).reshape(len(values), column.length)
