"""Encodes gradients before they are sent, and decodes them after.

Users can write their own: subclass `Compressor`, and pass as `compression=` the class, or an object
if it has parameters or state.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

__all__ = ["BF16Compressor", "Compression", "Compressor", "FP16Compressor", "NoneCompressor"]


class Compressor:
    """Interface of a compression: a class with static methods, or an object.

    The context carries what `decompress` needs. The dtype and shape of a gradient alone must
    determine how it is sent, because that is decided once, when a function is traced, and must be
    equal on every rank. The results of `compress` are reduced, so the sum (or average) of
    compressed tensors must be that of the gradients. Keep state, such as the part of a gradient
    that was not sent, in tf.Variables. A compression with state for each variable also has a method
    `for_variable(variable)`. It returns the compression for the gradients of that variable, and
    makes its tf.Variables once, in a tf.init_scope, because steps are traced more than once.

    Attributes:
        for_sparse: compress the values of tf.IndexedSlices, too. The number of rows changes between
            compress and decompress, so this suits elementwise compressions.
    """

    for_sparse: bool = False

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        """Returns the tensor to send, of any reducible dtype, and a context for `decompress`."""
        raise NotImplementedError("a Compressor must define compress(tensor)")

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        """Returns the reduced tensor in the dtype and shape of the input of `compress`."""
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
    """Sends floating point tensors with the dtype of the subclass."""

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
    """tfring's compressions, under the names that scripts use."""

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor
