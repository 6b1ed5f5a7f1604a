"""Small functions that Horovod scripts import besides the collectives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def check_num_rank_power_of_2(num_rank: int) -> bool:
    """Whether the number is a power of two. tfring's Adasum takes any number of ranks."""
    return num_rank > 0 and num_rank & (num_rank - 1) == 0


def split_list(items: Sequence[Any], count: int) -> list[Sequence[Any]]:
    """Cuts a sequence into `count` consecutive parts; the first may be longer by one."""
    share, rest = divmod(len(items), count)
    starts = [i * share + min(i, rest) for i in range(count + 1)]
    return [items[starts[i] : starts[i + 1]] for i in range(count)]


def gpu_available(ext_base_name: str, verbose: bool = False) -> bool:
    """Whether TensorFlow sees a GPU and may use it.

    Args:
        ext_base_name: "tensorflow"; tfring supports nothing else.
        verbose: accepted for Horovod scripts.
    """
    del verbose
    if ext_base_name != "tensorflow":
        return False
    import tensorflow as tf

    return bool(tf.config.get_visible_devices("GPU"))
