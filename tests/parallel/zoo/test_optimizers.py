"""Every optimizer of Keras, used in every way: the ranks make what one process makes."""

from __future__ import annotations

import functools
from typing import Any

import keras
import pytest
from tiers import cases, slow
from zoo_optimizers import OPTIMIZERS, TOLERANCE, WAYS, case
from zoo_training import alone, by_fit, by_tape, difference, policy, values_of

import tfring.keras as hvd

QUICK = [
    "SGD",
    "Adam",
    "Adafactor",
    "ScheduleFreeAdamW",
    "LossScaleOptimizer",
    "MultiOptimizer",
]


def test_no_optimizer_of_keras_is_left_out() -> None:
    kind = keras.optimizers.Optimizer
    named = vars(keras.optimizers).items()
    known = {name for name, it in named if isinstance(it, type) and issubclass(it, kind)}
    assert set(OPTIMIZERS) == known - {"Optimizer"}


@functools.cache
def expected(name: str, way: str) -> dict[str, Any]:
    """What one process makes of it: the same in a tape loop, in `fit` and with XLA."""
    with policy(WAYS[way].policy):
        return values_of(alone(case(name, WAYS[way])))


@pytest.mark.parametrize("name", cases(OPTIMIZERS, quick=QUICK))
@pytest.mark.parametrize(
    "way",
    [
        "tape",
        *(slow(way) for way in WAYS if way != "tape"),
    ],
)
def test_an_optimizer(name: str, way: str) -> None:
    chosen = WAYS[way]
    what = case(name, chosen)
    with policy(chosen.policy):
        ours = by_tape(what) if way == "tape" else by_fit(what, **chosen.compile)
    plain = way in ("tape", "fit", "jit_compile")
    apart, where = difference(values_of(ours), expected(name, "fit" if plain else way))
    tolerance = max(chosen.tolerance, TOLERANCE.get(name, 0.0))
    assert apart <= tolerance, f"rank {hvd.rank()}: {where} differs by {apart:.3g}"
