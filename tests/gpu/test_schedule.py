"""Where XLA for GPUs puts the collectives of a training step, by the program that it makes.

The shapes are those of 8 dense layers of width 256. With a batch of 64 weights are larger than
activations, with one of 1024 they are smaller.
"""

from __future__ import annotations

import json
from pathlib import Path

import gpu_fake
import pytest

PROGRAM = Path(__file__).parent / "programs" / "schedule.py"
LAYERS = 8
CASES = [(64, 8), (1024, 8), (64, 3), (1024, 3)]  # batch, buckets


@pytest.fixture(scope="module")
def orders() -> dict[tuple[int, int], list[str]]:
    """What the program prints; it starts once, because TensorFlow's start is most of its time."""
    output = gpu_fake.run(PROGRAM, json.dumps(CASES))
    return dict(zip(CASES, json.loads(output.splitlines()[-1]), strict=True))


@pytest.mark.parametrize("batch", [64, 1024])
def test_each_start_comes_before_the_next_layer_and_each_update_after_its_done(
    batch: int, orders: dict[tuple[int, int], list[str]]
) -> None:
    """With a bucket for each layer; the first layer has no gradient of an activation."""
    layers, updates = ["START", "dX"] * (LAYERS - 1), ["DONE", "update"] * LAYERS
    assert orders[batch, LAYERS] == [*layers, "START", *updates]


@pytest.mark.parametrize("batch", [64, 1024])
def test_layers_follow_each_start_of_a_bucket_of_several(
    batch: int, orders: dict[tuple[int, int], list[str]]
) -> None:
    """And every done comes after the last start, which ends the backward pass."""
    order = orders[batch, 3]
    *buckets, end = " ".join(order).split("START")
    assert len(buckets) == 3
    assert all("dX" in bucket for bucket in buckets)
    assert end.split()[0] == "DONE" and end.count("DONE") == 3 and end.count("update") == LAYERS
