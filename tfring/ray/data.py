"""Each rank's part of a dataset of Ray Data, as a tf.data.Dataset."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import ray

# What Ray Data gives a rank: of each dataset its part, by the dataset's name.
Shards = Mapping[str, Any]


class _Here:
    """What this process has got, while it runs a function. Of its main thread."""

    shards: ClassVar[Shards] = {}


def split(datasets: Mapping[str, Any], nodes: Sequence[str]) -> list[Shards]:
    """Returns the parts of each rank; all ranks get the same number of rows.

    Rows are read while the ranks take them; a rank gets first what is on its node.

    Args:
        datasets: Datasets of Ray Data, by name.
        nodes: The id of the node of each rank.
    """
    parts = {
        name: dataset.streaming_split(len(nodes), equal=True, locality_hints=list(nodes))
        for name, dataset in datasets.items()
    }
    return [
        {name: of_ranks[rank] for name, of_ranks in parts.items()} for rank in range(len(nodes))
    ]


def use_shards(shards: Shards) -> None:
    """Sets what this process has got.

    Args:
        shards: Its parts, by the name of the dataset; empty: none.
    """
    _Here.shards = shards


def iterator_shard(name: str = "train") -> Any:
    """Returns this rank's part of a dataset as Ray's `DataIterator`.

    Args:
        name: The dataset's name: as given to `RayExecutor.run(..., datasets=...)`, or to a trainer
            of Ray Train.

    Raises:
        KeyError: There is no such dataset.
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
        f"this rank has no part of a dataset named {name!r}; it has parts of: {there}. Give "
        "datasets to RayExecutor.run(fn, datasets={...}), or to the trainer of Ray Train"
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

    All ranks have the same number of rows, so the same number of batches. To iterate over it again
    reads the dataset again: all ranks do that the same number of times.

    Args:
        name: The dataset's name.
        feature_columns: The column for the model's input, or several, which makes a dictionary.
        label_columns: The same for the labels.
        batch_size: Rows of a batch of this rank.
        **options: What else `ray.data.DataIterator.to_tf` takes.

    Raises:
        KeyError: There is no such dataset.
    """
    shard = iterator_shard(name)
    return shard.to_tf(feature_columns, label_columns, batch_size=batch_size, **options)


def _train_shard(name: str) -> Any:
    """Returns the part that Ray Train has for this worker; None outside of Ray Train."""
    try:
        return ray.train.get_dataset_shard(name)
    except (AttributeError, KeyError, RuntimeError):
        return None
