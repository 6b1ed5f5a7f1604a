"""Every family of Keras' layers: ranks make what one process makes, or the table says why not."""

from __future__ import annotations

import dataclasses
import functools
import types
from typing import Any

import pytest
from keras_cases import assert_same_on_all_ranks
from tiers import cases
from zoo_layers import FAMILIES
from zoo_training import alone, by_fit, by_tape, difference, values_of

import tfring.keras as hvd

QUICK = [
    "attention",
    "LoRA",
    "masked loss",
    "normalization",
    "several inputs and outputs",
    "synchronized batch normalization",
    "text",
]
# Families whose numbers are means over what the ranks have.
NUMBER_MATTERS = ["masked loss", "synchronized batch normalization", "normalization", "text"]


@functools.cache
def expected(name: str) -> dict[str, Any]:
    family = FAMILIES[name]
    case = dataclasses.replace(family.case(), make=family.alone or family.make)
    return values_of(alone(case))


@pytest.mark.parametrize("name", cases(FAMILIES, quick=QUICK))
@pytest.mark.parametrize("way", ["tape", pytest.param("fit", marks=pytest.mark.slow)])
def test_a_family(name: str, way: str) -> None:
    check_family(name, way)


@pytest.mark.any_ranks
@pytest.mark.parametrize("name", cases(NUMBER_MATTERS, quick=NUMBER_MATTERS[:2]))
def test_a_family_with_any_number_of_ranks(name: str, size: int) -> None:
    if size == 2:
        pytest.skip("test_a_family is the same")
    check_family(name, "fit")


def check_family(name: str, way: str) -> None:
    family = FAMILIES[name]
    model = (by_tape if way == "tape" else by_fit)(family.case())
    assert_same_on_all_ranks(types.SimpleNamespace(weights=model.trainable_weights))
    apart, where = difference(values_of(model), expected(name))
    if family.differs and hvd.size() > 1:
        assert apart > 0.01, f"{name}: no longer differs, although {family.differs}"
    elif not family.differs:
        assert apart <= family.tolerance, f"rank {hvd.rank()}: {where} differs by {apart:.3g}"
