"""How gradients are cut into buckets: by size and dtype, in reverse order, equal on all ranks."""

from __future__ import annotations

import itertools
import random

import pytest

from tfring.collectives import buckets
from tfring.collectives.buckets import TensorSpec, cut_buckets, layout_hash


def floats(*sizes: int) -> tuple[TensorSpec, ...]:
    return tuple(TensorSpec("float32", size) for size in sizes)


def positions(cut: tuple[buckets.Bucket, ...]) -> list[tuple[int, ...]]:
    return [bucket.positions for bucket in cut]


def test_buckets_run_backwards_and_the_first_is_small() -> None:
    cut = cut_buckets(floats(50, 50, 50, 6, 4), first_bytes=10, bucket_bytes=100)
    assert positions(cut) == [(4, 3), (2, 1), (0,)]
    assert [bucket.index for bucket in cut] == [0, 1, 2]


def test_a_bucket_has_one_dtype() -> None:
    specs = tuple(TensorSpec(("float32", "float16")[i % 2], 4) for i in range(6))
    cut = cut_buckets(specs)
    assert positions(cut) == [(4, 2, 0), (5, 3, 1)] or positions(cut) == [(5, 3, 1), (4, 2, 0)]
    for bucket in cut:
        assert {specs[p].dtype for p in bucket.positions} == {bucket.dtype}


@pytest.mark.parametrize("groups", [None, 1, 3, 7, ((0, 5), (2,))])
def test_every_position_is_in_exactly_one_bucket(groups: buckets.Groups) -> None:
    rng = random.Random(1)
    for _ in range(50):
        specs = tuple(
            TensorSpec(rng.choice(["float32", "float16"]), rng.randrange(1, 60))
            for _ in range(rng.randrange(6, 30))
        )
        cut = cut_buckets(specs, groups, first_bytes=20, bucket_bytes=80)
        seen = list(itertools.chain.from_iterable(positions(cut)))
        assert sorted(seen) == list(range(len(specs)))


def test_a_number_of_groups_splits_evenly() -> None:
    assert positions(cut_buckets(floats(*[4] * 7), 3)) == [(6, 5), (4, 3), (2, 1, 0)]
    assert len(cut_buckets(floats(4, 4), 5)) == 2


def test_groups_stay_together_and_the_rest_is_cut_by_size() -> None:
    cut = cut_buckets(floats(*[4] * 6), ((0, 4),), first_bytes=100)
    assert sorted(positions(cut)) == [(4, 0), (5, 3, 2, 1)]


@pytest.mark.parametrize("groups", [((0, 0),), ((0,), (0,)), ((9,),), ((-1,),), 0])
def test_impossible_groups_are_refused(groups: buckets.Groups) -> None:
    with pytest.raises(ValueError, match="group"):
        cut_buckets(floats(4, 4), groups)


def test_the_hash_tells_layouts_and_missing_gradients_apart() -> None:
    cut = cut_buckets(floats(4, 4, 4))
    other = cut_buckets(floats(4, 4, 4), 2)
    hashes = {
        layout_hash(cut, "DDD"),
        layout_hash(cut, "DND"),
        layout_hash(cut, "DDN"),
        layout_hash(cut, "SDD"),
        layout_hash(other, "DDD"),
    }
    assert len(hashes) == 5
    assert all(0 < h < 1 << 63 for h in hashes)


def test_the_hash_is_the_same_in_every_process() -> None:
    """A fixed value: Python's own hash() differs between processes, and would pass otherwise."""
    assert layout_hash(cut_buckets(floats(4, 4, 4)), "DND") == 1155076901156080385
