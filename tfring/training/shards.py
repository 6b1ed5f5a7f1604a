"""Shards: how tensors are cut into parts, one for each rank (ZeRO stage 1, arXiv 1910.02054).

A tensor of n elements is flat, has zeros behind it, and is cut into equal parts. So all parts of a
tensor have one static shape, and a collective needs no table of sizes.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import tensorflow as tf


@dataclasses.dataclass(frozen=True)
class Shards:
    """`count` parts of each tensor, of which this rank has number `index`."""

    count: int
    index: int

    def part_size(self, elements: int) -> int:
        """Returns the number of elements of each part, with the zeros of the last one."""
        return -(-elements // self.count)

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
        size = self.part_size(elements)
        first = min(self.index * size, elements)
        last = min(first + size, elements)
        own = tf.reshape(tensor, [-1])[first:last]
        missing = size - (last - first)
        own = tf.pad(own, [[0, missing]]) if missing else own
        return tf.ensure_shape(own, [size])

    def whole(self, parts: Any, shape: tf.TensorShape) -> Any:
        """Returns the tensor of which `parts` are all parts, one behind the other."""
        return tf.reshape(parts[: shape.num_elements()], shape)
