"""What weights and states of optimizers take, as `tfring report` and `tfring top` show it."""

from __future__ import annotations

import json
import weakref
from typing import Any

import keras
import numpy as np
import pytest

import tfring.keras as hvd
from tfring.launch.cli import main
from tfring.observe.recorder.own import own_path
from tfring.observe.recorder.reader import read_header
from tfring.runtime import memory

pytestmark = [pytest.mark.any_ranks, pytest.mark.usefixtures("eager_functions")]

UNITS = 24  # so that each weight has equal parts for 1, 2, 3 and 4 ranks
WEIGHTS = 4 * (UNITS * UNITS + UNITS)  # bytes
MOST_NUMBERS = 16  # bytes of iterations and learning rate, which all ranks have


@pytest.fixture(autouse=True)
def nothing_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forgets the optimizers of other tests, which may not be freed yet."""
    monkeypatch.setattr(memory, "_held", weakref.WeakKeyDictionary())


def train(optimizer: Any, **options: Any) -> Any:
    model = keras.Sequential([keras.Input((UNITS,)), keras.layers.Dense(UNITS)])
    hvd.broadcast_variables(model.weights, 0)
    model.compile(hvd.DistributedOptimizer(optimizer, **options), "mse")
    x = np.full((4, UNITS), hvd.rank() + 1.0, "float32")
    model.fit(x, x, batch_size=2, verbose=0)
    return model


def shown(command: list[str], capsys: Any) -> list[dict[str, int]]:
    """The memory of each rank in what a command prints with --json."""
    hvd.barrier()
    path = own_path()
    assert path is not None
    assert main([*command, "--json", str(path.parent)]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    hvd.barrier()
    return [rank["memory"] for rank in json.loads(line)["ranks"]]


def test_states_in_parts_take_a_share_of_the_memory(capsys: Any) -> None:
    size = hvd.size()
    held = {}
    for shard in (False, True):
        memory._held.clear()
        train(keras.optimizers.Adam(0.1), shard_states=shard)
        held[shard] = shown(["report"], capsys)
        assert held[shard] == shown(["top", "--once", "--interval", "0.05"], capsys)
    for plain, sharded in zip(held[False], held[True], strict=True):
        numbers = plain["states"] - 2 * WEIGHTS
        assert 0 < numbers <= MOST_NUMBERS
        assert sharded["states"] == 2 * WEIGHTS // size + numbers
        assert plain["weights"] == WEIGHTS
        parts = WEIGHTS // size if size > 1 else 0
        assert sharded["weights"] == WEIGHTS + parts
        assert plain["copies"] == sharded["copies"] == 0
        assert size == 1 or plain["buckets"] > 0


def test_several_optimizers_are_added_up(capsys: Any) -> None:
    kept = [train(keras.optimizers.SGD(0.1)) for _ in range(2)]
    assert [each["weights"] for each in shown(["report"], capsys)] == [2 * WEIGHTS] * hvd.size()
    assert len(kept) == 2


def test_accumulated_gradients_are_states(capsys: Any) -> None:
    train(keras.optimizers.SGD(0.1), backward_passes_per_step=2)
    states = [each["states"] for each in shown(["report"], capsys)]
    assert all(WEIGHTS <= each < WEIGHTS + 100 for each in states)


def noted() -> list[int]:
    """The weights, states and copies in the record of this rank."""
    path = own_path()
    assert path is not None
    header = read_header(path)
    return [header[f"{name}_memory"] for name in ("weights", "states", "copies")]


def test_a_new_record_gets_what_was_noted_and_is_not_freed() -> None:
    class Hook:
        """Stands for that of an optimizer."""

    hook = Hook()
    memory.note(hook, memory.Held(5, 7, 2))
    before = own_path()
    assert noted() == [5, 7, 2]
    hvd.barrier()
    hvd.shutdown()
    hvd.init()
    assert own_path() != before
    assert noted() == [5, 7, 2]
    del hook
    memory.tell()
    assert noted() == [0, 0, 0]
