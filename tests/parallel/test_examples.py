"""The examples train, in this job's ranks, and end with equal weights."""

from __future__ import annotations

import gzip
import importlib
import pathlib
import re
import sys
from typing import Any

import keras
import numpy as np
import pytest
from tiers import slow

import tfring.keras as hvd

EXAMPLES = pathlib.Path(__file__).parents[2] / "examples"


@pytest.fixture
def example(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    return importlib.import_module(request.param)


@pytest.mark.parametrize(
    "example", [slow("keras_fit"), "custom_loop", slow("elastic_keras")], indirect=True
)
def test_digits(example: Any, tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    checkpoint = tmp_path / "digits.keras"
    assert example.main(["--checkpoint", str(checkpoint)]) == 0
    printed = capsys.readouterr().out
    assert checkpoint.exists() == (hvd.rank() == 0)
    if hvd.rank() != 0:
        assert printed == ""
        return
    last = printed.splitlines()[-1]
    found = re.fullmatch(
        r"test accuracy ([\d.]+), (\d+) samples/s on (\d+) rank\(s\), weights (.*) \(all equal\)",
        last,
    )
    assert found, last
    assert float(found[1]) >= 0.95
    assert int(found[2]) > 0
    assert int(found[3]) == hvd.size() == len(found[4].split())
    assert keras.models.load_model(checkpoint).count_params() > 0


def write_idx(path: pathlib.Path, array: Any) -> None:
    header = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">u4").tobytes()
    content = header + array.astype(np.uint8).tobytes()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)


@pytest.mark.slow
@pytest.mark.parametrize("example", ["keras_fit"], indirect=True)
def test_fashion_mnist_from_a_folder(example: Any, tmp_path: Any) -> None:
    rng = np.random.default_rng(5)
    for part, count in (("train", 40 * hvd.size() + 1), ("t10k", 10)):
        write_idx(tmp_path / f"{part}-images-idx3-ubyte.gz", rng.integers(0, 256, (count, 28, 28)))
        write_idx(tmp_path / f"{part}-labels-idx1-ubyte", rng.integers(0, 10, count))
    arguments = ["--data", "fashion-mnist", "--data-dir", str(tmp_path), "--epochs", "2"]
    assert example.main([*arguments, "--checkpoint", str(tmp_path / "m.keras")]) == 0


@pytest.mark.parametrize("example", ["example_data"], indirect=True)
def test_every_rank_gets_a_part_of_the_same_size(example: Any) -> None:
    x = np.arange(23)
    shards = [example.Data(x, x, x, x).shard(r, 4)[0] for r in range(4)]
    assert {len(s) for s in shards} == {5}
    assert len(set(np.concatenate(shards).tolist())) == 20


def test_unequal_weights_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    example_data = importlib.import_module("example_data")
    model = keras.Sequential([keras.layers.Input((1,)), keras.layers.Dense(1)])
    model.set_weights([np.full((1, 1), hvd.rank()), np.zeros(1)])
    assert example_data.report(model, 1.0, 1.0) == (1 if hvd.size() > 1 else 0)
    assert "tfring" in sys.modules
