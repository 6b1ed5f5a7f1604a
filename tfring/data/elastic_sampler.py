"""ElasticSampler: Horovod's, which gives this rank the numbers of samples that nobody has had."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sized
from typing import Any

import numpy as np

from tfring.data.cursor import Cursor
from tfring.data.exchange import allgather_numbers
from tfring.runtime import topology


class ElasticSampler:
    """Deals the samples of an epoch that are not processed yet out to the ranks, one by one.

    As `horovod.torch.elastic.ElasticSampler`: record what was trained on (`record_batch`); after a
    change of the ranks `reset`, `load_state_dict` or `sync` deals the rest out anew. All ranks get
    equally many: where the rest cannot be divided, at most size - 1 samples come twice.
    ElasticDataset and index_dataset repeat none, and their state is a few numbers instead of one
    for each sample. Used by one thread.

    Attributes:
        dataset: what was given.
        shuffle: whether the order is shuffled.
        seed: of the shuffle.
        epoch: counted from 0.
        processed_indices: the set of the samples of this epoch that were recorded.
        remaining_indices: the list of those that were not when this was reset, shuffled; the same
            on all ranks.
        num_samples: how many of them each rank gets.
        total_size: how many all ranks get together.
        rank: this process's.
        num_replicas: the number of ranks.
    """

    def __init__(self, dataset: int | Sized, shuffle: bool = True, seed: int = 0) -> None:
        """Begins with epoch 0, nothing of which is processed. All ranks give the same.

        Args:
            dataset: the data, which is asked for its length, or the number of its samples.
            shuffle: whether to shuffle, in every epoch in another way.
            seed: of the shuffle, at least 0.

        Raises:
            ValueError: the seed is negative.
            tfring.runtime.topology.NotInitializedError: tfring is not initialized.
        """
        if seed < 0:
            raise ValueError(f"the seed of a shuffle is at least 0, not {seed}")
        self.dataset = dataset
        self.shuffle = shuffle
        self.seed = seed
        self.epoch = 0
        self.processed_indices: set[int] = set()
        self.reset()

    def set_epoch(self, epoch: int) -> None:
        """Begins an epoch, nothing of which is processed.

        Args:
            epoch: counted from 0.
        """
        self.epoch = epoch
        self.processed_indices = set()
        self.reset()

    def record_batch(self, batch_idx: int, batch_size: int) -> None:
        """Records a batch of this rank as processed.

        Args:
            batch_idx: which, counted from 0 since the last reset.
            batch_size: of all batches.
        """
        self.record_indices(self.get_indices(batch_idx, batch_size))

    def record_indices(self, indices: Iterable[int]) -> None:
        """Records samples as processed.

        Args:
            indices: their numbers.
        """
        self.processed_indices.update(int(index) for index in indices)

    def get_indices(self, batch_idx: int, batch_size: int) -> list[int]:
        """Returns the numbers of the samples of a batch of this rank.

        Args:
            batch_idx: which, counted from 0 since the last reset.
            batch_size: of all batches; the last one may be smaller.
        """
        return self._mine[batch_idx * batch_size : (batch_idx + 1) * batch_size]

    def reset(self) -> None:
        """Deals what is not processed out to the ranks that there are now."""
        self.num_replicas, self.rank = topology.size(), topology.rank()
        samples = self.dataset if isinstance(self.dataset, int) else len(self.dataset)
        order = Cursor(samples, self.seed, self.shuffle, self.epoch).order()
        remains = np.ones(samples, dtype=bool)
        remains[np.fromiter(self.processed_indices, dtype=np.int64)] = False
        self.remaining_indices: list[int] = order[remains[order]].tolist()
        self.num_samples = math.ceil(len(self.remaining_indices) / self.num_replicas)
        self.total_size = self.num_samples * self.num_replicas
        again = itertools.islice(itertools.cycle(self.remaining_indices), self.total_size)
        self._mine = list(itertools.islice(again, self.rank, None, self.num_replicas))

    def state_dict(self) -> dict[str, Any]:
        """Returns the epoch and the list of what this rank has recorded."""
        return {"epoch": self.epoch, "processed_indices": sorted(self.processed_indices)}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Goes to where a sampler was, and deals the rest out anew.

        Args:
            state_dict: what `state_dict` returned.
        """
        self.epoch = state_dict["epoch"]
        self.processed_indices = set(state_dict["processed_indices"])
        self.reset()

    def sync(self) -> None:
        """Takes what all ranks have recorded in the last epoch that any has begun. A collective.

        Raises:
            tf.errors.FailedPreconditionError: tfring is not initialized.
        """
        mine = np.array([self.epoch, *sorted(self.processed_indices)], dtype=np.int64)
        everywhere = allgather_numbers(mine, name="tfring.data.sampler")
        epoch = max(int(numbers[0]) for numbers in everywhere)
        processed = np.concatenate([numbers[1:] for numbers in everywhere if numbers[0] == epoch])
        self.load_state_dict({"epoch": epoch, "processed_indices": processed.tolist()})

    def __iter__(self) -> Iterator[int]:
        """Yields the numbers of this rank's samples."""
        return iter(self._mine)

    def __len__(self) -> int:
        """How many samples this rank gets."""
        return self.num_samples
