"""Which rows of a Parquet data set a rank gets, in what order, with how much memory."""

import collections
import tracemalloc

import fsspec
import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from tfring.spark.data.mixing import count, mixed, rebatched
from tfring.spark.data.parquet import Column, ParquetData, RankRows

LOCAL = fsspec.filesystem("file")


def _write(folder, rows, *, group_rows, files=1, width=3):
    """Row i has the number i, and a list of i repeated."""
    folder.mkdir(exist_ok=True)
    for number, part in enumerate(np.array_split(np.arange(rows), files)):
        lists = pa.FixedSizeListArray.from_arrays(
            pa.array(np.repeat(part.astype(np.float32), width)), width
        ).cast(pa.list_(pa.float32()))
        table = pa.table({"y": part, "x": lists})
        parquet.write_table(table, folder / f"{number}.parquet", row_group_size=group_rows)
    return ParquetData(LOCAL, str(folder))


def _read(data, rank, size, batch_size=4, *, number=0, **options):
    options.setdefault("memory_bytes", 1 << 20)
    columns = data.columns(["y", "x"])
    rows = RankRows(data, columns, rank=rank, size=size, batch_size=batch_size, **options)
    batches = list(rows.passes(number))
    assert len(batches) == rows.batches
    assert all(count(batch) == batch_size for batch in batches[:-1])
    for batch in batches:
        assert np.array_equal(batch["x"], np.repeat(batch["y"], 3).reshape(-1, 3))
    return [int(y) for batch in batches for y in batch["y"]]


@pytest.mark.parametrize("seed", range(20))
def test_every_row_is_somebodys(tmp_path, seed):
    """Ranks have as many rows each; only what is missing to that is there twice."""
    random = np.random.default_rng(seed)
    rows, size = int(random.integers(1, 60)), int(random.integers(1, 6))
    data = _write(
        tmp_path / "data",
        rows,
        group_rows=int(random.integers(1, 12)),
        files=int(random.integers(1, 4)),
    )
    options = {"seed": seed} if seed % 2 else {}
    options["memory_bytes"] = int(random.integers(1, 2000))
    batch = int(random.integers(1, 9))
    for number in range(2):
        found = [_read(data, rank, size, batch, number=number, **options) for rank in range(size)]
        assert len({len(one) for one in found}) == 1
        times = collections.Counter(row for one in found for row in one)
        assert sorted(times) == list(range(rows))
        assert sum(times.values()) == -(-rows // size) * size


def test_orders(tmp_path):
    data = _write(tmp_path / "data", 1000, group_rows=50)
    assert _read(data, 1, 2) == list(range(500, 1000))
    first = _read(data, 0, 2, seed=1)
    assert first == _read(data, 0, 2, seed=1) != _read(data, 0, 2, seed=2)
    other = _read(data, 0, 2, seed=1, number=1)
    assert sorted(other) != sorted(first)  # other row groups, not only another order
    # With one row of memory neighbours stay close; with enough they are all mixed.
    steps = np.abs(np.diff(_read(data, 0, 1, seed=1, mixing_rows=1)))
    assert np.median(steps) == 1
    assert np.median(np.abs(np.diff(_read(data, 0, 1, seed=1)))) > 100


def test_mixing_loses_nothing():
    random = np.random.default_rng(0)
    for capacity in (1, 3, 10, 100):
        pieces = ({"a": np.arange(i, i + 7)} for i in range(0, 70, 7))
        found = [int(a) for rows in mixed(pieces, capacity, random) for a in rows["a"]]
        assert sorted(found) == list(range(70))
    batches = [
        b["a"].tolist() for b in rebatched(iter([{"a": np.arange(5)}, {"a": np.arange(5)}]), 4)
    ]
    assert batches == [[0, 1, 2, 3], [4, 0, 1, 2], [3, 4]]


@pytest.mark.parametrize("seed", [None, 3])
@pytest.mark.parametrize(
    ("names", "rows", "bound"), [(["y", "x"], 32_000, 2 << 20), (["y"], 2_000_000, 8 << 20)]
)
def test_memory_has_a_bound(tmp_path, seed, names, rows, bound):
    """The sets have 32 and 16 MB in 4 row groups, and are read with 2 and 8 MB."""
    width = 256 if "x" in names else 1
    data = _write(tmp_path / "data", rows, group_rows=rows // 4, width=width)
    columns = data.columns(names)
    known = {"y": Column("y", "int64", None), "x": Column("x", "float32", width)}
    assert columns == [known[name] for name in names]
    reader = RankRows(data, columns, rank=0, size=1, batch_size=128, memory_bytes=bound, seed=seed)
    pool = pa.default_memory_pool()
    before, most = pool.bytes_allocated(), 0
    tracemalloc.start()
    seen = 0
    for batch in reader.passes(0):
        seen += count(batch)
        most = max(most, pool.bytes_allocated() - before)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert seen == rows
    assert peak + most < bound * 1.5, (peak, most)


def test_what_cannot_be_read(tmp_path):
    with pytest.raises(FileNotFoundError, match="no Parquet file in"):
        ParquetData(LOCAL, str(tmp_path))

    def data(name, **columns):
        (tmp_path / name).mkdir()
        parquet.write_table(pa.table(columns), tmp_path / name / "0.parquet")
        return ParquetData(LOCAL, str(tmp_path / name))

    with pytest.raises(TypeError, match="column 'a' holds string"):
        data("texts", a=["x"]).columns(["a"])
    with pytest.raises(ValueError, match="column 'a': its first row is null"):
        data("first", a=pa.array([None, [1.0]])).columns(["a"])
    uneven = data("uneven", a=[[1.0, 2.0], [3.0]])
    with pytest.raises(ValueError, match=r"lists have the lengths \[1, 2\]"):
        list(
            RankRows(
                uneven, uneven.columns(["a"]), rank=0, size=1, batch_size=2, memory_bytes=1 << 20
            ).passes(0)
        )
    missing = data("missing", a=[1.0, None])
    with pytest.raises(ValueError, match="1 rows are null"):
        list(
            RankRows(
                missing, missing.columns(["a"]), rank=0, size=1, batch_size=2, memory_bytes=1 << 20
            ).passes(0)
        )
