"""Checks that the ranks gave the same data to `shard` or `shard_batches`."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import tensorflow as tf

from tfring.collectives import objects
from tfring.data.sharding import passes
from tfring.runtime import topology


def digest(values: Any) -> str:
    """Returns a hash of the bytes of arrays and tensors, in a structure or not."""
    result = hashlib.blake2b(digest_size=8)
    for leaf in tf.nest.flatten(values, expand_composites=True):
        array = np.asarray(leaf)
        held = repr(array.tolist()).encode() if array.dtype == object else array.tobytes()
        result.update(f"{array.dtype} {array.shape} {len(held)} ".encode() + held)
    return result.hexdigest()


def require(caller: str, mine: dict[str, Any]) -> int:
    """Raises ValueError on all ranks if one of them gave something else; a collective.

    Args:
        caller: `shard` or `shard_batches`.
        mine: this rank's values, by name; JSON.

    Returns:
        The number of this call, equal on all ranks.
    """
    everywhere = objects.allgather_json([passes.next_number(), mine], name=f"tfring.{caller}")
    for what in mine:
        values = [each[what] for _, each in everywhere]
        if any(value != values[0] for value in values):
            listed = ", ".join(f"rank {rank}: {value}" for rank, value in enumerate(values))
            raise ValueError(
                f"rank {topology.rank()}: {caller} got different {what} on some ranks "
                f"({listed}).\n"
                "Give every rank the whole data, the same arguments and the same "
                "tf.random.set_seed; hvd.set_random_seed(seed) sets that. A shuffle before it "
                "needs a seed. Put anything that should differ between ranks after it.\n"
                "check=False compares no rows."
            )
    return passes.agree_on([number for number, _ in everywhere])
