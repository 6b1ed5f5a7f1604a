"""Shards: how tensors are divided among ranks (ZeRO stage 1, arXiv 1910.02054).

There are two ways:

- EqualShards: a tensor of n elements is flat, has zeros behind it, and is cut into equal parts. So
  all parts of a tensor have one static shape, and a collective needs no table of sizes.
- OwnedShards: one rank has the whole tensor, the others have empty ones. For optimizers that need
  whole tensors.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfring.training.shard_moves import Range


@dataclasses.dataclass(frozen=True)
class EqualShards:
    """Cuts each tensor into `count` equal parts; this rank has number `index`."""

    count: int
    index: int

    def part_size(self, elements: int) -> int:
        """Returns the number of elements of each part, with the zeros of the last one."""
        return -(-elements // self.count)

    def splits(self, elements: int) -> list[int]:
        """Returns the number of elements in each rank's part, with the zeros of the last one."""
        return [self.part_size(elements)] * self.count

    def ranges(self, elements: int) -> list[Range]:
        """Returns which elements each rank has."""
        size = self.part_size(elements)
        firsts = [min(rank * size, elements) for rank in range(self.count + 1)]
        return list(itertools.pairwise(firsts))

    def flat(self, tensor: Any) -> Any:
        """Returns all parts of a tensor, one behind the other.

        Args:
            tensor: of known shape.
        """
        elements = tensor.shape.num_elements()
        flat = tf.reshape(tensor, [-1])
        missing = self.part_size(elements) * self.count - elements
        return tf.pad(flat, [[0, missing]]) if missing else flat

    def part(self, tensor: Any) -> Any:
        """Returns this rank's part of a tensor of known shape."""
        elements = tensor.shape.num_elements()
        first, last = self.ranges(elements)[self.index]
        return self._padded(tf.reshape(tensor, [-1])[first:last], elements)

    def part_of_slices(self, slices: tf.IndexedSlices, shape: tf.TensorShape) -> Any:
        """Returns this rank's part of a tensor that has values in some rows only.

        Only the rows of this part become dense.
        """
        first, last = self.ranges(shape.num_elements())[self.index]
        width = max(1, shape[1:].num_elements())
        row, end = first // width, -(-last // width)
        inside = (slices.indices >= row) & (slices.indices < end)
        # The sum leaves out rows of number -1.
        places = tf.where(inside, slices.indices - row, -tf.ones_like(slices.indices))
        rows = tf.math.unsorted_segment_sum(slices.values, places, end - row)
        own = tf.reshape(rows, [-1])[first - row * width : last - row * width]
        return self._padded(own, shape.num_elements())

    def _padded(self, own: Any, elements: int) -> Any:
        """Returns this rank's elements, of all `elements`, with the zeros of the last part."""
        first, last = self.ranges(elements)[self.index]
        size = self.part_size(elements)
        missing = size - (last - first)
        return tf.ensure_shape(tf.pad(own, [[0, missing]]) if missing else own, [size])


@dataclasses.dataclass(frozen=True)
class OwnedShards:
    """Of `count` ranks, rank `owner` has the whole tensor, and this rank is `index`."""

    count: int
    index: int
    owner: int

    @property
    def is_own(self) -> bool:
        """Whether this rank has the tensor."""
        return self.owner == self.index

    def splits(self, elements: int) -> list[int]:
        """Returns the number of elements on each rank."""
        return [elements if rank == self.owner else 0 for rank in range(self.count)]

    def ranges(self, elements: int) -> list[Range]:
        """Returns which elements each rank has."""
        return [(0, size) for size in self.splits(elements)]

    def flat(self, tensor: Any) -> Any:
        """Returns the tensor as one vector."""
        return tf.reshape(tensor, [-1])

    def part(self, tensor: Any) -> Any:
        """Returns the tensor on its owner, else an empty one with as many dimensions."""
        return tensor if self.is_own else tf.zeros([0] * tensor.shape.rank, tensor.dtype)


def join_parts(parts: Any, shape: tf.TensorShape) -> Any:
    """Returns a whole tensor.

    Args:
        parts: the parts of all ranks as one vector, in the order of the ranks.
        shape: of the whole tensor.
    """
    return tf.reshape(parts[: shape.num_elements()], shape)


def owners(sizes: Sequence[int], count: int) -> list[int]:
    """Returns an owner for each of some tensors, so that all ranks have about as many bytes.

    The largest tensor goes first, each to the rank that has least (LPT, Graham 1969).

    Args:
        sizes: their bytes.
        count: the number of ranks.
    """
    loads, found = [0] * count, [0] * len(sizes)
    for tensor in sorted(range(len(sizes)), key=lambda i: -sizes[i]):
        found[tensor] = loads.index(min(loads))
        loads[found[tensor]] += sizes[tensor]
    return found
