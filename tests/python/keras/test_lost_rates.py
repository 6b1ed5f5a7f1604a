"""The message of the broadcast callback for learning rates that it replaces."""

from __future__ import annotations

import pytest

pytest.importorskip("tensorflow")

from tfring.keras.callbacks.broadcast import lost_rates

DO = "Give optimizer the same learning rate on every rank."


def rates(*of_ranks: float) -> list[dict[str, float]]:
    return [{"optimizer": rate} for rate in of_ranks]


def test_ranks_with_three_rates_are_counted_and_the_first_is_named() -> None:
    assert lost_rates(rates(0.01, 0.1, 0.2), 0) == [
        "2 ranks have another learning rate than rank 0 (rank 1: 0.1). "
        f"All ranks now use rank 0's, 0.01.\n{DO}"
    ]


def test_a_single_rank_beside_another_root() -> None:
    assert lost_rates(rates(0.5, 0.01, 0.01), 1) == [
        "1 rank has another learning rate than rank 1 (rank 0: 0.5). "
        f"All ranks now use rank 1's, 0.01.\n{DO}"
    ]


def test_rates_that_differ_by_rounding_or_are_missing_are_not_named() -> None:
    assert lost_rates([*rates(0.1, 0.1 + 1e-12), {}], 0) == []
