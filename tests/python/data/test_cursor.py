"""Cursors: each sample is in exactly one committed step per epoch, whatever happens to the job."""

from __future__ import annotations

import hashlib
import json
import pickle
import random
from collections import Counter
from typing import Any

import numpy as np
import pytest

from tfring.data import DataCursor, Policy
from tfring.data.cursor import Cursor, Pass, permutation

SEQUENCES = 200
OF_WHOLE_JOBS = 100  # with a DataCursor for each rank
MAX_RANKS = 64


class Job:
    """Ranks that train, fail, go back and change their number; keeps the committed samples."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.samples = self.random.randint(1, 200)
        self.batch = self.random.randint(1, 80)
        self.drop = self.random.random() < 0.2 and self.samples >= self.batch
        self.shuffle = self.random.random() < 0.8
        self.cursor = Cursor(self.samples, self.random.randrange(2**40), self.shuffle)
        self.epochs: dict[int, list[list[int]]] = {}  # committed steps, by epoch

    def run(self) -> None:
        """Some generations, each with a different number of ranks; only some steps commit."""
        for _ in range(self.random.randint(1, 6)):
            size = self.random.randint(1, MAX_RANKS)
            how = (self.cursor, self.cursor.order(), self.batch)
            ranks = [Pass(*how, rank, size, self.drop) for rank in range(size)]
            steps = ranks[0].steps
            done = self.random.randint(0, steps) if self.random.random() < 0.7 else steps
            committed = self.random.randint(0, done) if self.random.random() < 0.5 else done
            for step in range(committed):
                self.commit([rank.part(step) for rank in ranks])
            self.cursor = ranks[0].after(committed)
            if committed == steps:
                self.cursor = self.cursor.next_epoch()

    def commit(self, parts: list[Any]) -> None:
        sizes = [len(part.indices) for part in parts]
        assert max(sizes) - min(sizes) <= 1
        for part, rows in zip(parts, sizes, strict=True):
            assert abs(part.weight * sum(sizes) - rows * len(parts)) < 1e-9
        steps = self.epochs.setdefault(self.cursor.epoch, [])
        steps.append([index for part in parts for index in part.indices.tolist()])


def test_every_sample_in_exactly_one_committed_step_per_epoch() -> None:
    whole = partial = 0
    for seed in range(SEQUENCES):
        job = Job(seed)
        job.run()
        for epoch, steps in job.epochs.items():
            seen = [index for step in steps for index in step]
            order = Cursor(job.samples, job.cursor.seed, job.shuffle, epoch).order()
            # In the order of the epoch, none twice; and all, if the epoch was finished.
            assert seen == order[: len(seen)].tolist(), f"seed {seed}, epoch {epoch}"
            wanted = job.samples - job.samples % job.batch if job.drop else job.samples
            if epoch < job.cursor.epoch:
                assert len(seen) == wanted, f"seed {seed}, epoch {epoch}"
                assert all(len(step) == job.batch for step in steps[: wanted // job.batch])
            whole += epoch < job.cursor.epoch
            partial += epoch == job.cursor.epoch
    assert whole > SEQUENCES / 2 and partial > SEQUENCES / 4, "the sequences show nothing"


def committed_by(cursors: list[DataCursor], steps: int) -> list[int]:
    """Lets all ranks read a pass and commit some of its steps; returns the samples."""
    passes = [cursor.begin() for cursor in cursors]
    seen = []
    for step in range(min(steps, passes[0].steps)):
        parts = [one.part(step) for one in passes]
        assert abs(sum(part.weight for part in parts) - len(parts)) < 1e-9
        seen += [index for part in parts for index in part.indices.tolist()]
        for cursor in cursors:
            cursor.commit()
    return seen


@pytest.mark.parametrize("per_rank", [False, True])
def test_ranks_that_come_and_go(per_rank: bool) -> None:
    for seed in range(OF_WHOLE_JOBS):
        rng = random.Random(seed)
        samples = rng.randint(1, 200)
        policy = Policy(3, True, 5) if per_rank else Policy(rng.randint(1, 40))

        def ranks(size: int, samples: int = samples, policy: Any = policy) -> list[DataCursor]:
            return [DataCursor(samples, policy, seed=7, rank=r, size=size) for r in range(size)]

        cursors, epochs = ranks(rng.randint(1, 8)), {}
        saved = cursors[0].state_dict()
        for _ in range(rng.randint(1, 10)):
            kept: Counter[int] = Counter()
            if rng.random() < 0.3:  # samples that were trained on but not committed are given up
                committed_by(cursors, rng.randint(0, 3))
            else:
                epoch = cursors[0].begin().start.epoch
                kept.update(committed_by(cursors, rng.randint(0, 6)))
                epochs.setdefault(epoch, Counter()).update(kept)
                saved = json.loads(json.dumps(cursors[rng.randrange(len(cursors))].state_dict()))
            survivors = rng.sample(cursors, rng.randint(1, len(cursors)))
            size = rng.randint(len(survivors), 8)
            cursors = [*survivors, *ranks(size)[len(survivors) :]]
            for rank, cursor in enumerate(cursors):
                cursor.load_state_dict(saved)
                cursor.resize(rank, size)
            assert len({c.rate_factor for c in cursors}) == 1
        for epoch, seen in epochs.items():
            assert max(seen.values(), default=0) <= 1, f"seed {seed}: a sample twice in {epoch}"
            if epoch < cursors[0].epoch:
                assert len(seen) == samples, f"seed {seed}: epoch {epoch} has lost samples"


def test_the_weighted_means_of_the_ranks_average_to_the_mean_of_the_batch() -> None:
    values = np.random.default_rng(1).normal(size=50)
    order = Cursor(50).order()
    for size in (1, 2, 3, 5, 13):
        ranks = [Pass(Cursor(50), order, 8, rank, size) for rank in range(size)]
        for step in range(ranks[0].steps):
            parts = [rank.loadable(step) for rank in ranks]
            means = [part.weight * values[part.indices].mean() for part in parts]
            batch = order[8 * step : 8 * (step + 1)]
            assert np.mean(means) == pytest.approx(values[batch].mean())
            rows = [len(part.indices) for part in parts]
            means = [part.factor * values[part.indices].mean() for part in parts]
            assert np.average(means, weights=rows) == pytest.approx(values[batch].mean())


def test_orders_are_permutations_that_no_version_changes() -> None:
    for samples in (1, 2, 3, 255, 256, 257, 10_000):
        order = permutation(samples, seed=5, epoch=2)
        assert sorted(order.tolist()) == list(range(samples))
    orders = [permutation(1000, seed, epoch).tobytes() for seed in (0, 1) for epoch in (0, 1)]
    assert len(set(orders)) == 4
    # A checkpoint that was written within an epoch depends on these.
    assert permutation(10, 0, 0).tolist() == [0, 8, 9, 3, 7, 5, 1, 2, 6, 4]
    digest = hashlib.blake2b(permutation(5000, 42, 7).astype("<u4").tobytes(), digest_size=8)
    assert digest.hexdigest() == "44bd6fb61980cb2e"


def test_a_loop_without_commits_goes_through_all_epochs() -> None:
    cursor = DataCursor(10, 4, rank=0, size=1)
    for epoch in range(3):
        current = cursor.begin()
        assert (current.start.epoch, current.steps) == (epoch, 3)
        cursor.read_to_the_end(current)
    left_early = cursor.begin()
    assert cursor.begin().start == left_early.start, "an epoch that nobody read counts as trained"
    cursor.read_to_the_end(left_early)
    assert cursor.begin().start == left_early.start, "a pass that was given up counts"


def test_commits_decide_also_where_all_was_read() -> None:
    cursor = DataCursor(10, 4, rank=0, size=1)
    cursor.read_to_the_end(cursor.begin())
    cursor.commit(2)
    assert (cursor.epoch, cursor.consumed) == (0, 8)
    assert cursor.begin().part(0).indices.tolist() == Cursor(10).order()[8:].tolist()
    cursor.commit(5)
    assert (cursor.epoch, cursor.consumed) == (0, 10), "the epoch has no more than 10"
    assert cursor.begin().start == Cursor(10, epoch=1)


def test_what_is_wrong_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one sample and a seed of at least 0"):
        DataCursor(0, 1, rank=0, size=1)
    with pytest.raises(ValueError, match="at least one sample"):
        Policy(0)
    with pytest.raises(ValueError, match="do not fill a batch of 24"):
        DataCursor(20, Policy(6, per_rank=True), drop_remainder=True, rank=0, size=4)
    with pytest.raises(ValueError, match="no rank 2 among 2"):
        DataCursor(20, 2, rank=2, size=2)
    cursor = DataCursor(20, 2, rank=1, size=2)
    with pytest.raises(RuntimeError, match="rank 1: a step was committed, but no batch was read"):
        cursor.commit()
    with pytest.raises(IndexError, match="no batch 10: this epoch has 10 left"):
        cursor.begin().part(10)
    cursor.load_state_dict({**cursor.state_dict(), "samples": 21, "epoch": 3})
    assert (cursor.epoch, cursor.consumed) == (3, 0)
    cursor.load_state_dict({**cursor.state_dict(), "samples": 21, "epoch": 3, "consumed": 21})
    assert (cursor.epoch, cursor.consumed) == (4, 0)
    state = {**cursor.state_dict(), "samples": 21, "consumed": 2}
    with pytest.raises(
        ValueError, match="saved state is of data with samples=21, but this data has"
    ):
        cursor.load_state_dict(state)


def test_a_copy_for_another_process_goes_on() -> None:
    cursor = DataCursor(range(20), 6, seed=3, rank=0, size=2)
    cursor.begin()
    cursor.commit()
    copy = pickle.loads(pickle.dumps(cursor))
    copy.commit()
    assert (cursor.consumed, copy.consumed) == (6, 12)


def test_the_learning_rate_follows_the_number_of_ranks_on_a_ramp() -> None:
    cursor = DataCursor(10_000, Policy(2, per_rank=True, ramp_steps=4), rank=0, size=5)
    factors = []

    def train(steps: int) -> None:
        cursor.begin()
        for _ in range(steps):
            factors.append(cursor.rate_factor)
            cursor.commit()

    train(6)
    cursor.resize(0, 3)
    assert cursor.steps_per_epoch == 10_000 // 6 + 1
    train(2)
    saved = cursor.state_dict()
    train(1)
    cursor.load_state_dict(saved)
    cursor.resize(0, 3)  # the same number: the ramp goes on
    train(3)
    assert factors == [1, 2, 3, 4, 5, 5, 5, 4.5, 4.0, 4.0, 3.5, 3.0]
    assert DataCursor(10, 4, rank=0, size=3).rate_factor == 1.0
    assert DataCursor(10, Policy(4, per_rank=True), rank=0, size=3).rate_factor == 3.0
