"""ElasticSampler: Horovod's methods, with ranks that come and go."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from tfring.data import ElasticSampler
from tfring.runtime import topology

Samplers = list[ElasticSampler]


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int, int], None]]:
    """Makes this process a rank of a job."""

    def become(rank: int, size: int) -> None:
        monkeypatch.setattr(topology, "rank", lambda: rank)
        monkeypatch.setattr(topology, "size", lambda: size)

    become(0, 1)
    yield become


def test_every_rank_gets_equally_many_and_all_get_all(job: Callable[[int, int], None]) -> None:
    for samples in (1, 2, 7, 12, 13):
        for size in (1, 2, 3, 5):
            seen: list[int] = []
            for rank in range(size):
                job(rank, size)
                sampler = ElasticSampler(range(samples), seed=4)
                assert (sampler.rank, sampler.num_replicas) == (rank, size)
                assert len(list(sampler)) == len(sampler) == sampler.num_samples
                assert sampler.total_size == size * sampler.num_samples
                seen += sampler
            assert set(seen) == set(range(samples))
            assert len(seen) - samples < size


def test_orders_differ_between_epochs_and_seeds(job: Callable[[int, int], None]) -> None:
    sampler = ElasticSampler(50, seed=1)
    first = list(sampler)
    sampler.set_epoch(1)
    assert sorted(sampler) == sorted(first) == list(range(50))
    assert list(sampler) != first != list(ElasticSampler(50, seed=2))
    assert list(ElasticSampler(50, shuffle=False)) == list(range(50))
    with pytest.raises(ValueError, match="at least 0, not -1"):
        ElasticSampler(50, seed=-1)


def test_what_was_recorded_does_not_come_again(job: Callable[[int, int], None]) -> None:
    sampler = ElasticSampler(20, seed=1)
    order = list(sampler)
    assert sampler.get_indices(1, 3) == order[3:6] and sampler.get_indices(6, 3) == order[18:]
    sampler.record_batch(1, 3)
    sampler.record_indices(np.array(order[9:12]))
    assert list(sampler) == order, "recording does not change what is being read"
    state = json.loads(json.dumps(sampler.state_dict()))
    assert state == {"epoch": 0, "processed_indices": sorted(order[3:6] + order[9:12])}
    sampler.reset()
    rest = order[:3] + order[6:9] + order[12:]
    assert list(sampler) == sampler.remaining_indices == rest
    other = ElasticSampler(20, seed=1)
    other.load_state_dict(state)
    assert list(other) == rest
    sampler.set_epoch(1)
    assert sampler.processed_indices == set() and len(sampler) == 20
    sampler.record_indices(range(20))
    sampler.reset()
    assert list(sampler) == [] and len(sampler) == 0


@pytest.mark.parametrize("seed", range(100))
def test_ranks_that_come_and_go(job: Callable[[int, int], None], seed: int) -> None:
    rng = random.Random(seed)
    samples, batch = rng.randint(1, 100), rng.randint(1, 5)
    states = [{"epoch": 0, "processed_indices": []}]
    trained: list[int] = []
    repeated = 0
    while len(set(trained)) < samples:
        size = rng.randint(1, 6)
        together = sorted({index for state in states for index in state["processed_indices"]})
        ranks: Samplers = []
        for rank in range(size):
            job(rank, size)
            ranks.append(ElasticSampler(samples, seed=seed))
            ranks[-1].load_state_dict({"epoch": 0, "processed_indices": together})
        assert sorted(ranks[0].remaining_indices) == sorted(set(range(samples)) - set(trained))
        steps = rng.randint(1, 4)
        for step in range(steps):
            for sampler in ranks:
                trained += sampler.get_indices(step, batch)
                sampler.record_batch(step, batch)
        repeated += size - 1
        states = [sampler.state_dict() for sampler in ranks]
    assert set(trained) == set(range(samples)) and len(trained) <= samples + repeated
