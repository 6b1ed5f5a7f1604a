"""ShardedState: one state of an optimizer, divided among the ranks (shard_states=True)."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import tensorflow as tf

from tfring.collectives import rooted
from tfring.runtime import process_sets, topology
from tfring.training.shards import EqualShards, OwnedShards, join_parts


@dataclasses.dataclass(frozen=True)
class ShardedState:
    """A state that is divided among the ranks, such as a momentum."""

    own: Any  # the variable with this rank's part
    shape: tuple[int, ...]  # of the whole state
    shards: EqualShards | OwnedShards
    members: process_sets.ProcessSet

    @property
    def dtype(self) -> Any:
        """The dtype of the state."""
        return self.own.dtype

    @property
    def path(self) -> str:
        """Its name, for messages."""
        return str(self.own.path)

    def gather(self, root: int, name: str) -> Any:
        """Returns the whole state on one rank, None on the others; a collective."""
        value = tf.reshape(tf.convert_to_tensor(self.own.value), [-1])
        parts = rooted.gather(
            value, root, name=name, process_set=self.members, ignore_name_scope=True
        )
        if topology.rank() != root:
            return None
        return join_parts(parts, tf.TensorShape(self.shape)).numpy()

    def scatter(self, whole: Any, root: int, name: str) -> None:
        """Gives each rank its part of the whole state that one rank has; a collective."""
        own = tf.convert_to_tensor(self.own.value)
        rows, splits = tf.reshape(own, [-1]), None
        if topology.rank() == root:
            rows = self.shards.flat(tf.convert_to_tensor(whole))
            splits = self.shards.splits(math.prod(self.shape))
        part = rooted.scatter(
            rows, root, splits, name, process_set=self.members, ignore_name_scope=True
        )
        self.own.assign(tf.reshape(part, own.shape))
