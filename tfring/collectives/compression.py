"""What is done to a gradient before it travels, and undone after.

Users can write their own: subclass `Compressor` and pass the class, or an object of it where it has
parameters or state, as `compression=`.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

__all__ = ["BF16Compressor", "Compression", "Compressor", "FP16Compressor", "NoneCompressor"]


class Compressor:
    """Interface of a compression: a class with static methods, or an object.

    What `decompress` needs travels in the context. How a gradient is sent must follow from its
    dtype and shape alone: that is decided once, when a function is traced, and must come out the
    same on every rank. What is reduced is what `compress` returned, so adding up (or averaging)
    compressed tensors must mean adding up gradients. State, such as the part of a gradient that was
    not sent, belongs into tf.Variables. A compression with state for each variable has a method
    `for_variable(variable)`, too, which returns the compression for the gradients of that variable;
    it makes its tf.Variables once, in a tf.init_scope, because steps are traced more than once.

    Attributes:
        for_sparse: compress the values of tf.IndexedSlices, too. They come with fewer or more rows
            than they leave with, so this suits compressions that work element by element.
    """

    for_sparse: bool = False

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        """Returns the tensor to send, of any reducible dtype, and a context for `decompress`."""
        raise NotImplementedError("a Compressor must define compress(tensor)")

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        """Returns the reduced tensor in the dtype and shape that `compress` was given."""
        raise NotImplementedError("a Compressor must define decompress(tensor, ctx)")


class NoneCompressor(Compressor):
    """Sends the tensor as it is."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        """As in Compressor."""
        return tensor, None

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        """As in Compressor."""
        return tensor


class _FloatCompressor(Compressor):
    """Sends floating point tensors with another dtype, that of the subclass."""

    for_sparse = True
    _dtype: Any

    @classmethod
    def compress(cls, tensor: Any) -> tuple[Any, Any]:
        """As in Compressor."""
        if not tensor.dtype.is_floating or tensor.dtype == cls._dtype:
            return tensor, None
        return tf.cast(tensor, cls._dtype), tensor.dtype

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        """As in Compressor."""
        return tensor if ctx is None else tf.cast(tensor, ctx)


class FP16Compressor(_FloatCompressor):
    """Sends floating point tensors as float16: half the bytes, values up to 65504."""

    _dtype = tf.float16


class BF16Compressor(_FloatCompressor):
    """Sends floating point tensors as bfloat16: half the bytes, the range of float32."""

    _dtype = tf.bfloat16


class Compression:
    """The compressions that come with tfring, under the names that scripts use."""

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor
