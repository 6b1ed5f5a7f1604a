"""How often this rank has gone through data that `shard` has made, and how ranks get in step."""

from __future__ import annotations

import itertools
import threading
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf


class Passes:
    """Counts the iterations over one dataset that tf.data shuffles anew in each of them.

    The order of an iteration depends on how many were begun before, so ranks that have begun
    different numbers of them take samples that do not belong together. tf.data counts on its own
    threads; the rest is for the thread that trains. Lives as long as the dataset that
    `count` returned, and everything made from it.

    Attributes:
        number: the same on all ranks for data of the same call of `shard`.
    """

    def __init__(self, shuffled: tf.data.Dataset, number: int) -> None:
        """Prepares the count.

        Args:
            shuffled: what is iterated; gives another order each time.
            number: which call of `shard` this is.
        """
        self.number = number
        self._shuffled = shuffled
        with tf.device("CPU:0"):
            self._begun = tf.Variable(0, dtype=tf.int64, trainable=False)

    def count(self, samples: int) -> tf.data.Dataset:
        """Returns the dataset whose iterations are counted.

        Args:
            samples: how many elements it has; negative as in tf.data if that is not known.
        """

        def begin(_: Any) -> tf.data.Dataset:
            self._begun.assign_add(1)
            return self._shuffled

        counted = tf.data.Dataset.range(1).flat_map(begin)
        if samples != tf.data.UNKNOWN_CARDINALITY:
            counted = counted.apply(tf.data.experimental.assert_cardinality(samples))
        counted._tfring_passes = self
        with _lock:
            _alive[self.number] = self
        return counted

    @property
    def begun(self) -> int:
        """How many iterations were begun on this rank."""
        return int(self._begun)

    def skip_to(self, begun: int) -> None:
        """Makes the next iteration the one that follows `begun` others."""
        for _ in range(begun - self.begun):
            next(iter(self._shuffled), None)  # this and any shuffle before it go on to a new order
        self._begun.assign(max(begun, self.begun))


_lock = threading.Lock()  # guards what follows
_alive: weakref.WeakValueDictionary[int, Passes] = weakref.WeakValueDictionary()  # by number
_numbers = itertools.count()


def options() -> tf.data.Options:
    """Returns the options of data that ranks iterate in the same order."""
    options = tf.data.Options()
    options.deterministic = True
    # An iterator can be saved though the count of iterations is no part of it.
    options.experimental_external_state_policy = tf.data.experimental.ExternalStatePolicy.WARN
    return options


def first(data: tf.data.Dataset) -> list[Any]:
    """Returns the first element of a dataset, in a list, or [].

    Without the thread that tunes an iterator, for whose end its destructor may wait for seconds.
    """
    options = tf.data.Options()
    options.autotune.enabled = False
    return list(data.take(1).with_options(options))


def next_number() -> int:
    """Returns a number that this process has given to no data yet."""
    with _lock:
        return next(_numbers)


def agree_on(numbers: Sequence[int]) -> int:
    """Returns one number for the data that got these on the ranks, and none below it later.

    Args:
        numbers: what `next_number` returned on each rank.
    """
    global _numbers
    agreed = max(numbers)
    with _lock:
        _numbers = itertools.count(max(agreed + 1, next(_numbers)))
    return agreed


def begun() -> dict[str, int]:
    """Returns how many iterations this rank has begun over each of its data, by their numbers."""
    with _lock:
        known = list(_alive.values())
    return {str(passes.number): passes.begun for passes in known}


def catch_up(everywhere: Sequence[Mapping[str, int]]) -> None:
    """Lets this rank leave out the iterations that others have begun and this one has not.

    To be called on all ranks while none iterates.

    Args:
        everywhere: what `begun` returned on each rank.
    """
    with _lock:
        known = list(_alive.values())
    for passes in known:
        counts = [each.get(str(passes.number)) for each in everywhere]
        passes.skip_to(max(count for count in counts if count is not None))
