"""Data and reports shared by the examples."""

from __future__ import annotations

import argparse
import dataclasses
import gzip
import hashlib
import os
import pathlib
import tempfile
from typing import Any

import numpy as np

import tfring as hvd


@dataclasses.dataclass
class Data:
    """Images as float32 vectors in [0, 1], labels as integers below `classes`."""

    x_train: Any
    y_train: Any
    x_test: Any
    y_test: Any
    classes: int = 10

    def shard(self, rank: int, size: int) -> tuple[Any, Any]:
        """Returns this rank's part of the training data; all parts have the same size.

        Every rank must take the same number of steps, so the remainder of the division is left out.
        """
        count = len(self.x_train) // size
        part = slice(rank, rank + count * size, size)
        return self.x_train[part], self.y_train[part]


def parser(description: str) -> argparse.ArgumentParser:
    """Returns a parser with the common options of the examples."""
    options = argparse.ArgumentParser(description=description)
    options.add_argument("--data", choices=["digits", "fashion-mnist"], default="digits")
    options.add_argument(
        "--data-dir", type=pathlib.Path, help="folder of IDX files; without it keras downloads"
    )
    options.add_argument("--epochs", type=int, default=20)
    options.add_argument("--batch-size", type=int, default=32, help="per rank")
    options.add_argument("--learning-rate", type=float, default=2e-3, help="for one rank")
    options.add_argument(
        "--checkpoint",
        type=pathlib.Path,
        default=pathlib.Path(tempfile.gettempdir()) / f"tfring-example-{os.getuid()}.keras",
        help="where rank 0 saves the model",
    )
    return options


def load(name: str, folder: pathlib.Path | None) -> Data:
    """Loads a dataset; every rank loads all of it and takes its shard."""
    if name == "digits":
        return _digits()
    if folder is None:
        import keras

        (x_train, y_train), (x_test, y_test) = keras.datasets.fashion_mnist.load_data()
    else:
        x_train, y_train = (read_idx(folder, f"train-{kind}") for kind in _IDX_FILES)
        x_test, y_test = (read_idx(folder, f"t10k-{kind}") for kind in _IDX_FILES)
    return Data(_vectors(x_train, 255), y_train, _vectors(x_test, 255), y_test)


_IDX_FILES = ("images-idx3-ubyte", "labels-idx1-ubyte")


def read_idx(folder: pathlib.Path, name: str) -> Any:
    """Reads an IDX file of bytes, compressed or not, the format of MNIST and similar datasets."""
    path = folder / name
    packed = folder / f"{name}.gz"
    if not path.exists() and not packed.exists():
        raise FileNotFoundError(f"neither {path} nor {packed} is there")
    content = path.read_bytes() if path.exists() else gzip.decompress(packed.read_bytes())
    if content[:3] != b"\0\0\x08":
        raise ValueError(f"{path} is not an IDX file of unsigned bytes")
    dims = np.frombuffer(content, ">u4", count=content[3], offset=4)
    return np.frombuffer(content, np.uint8, offset=4 + 4 * len(dims)).reshape(dims)


def _digits() -> Data:
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(x))
    x, y = _vectors(x[order], 16), y[order]
    test = len(x) // 5
    return Data(x[test:], y[test:], x[:test], y[:test])


def _vectors(images: Any, largest: int) -> Any:
    return (np.asarray(images).reshape(len(images), -1) / largest).astype(np.float32)


def report(model: Any, accuracy: float, samples_per_second: float) -> int:
    """Prints the final line on rank 0; returns the exit code, 1 if the ranks' weights differ."""
    digest = hashlib.sha256(b"".join(w.tobytes() for w in model.get_weights())).hexdigest()[:12]
    digests = hvd.allgather_object(digest)
    equal = len(set(digests)) == 1
    if hvd.rank() == 0:
        print(
            f"test accuracy {accuracy:.4f}, {samples_per_second:.0f} samples/s on {hvd.size()} "
            f"rank(s), weights {' '.join(digests)} ({'all equal' if equal else 'NOT EQUAL'})",
            flush=True,
        )
    return 0 if equal else 1
