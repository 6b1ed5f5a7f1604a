"""Each rank's part of a dataset of Ray Data, as a tf.data.Dataset."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import ray

# A rank's parts of datasets of Ray Data, by the dataset's name.
Shards = Mapping[str, Any]


class _Here:
    """The parts of this process while it runs a function. Of its main thread."""

    shards: ClassVar[Shards] = {}


def split(datasets: Mapping[str, Any], nodes: Sequence[str]) -> list[Shards]:
    """Returns the parts of each rank; all ranks get the same number of rows.

    Rows are read while the ranks take them. A rank first gets those on its node.

    Args:
        datasets: datasets of Ray Data, by name.
        nodes: the node id of each rank.
    """
    parts = {
        name: dataset.streaming_split(len(nodes), equal=True, locality_hints=list(nodes))
        for name, dataset in datasets.items()
    }
    return [
        {name: of_ranks[rank] for name, of_ranks in parts.items()} for rank in range(len(nodes))
    ]


def use_shards(shards: Shards) -> None:
    """Sets the parts of this process, by the name of the dataset; empty: none."""
    _Here.shards = shards


def iterator_shard(name: str = "train") -> Any:
    """Returns this rank's part of a dataset as Ray's `DataIterator`.

    Args:
        name: the dataset's name: as given to `RayExecutor.run(..., datasets=...)`, or to a trainer
            of Ray Train.

    Raises:
        KeyError: there is no such dataset.
    """
    shards = _Here.shards
    if name in shards:
        return shards[name]
    if not shards:
        found = _train_shard(name)
        if found is not None:
            return found
    there = ", ".join(sorted(shards)) or "none"
    raise KeyError(
        f"this rank has no part of a dataset named {name!r}; it has parts of: {there}. Pass the "
        f"dataset to RayExecutor.run(fn, datasets={...}), or to the trainer of Ray Train"
    )


def dataset_shard(
    name: str = "train",
    *,
    feature_columns: str | list[str],
    label_columns: str | list[str],
    batch_size: int = 32,
    **options: Any,
) -> Any:
    """Returns this rank's part of a dataset as a tf.data.Dataset of batches.

    All ranks have the same number of rows, so the same number of batches. Each iteration reads the
    dataset again, so all ranks must iterate equally often.

    Args:
        name: the dataset's name.
        feature_columns: the column for the model's input. Several columns make a dictionary.
        label_columns: the same for the labels.
        batch_size: rows of a batch of this rank.
        **options: further arguments of `ray.data.DataIterator.to_tf`.

    Raises:
        KeyError: there is no such dataset.
    """
    shard = iterator_shard(name)
    return shard.to_tf(feature_columns, label_columns, batch_size=batch_size, **options)


def _train_shard(name: str) -> Any:
    """Returns Ray Train's part for this worker; None outside of Ray Train."""
    try:
        return ray.train.get_dataset_shard(name)
    except (AttributeError, KeyError, RuntimeError):
        return None
