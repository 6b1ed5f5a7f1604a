"""ElasticDataset: a Keras PyDataset that continues from its place, with any number of ranks."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sized
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import keras
import numpy as np

from tfring.data.cursor import Pass
from tfring.data.data_cursor import PLAIN, DataCursor, check_weights
from tfring.data.policies import Policy

_log = logging.getLogger("tfring")

# Before training, Keras reads this many batches to learn their shapes.
_LOOKED_AT = 2


class ElasticDataset(keras.utils.PyDataset):  # type: ignore[misc]
    """This rank's batches of data that all ranks can load, for `fit` of Keras 3 and custom loops.

    In every epoch all ranks shuffle alike, and each sample is in one batch of one rank. Pass
    `shuffle=False` to `fit`: otherwise Keras would change the order of batches differently on each
    rank, which raises an error.

    The ranks' parts of a batch may differ by a sample. DistributedOptimizer weights them by their
    numbers of samples (weight_by); in a custom loop, pass `weight_by=len(inputs)`. A rank that gets
    none of the last samples of an epoch loads one of another rank. So batches have sample weights:
    0 for that sample, more than 1 for the others of that batch, 1 in all other batches. Keras
    ignores sample weights in `metrics`, but not in `weighted_metrics`.

    Commits mark the place of training: add a CursorCallback to the callbacks of `fit`, or call
    `commit` after each step of a custom loop. Without commits, an epoch counts as trained when it
    has ended. Call `state_dict`, `load_state_dict`, `resize` and `sync` between two calls of `fit`,
    for checkpoints and for jobs that change size.

    Several threads may use it; one of them iterates.

    Attributes:
        cursor: the DataCursor that it reads by.
    """

    def __init__(
        self,
        load: Callable[[Any], Any],
        samples: int | Sized,
        policy: Policy | int,
        *,
        shuffle: bool = True,
        seed: int = 0,
        drop_remainder: bool = False,
        weights: bool | str | None = None,
        workers: int = 1,
        max_queue_size: int = 10,
        rank: int | None = None,
        size: int | None = None,
    ) -> None:
        """Prepares the data. All arguments but `rank` must be equal on all ranks.

        Args:
            load: gets the numbers of samples (an int64 array) and returns a batch of them, like a
                PyDataset: inputs, (inputs, targets) or (inputs, targets, sample_weights), each an
                array or a structure of arrays, or a dict. With workers, runs on several threads.
            samples: the number of samples, or the data, whose length is used.
            policy: of batch and learning rate; a number means samples of a step on all ranks.
            shuffle: whether to shuffle each epoch, in a different order each time.
            seed: of the shuffle.
            drop_remainder: leave out the last samples of an epoch if they do not fill a batch.
            weights: whether batches get weights (see above); by default those with targets do.
                "plain" is for an average in which ranks weigh the same (weight_by=None).
            workers: threads that load ahead; with 1 the thread that asks for a batch loads it.
            max_queue_size: the most batches that they load ahead.
            rank: the rank whose part this is; by default this process's.
            size: the number of ranks; by default the job's.

        Raises:
            ValueError: as DataCursor; `weights` is invalid; or workers or max_queue_size is less
                than 1.
            NotInitializedError: no size was given, and tfring is not initialized.
        """
        # Tell Keras of one worker: its own workers take batches in an order that cannot be checked.
        super().__init__(workers=1, use_multiprocessing=False, max_queue_size=max_queue_size)
        if workers < 1 or max_queue_size < 1:
            raise ValueError(
                f"workers and max_queue_size must be at least 1, not {workers} and {max_queue_size}"
            )
        check_weights(weights)
        self.cursor = DataCursor(
            samples,
            policy,
            shuffle=shuffle,
            seed=seed,
            drop_remainder=drop_remainder,
            rank=rank,
            size=size,
        )
        self._load = load
        self._weights = weights
        self._pool = ThreadPoolExecutor(workers, "tfring-data") if workers > 1 else None
        self._lock = threading.Lock()  # guards the attributes below
        self._fresh = False  # Keras has begun an epoch, and has not yet asked for its length
        self._pass: Pass | None = None  # the current pass
        self._next = 0  # its first step that was not asked for
        self._ahead: dict[int, Future[Any]] = {}  # by step

    @property
    def epoch(self) -> int:
        """The current or next epoch of training, counted from 0."""
        return self.cursor.epoch

    @property
    def rate_factor(self) -> float:
        """The policy's factor of the learning rate in the next step."""
        return self.cursor.rate_factor

    def __len__(self) -> int:
        """The number of batches of a whole epoch with the current ranks."""
        return self.cursor.steps_per_epoch

    @property
    def num_batches(self) -> int:
        """For Keras: the batches of an epoch; when Keras begins an epoch, those that are left."""
        with self._lock:
            passed = self._begin() if self._fresh else self._pass
            return len(self) if passed is None or self._next > 0 else passed.steps

    def __getitem__(self, index: int) -> Any:
        """Returns this rank's batch of a step, counted from where the epoch was resumed.

        Raises:
            IndexError: there is no such step.
            ValueError: Keras asks for the steps in another order.
        """
        with self._lock:
            passed, loading = self._take(index)
        return self._loaded(passed, index) if loading is None else loading.result()

    def __iter__(self) -> Iterator[Any]:
        """Yields the rest of this epoch, or the whole next one, for a custom loop."""
        with self._lock:
            steps = self._begin().steps
        for step in range(steps):
            yield self[step]

    def on_epoch_begin(self) -> None:
        """Keras calls it at the beginning of an epoch; do not call it."""
        with self._lock:
            self._fresh = True

    def on_epoch_end(self) -> None:
        """Keras calls it at the end of an epoch, and before the first; do not call it."""
        with self._lock:
            self._fresh = False
            self.cursor.end()

    def few(self, samples: int) -> ElasticDataset:
        """Returns a dataset of the first samples, in one batch, for this process alone.

        Args:
            samples: how many.
        """
        count = min(samples, self.cursor.samples)
        return ElasticDataset(
            self._load,
            count,
            policy=count,
            shuffle=False,
            weights=self._weights,
            rank=0,
            size=1,
        )

    def commit(self, steps: int = 1) -> None:
        """Counts steps as done; see DataCursor.commit. CursorCallback calls it in `fit`."""
        self.cursor.commit(steps)

    def state_dict(self) -> dict[str, Any]:
        """Returns the place of training in the data, as numbers and lists."""
        return self.cursor.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes to a saved place of training, with any number of ranks.

        Args:
            state: the result of `state_dict`.

        Raises:
            ValueError: the place is within an epoch of other data.
        """
        with self._lock:
            self.cursor.load_state_dict(state)
            self._give_up()

    def resize(self, rank: int | None = None, size: int | None = None) -> None:
        """Divides the uncommitted samples among other ranks.

        Args:
            rank: this process's; by default the current `tfring.rank()`.
            size: the number of ranks; by default the current `tfring.size()`.

        Raises:
            ValueError: there is no such rank, or too few samples for a batch.
        """
        with self._lock:
            self.cursor.resize(rank, size)
            self._give_up()

    def sync(self) -> None:
        """Goes to the place of the rank that is furthest ahead, a collective: DataCursor.sync."""
        self.cursor.sync()
        with self._lock:
            self._give_up()

    def _begin(self) -> Pass:
        self._give_up()
        self._pass = self.cursor.begin()
        steps = self._pass.steps
        if self.cursor.rank == 0 and steps < len(self):
            _log.warning(
                "epoch %d resumes after %d of %d samples, with the last %d of its %d batches. At "
                "its end Keras warns that the input ran out of data. Ignore that warning",
                self._pass.start.epoch + 1,
                self._pass.start.consumed,
                self.cursor.samples,
                steps,
                len(self),
            )
        return self._pass

    def _give_up(self) -> None:
        """Drops the current pass and the batches that were loaded ahead."""
        for loading in self._ahead.values():
            loading.cancel()
        self._fresh, self._pass, self._next, self._ahead = False, None, 0, {}

    def _take(self, index: int) -> tuple[Pass, Future[Any] | None]:
        """Returns the pass of a step, and the batch's loading if that has begun."""
        passed = self._pass
        if passed is None or passed.steps <= index < _LOOKED_AT:
            return self.cursor.whole_epoch(), None
        if index > self._next:
            raise ValueError(
                f"rank {self.cursor.rank}: Keras asked for batch {index} before batch "
                f"{self._next}, so the ranks would take samples of different steps. Pass "
                "shuffle=False to fit: the dataset itself shuffles the samples"
            )
        self._next = max(self._next, index + 1)
        if self._next == passed.steps:
            self.cursor.read_to_the_end(passed)
        if self._pool is None:
            return passed, None
        last = min(index + self.max_queue_size, passed.steps - 1)
        for step in (index, *range(self._next, last + 1)):
            if step not in self._ahead:
                self._ahead[step] = self._pool.submit(self._loaded, passed, step)
        return passed, self._ahead.pop(index)

    def _loaded(self, passed: Pass, step: int) -> Any:
        part = passed.loadable(step)
        weight = part.weight if self._weights == PLAIN else part.factor
        return self._weighted(self._load(part.indices), weight)

    def _weighted(self, batch: Any, weight: float) -> Any:
        """Returns the batch with one weight per sample, with as many dimensions as targets.

        Keras correctly multiplies losses by weights of the same number of dimensions, or one more.
        """
        with_targets = isinstance(batch, (tuple, list)) and len(batch) in (2, 3)
        if self._weights is False or (self._weights is None and not with_targets):
            return batch
        if not with_targets:
            raise TypeError(
                f"rank {self.cursor.rank}: load returned a {type(batch).__name__}. To have "
                "weights, it must return (inputs, targets) or (inputs, targets, sample_weights)"
            )
        inputs, targets, *given = batch
        if given and given[0] is not None:

            def times(factors: Any) -> Any:
                return np.asarray(factors, dtype=np.float32) * np.float32(weight)

            return inputs, targets, keras.tree.map_structure(times, given[0])

        def equal(target: Any) -> Any:
            shape = np.shape(target)
            return np.full((shape[0], *[1] * (len(shape) - 1)), weight, dtype=np.float32)

        return inputs, targets, keras.tree.map_structure(equal, targets)
