"""A fake of the collectives, and a small model, for tests of the optimizer hook."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfring.keras import gradient_hook
from tfring.ops import builders
from tfring.runtime import topology
from tfring.training.ordinals import Ordinals

X = np.random.default_rng(0).random((32, 4), dtype=np.float32)
Y = X.sum(axis=1, keepdims=True)


@dataclasses.dataclass
class Reduction:
    """One collective that was built, and the number of its runs."""

    name: str
    op: int
    dtypes: list[str]
    prescale: float
    postscale: float
    layout: int


class Recorder:
    """Replaces allreduce_op: `built` counts traces, `ran` counts executions."""

    def __init__(self) -> None:
        self.built: list[Reduction] = []
        self.ran: list[str] = []

    def allreduce_op(
        self,
        tensors: list[Any],
        *,
        name: str,
        op: int,
        prescale: float = 1.0,
        postscale: float = 1.0,
        layout_hash: int = 0,
        **_: Any,
    ) -> list[Any]:
        self.built.append(
            Reduction(
                name,
                op,
                [t.dtype.name for t in tensors],
                prescale,
                postscale,
                layout_hash,
            )
        )

        def run(*values: Any) -> list[Any]:
            self.ran.append(name)
            factor = postscale * prescale
            return [v if factor == 1.0 else v * factor for v in values]

        return list(tf.py_function(run, tensors, [t.dtype for t in tensors]))


def recording(monkeypatch: pytest.MonkeyPatch) -> Iterator[Recorder]:
    """Replaces the collectives; the body of a fixture."""
    recorder = Recorder()
    monkeypatch.setattr(builders, "allreduce_op", recorder.allreduce_op)
    monkeypatch.setattr(topology, "is_initialized", lambda: True)
    monkeypatch.setattr(topology, "size", lambda: 1)
    monkeypatch.setattr(topology, "always_alone", lambda: False)
    monkeypatch.setattr(gradient_hook, "_optimizers", Ordinals())
    yield recorder
    keras.mixed_precision.set_global_policy("float32")


def build_model(dtype: Any = None) -> Any:
    return keras.Sequential(
        [
            keras.layers.Input((4,)),
            keras.layers.Dense(8, dtype=dtype),
            keras.layers.Dense(1, dtype=dtype),
        ]
    )


def fit(optimizer: Any, x: Any = X, **compile_kwargs: Any) -> Any:
    """Trains on four batches of eight samples."""
    model = build_model()
    model.compile(optimizer=optimizer, loss="mse", **compile_kwargs)
    model.fit(x, Y, batch_size=8, epochs=1, verbose=0, shuffle=False)
    return model
