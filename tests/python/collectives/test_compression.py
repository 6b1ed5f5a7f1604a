"""What compressions send, and that decompression gives the input back."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tfring.collectives.compression import Compression, Compressor


@pytest.mark.parametrize("dtype", [tf.float16, tf.bfloat16, tf.float32, tf.float64])
@pytest.mark.parametrize(
    ("compression", "wire"),
    [
        (Compression.none, None),
        (Compression.fp16, tf.float16),
        (Compression.bf16, tf.bfloat16),
    ],
)
def test_floating_dtypes_go_and_come_back(compression: Any, wire: Any, dtype: Any) -> None:
    tensor = tf.constant([1.0, -2.5, 0.125], dtype)
    sent, context = compression.compress(tensor)
    assert sent.dtype == (wire or dtype)
    back = compression.decompress(sent, context)
    assert back.dtype == dtype
    np.testing.assert_array_equal(tf.cast(back, tf.float64), [1.0, -2.5, 0.125])


def test_the_interface_must_be_filled_in() -> None:
    class Half(Compressor):
        @staticmethod
        def compress(tensor: Any) -> tuple[Any, Any]:
            return tensor / 2, None

    sent, context = Half.compress(tf.constant([4.0]))
    assert sent.numpy() == 2.0
    with pytest.raises(NotImplementedError, match="decompress"):
        Half.decompress(sent, context)
