"""tfring reports random states that do not fit a model or the number of ranks."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("tensorflow")

import keras

from tfring.keras.callbacks.checkpoints.rank_state import (
    RankState,
    random_states,
    set_random_states,
)
from tfring.runtime import topology


def model(dropouts: int) -> Any:
    layers = [keras.layers.Dropout(0.5) for _ in range(dropouts)]
    return keras.Sequential([keras.layers.Input((2,)), *layers])


def test_another_number_of_seed_generators_is_told() -> None:
    saved = random_states(model(2))
    assert set_random_states(model(2), saved) == []
    assert set_random_states(model(3), saved) == ["3 seed generators of the model (2 were saved)"]


@pytest.mark.parametrize(
    ("size", "said"),
    [
        (2, ""),
        (4, "2 ranks, and there are 4 now: ranks from 2 on go on with other seeds"),
        (1, "2 ranks, and there are 1 now: those of ranks from 1 on are not used"),
    ],
)
def test_another_number_of_ranks_is_told(
    size: int, said: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(topology, "size", lambda: size)
    monkeypatch.setattr(topology, "rank", lambda: 0)
    one = model(1)
    of_rank = {"random": random_states(one), "cursor": None, "metrics": []}
    own = RankState(one, None)
    own.give_back([of_rank, of_rank])
    text = "; ".join(record.getMessage() for record in caplog.records)
    assert said in text
    assert ("metrics of this epoch are those of its rest" in text) == (size != 2)
    assert (own.metrics is not None) == (size == 2)
