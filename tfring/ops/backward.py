"""How much this rank's loss counts in the backward pass that a thread runs or traces.

Where ranks count by what their losses divide by (docs/adr/0072), a tape or an optimizer multiplies
rank i's gradients by its number d_i. Behind a collective they hold parts of all ranks' losses. So
the gradient of a collective counts the loss of rank j d_j / d_i times.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf


class _Pass(threading.local):
    """The backward pass that this thread runs or traces."""

    count: Callable[[], Any] | None = None


_pass = _Pass()


@contextlib.contextmanager
def counted(count: Callable[[], Any]) -> Iterator[None]:
    """Within this context gradients of collectives count ranks.

    Args:
        count: returns d of this rank, or None where ranks count alike; called if a gradient asks.
    """
    before, _pass.count = _pass.count, count
    try:
        yield
    finally:
        _pass.count = before


def weighted(
    gradients: Sequence[Any], exchange: Callable[[list[Any]], Sequence[Any]]
) -> Sequence[Any]:
    """Returns what an exchange with other ranks makes of gradients of their losses.

    Args:
        gradients: of this rank's loss, of one dtype.
        exchange: linear in them; gets float32 for 16 bits, whose range a product may leave.
    """
    given = None if _pass.count is None else _pass.count()
    if given is None:
        return exchange(list(gradients))
    narrow = gradients[0].dtype in (tf.float16, tf.bfloat16)
    wide = tf.float32 if narrow else gradients[0].dtype
    count = tf.cast(tf.reshape(tf.convert_to_tensor(given), []), wide)
    found = exchange([tf.math.multiply_no_nan(tf.cast(g, wide), count) for g in gradients])
    return [tf.cast(tf.math.divide_no_nan(g, count), gradients[0].dtype) for g in found]
