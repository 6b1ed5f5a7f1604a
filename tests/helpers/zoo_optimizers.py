"""Every optimizer of Keras, and the ways to train with it."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
from zoo_training import STEPS, Case, Rows, equal, total, unequal

optimizers = keras.optimizers
WORDS, WIDTH, IDS = 64, 6, 3


def simple(name: str, rate: float, **fixed: Any) -> Callable[..., Any]:
    """Makes the optimizer of this name with the options of a way to train."""
    return lambda **options: getattr(optimizers, name)(rate, **fixed, **options)


def several(**options: Any) -> Any:
    by_path = {"head/.*": optimizers.SGD(0.1, **options)}
    default = optimizers.Adam(0.02, **options)
    return optimizers.MultiOptimizer(optimizers.OptimizerMap(default, by_path))


OPTIMIZERS: dict[str, Callable[..., Any]] = {
    "SGD": simple("SGD", 0.1, momentum=0.9, nesterov=True),
    "RMSprop": simple("RMSprop", 0.01, momentum=0.5, centered=True),
    "Adam": simple("Adam", 0.02, amsgrad=True),
    "AdamW": simple("AdamW", 0.02, weight_decay=0.1),
    "Adadelta": simple("Adadelta", 1.0),
    "Adagrad": simple("Adagrad", 0.1),
    "Adamax": simple("Adamax", 0.02),
    "Adafactor": simple("Adafactor", 0.05),
    "Nadam": simple("Nadam", 0.02),
    "Ftrl": simple("Ftrl", 0.1, l2_regularization_strength=0.01),
    "Lion": simple("Lion", 0.01),
    "Lamb": simple("Lamb", 0.02),
    "Muon": simple("Muon", 0.02),
    "ScheduleFreeAdamW": simple("ScheduleFreeAdamW", 0.02, warmup_steps=2),
    "LossScaleOptimizer": lambda **options: optimizers.LossScaleOptimizer(
        optimizers.Adam(0.02, **options), initial_scale=256.0, dynamic_growth_steps=3
    ),
    "MultiOptimizer": several,
}


# Ftrl divides differences of nearly equal square roots.
TOLERANCE = {"Ftrl": 3e-4}


@dataclasses.dataclass(frozen=True)
class Way:
    """A way to train.

    Attributes:
        options: options of the optimizer.
        compile: options of compile.
        policy: Keras' dtype policy.
        rows: returns the number of rows of a step that a rank has.
        tolerance: relative to each tensor's largest element.
    """

    options: dict[str, Any] = dataclasses.field(default_factory=dict)
    compile: dict[str, Any] = dataclasses.field(default_factory=dict)
    policy: str = "float32"
    rows: Rows = unequal
    tolerance: float = 1e-5


WAYS = {
    "tape": Way(),
    "fit": Way(),
    # With Keras' accumulation all ranks count equally: docs/adr/0072.
    "accumulation": Way({"gradient_accumulation_steps": 2}, rows=equal),
    "global_clipnorm": Way({"global_clipnorm": 0.3}),
    "EMA": Way({"use_ema": True, "ema_momentum": 0.8, "ema_overwrite_frequency": 3}),
    "mixed_float16": Way(policy="mixed_float16", tolerance=2e-2),
    "jit_compile": Way(compile={"jit_compile": True}),
}


def model() -> Any:
    """A model with an embedding (sparse gradients), matrices, and vectors."""
    return keras.Sequential(
        [
            keras.Input((IDS,), dtype="int32"),
            keras.layers.Embedding(WORDS, WIDTH),
            keras.layers.Flatten(),
            keras.layers.Dense(7, activation="tanh"),
            keras.layers.Dense(2, name="head"),
        ]
    )


def case(name: str, way: Way) -> Case:
    """A case in which no word occurs twice in a step, and one optimizer is built before `fit`.

    If a word did, Keras in one process would square the gradients of both places apart. tfring adds
    them up first, as for dense gradients: test_sparse_equals_dense.py. If `fit` built
    ScheduleFreeAdamW, Keras would begin with the weights as momenta in eager mode, in a graph with
    zeros.
    """
    rng = np.random.default_rng(3)
    count = total(way.rows)
    words = [rng.permutation(WORDS)[: count * IDS].reshape(count, IDS) for _ in range(STEPS)]
    x = np.concatenate(words).astype("int32")
    y = rng.normal(size=(len(x), 2)).astype("float32")
    optimizer = functools.partial(OPTIMIZERS[name], **way.options)
    return Case(model, optimizer, x, y, rows=way.rows, built=name == "ScheduleFreeAdamW")
