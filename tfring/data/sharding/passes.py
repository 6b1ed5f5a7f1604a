"""The place of training in data of `shard`, and how ranks get in step."""

from __future__ import annotations

import dataclasses
import itertools
import logging
import threading
import warnings
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfring.data.cursor import Cursor, Pass
from tfring.runtime import topology

_log = logging.getLogger("tfring")
_READ = (
    "the epoch resumes after %d elements of a tf.data.Dataset, which are read and skipped. "
    "Arrays, PyDatasets and hvd.data.ElasticDataset resume at any sample without reading"
)
_ANEW = (
    "the epoch restarts, though %d of its batches were trained: Keras 2 cannot resume within an "
    "epoch, and Keras 3 needs the number of batches for it. Set it with "
    "dataset.apply(tf.data.experimental.assert_cardinality(batches)), or a len()"
)

_SHUFFLE = "`shuffle=True` was passed, but will be ignored since the data `x` was provided as a tf"

# Ops that keep the order and the number of elements: one element is one step of training.
_STEP_BY_STEP = {
    "AssertCardinalityDataset",
    "MapDataset",
    "OptionsDataset",
    "ParallelMapDataset",
    "PrefetchDataset",
    "RepeatDataset",
}


class Passes:
    """The passes through one dataset: which one an iteration gives, and how much of it was trained.

    Each iteration of tf.data gives the pass after the previous one. `fit` says where to begin, and
    counts trained steps. So the place of training does not depend on elements that were read ahead,
    and any number of ranks can resume from it.

    A tf.data.Dataset before `shard` may have its own shuffle, whose order depends on how often the
    dataset was iterated. So this class counts iterations, too, and catches up by iterating it
    again.

    tf.data begins passes on its own threads; the rest is for the training thread. Lives as long as
    the dataset that `dataset` returned, and everything made from it.

    Attributes:
        number: equal on all ranks for data of the same call of `shard`.
        stream: whether `fit` reads on over the ends of epochs, see `of`.
        within: whether `fit` can resume within an epoch.
    """

    def __init__(
        self,
        number: int,
        start: Cursor,
        batch: int = 1,
        *,
        drop_remainder: bool = False,
        source: tf.data.Dataset | None = None,
    ) -> None:
        """Begins before the first pass.

        Args:
            number: which call of `shard` this is.
            start: the place, of samples or batches; a negative number of them if it is not known.
            batch: how many of these a step has, on all ranks together.
            drop_remainder: leave out what does not fill a batch.
            source: what every pass iterates, if its order depends on the number of iterations.
        """
        self.number, self.stream, self.within = number, False, True
        self._batch, self._drop, self._source = batch, drop_remainder, source
        self._lock = threading.Lock()  # guards the attributes below
        self._place = self._next = start  # of training; of the next iteration
        self._restored = False  # and no epoch has begun since
        self._moved = 0  # iterations of the source
        self._moved_at: dict[int, int] = {}  # by pass, at its beginning
        with _registry_lock:
            _alive[number] = self

    def dataset(self, rest: Callable[[Any, Any], tf.data.Dataset]) -> tf.data.Dataset:
        """Returns the dataset whose iterations are passes.

        Args:
            rest: a function of two tensors, the number of a pass and how much of it was trained.
                Returns what is left of it.
        """

        def place(_: Any) -> Any:
            return tf.ensure_shape(tf.numpy_function(self._begin, [], tf.int64), [2])

        def begun(at: Any) -> tf.data.Dataset:
            return rest(at[0], at[1]).with_options(options())

        # tf.data saves the place with an iterator, so a restored iterator gives this pass.
        data = tf.data.Dataset.range(1).map(place).flat_map(begun)
        steps = self._left(self._place.at(0))
        if self.ends_unknown:
            return data
        # assert_cardinality refuses the shorter pass of a resumed epoch. For tf.data this dataset
        # is endless, but it ends with the pass.
        none = tf.data.Dataset.range(1).filter(lambda _: False)
        endless = data.concatenate(none.flat_map(lambda _: data).repeat())
        return endless if steps is None else endless.take(steps)

    def begin_epoch(self, epoch: int, first: bool) -> None:
        """Lets the next iteration begin at the place of training.

        Args:
            epoch: the epoch of `fit`, counted from 0. Its pass has the same number, unless more
                passes were trained before.
            first: whether `fit` begins with it.
        """
        if self.stream and not first:
            return  # an iterator that reads ahead may have begun the next pass
        with self._lock:
            if not self._restored and not self.stream:
                self._end_pass()
                if first and epoch > self._place.epoch:
                    self._move_to(self._moved + epoch - self._place.epoch)
                    self._place = dataclasses.replace(self._place, epoch=epoch)
            self._restored = False
            self._next = self._place

    def commit(self, steps: int) -> None:
        """Counts steps as trained."""
        with self._lock:
            while steps > 0:
                left = self._left(self._place)
                done = steps if left is None else min(steps, left)
                consumed = self._place.consumed + done * self._batch
                samples = self._place.samples
                self._place = self._place.at(consumed if left is None else min(consumed, samples))
                if left == done:
                    self._place = self._place.next_epoch()
                steps -= done
            for passed in [each for each in self._moved_at if each < self._place.epoch]:
                del self._moved_at[passed]

    def end_epoch(self) -> None:
        """Notes that `fit` has ended an epoch: the rest of its pass is given up."""
        with self._lock:
            if not self.stream:
                self._end_pass()

    def trained(self, batches: int) -> int:
        """Returns how many batches of an epoch are trained, counted with the current ranks.

        Args:
            batches: trained batches, perhaps with other ranks.
        """
        with self._lock:
            left, whole = self._left(self._place), self._left(self._place.at(0))
            if not self._restored or not self.within:
                return 0
            if self.stream or left is None or whole is None:
                return batches
            at_end = batches > 0 and self._place.consumed == 0
            return whole if at_end else whole - left

    @property
    def ends_unknown(self) -> bool:
        """Whether the number of steps of a pass is unknown."""
        return bool(self._place.samples == tf.data.UNKNOWN_CARDINALITY)

    def begun(self) -> list[int]:
        """Returns the next pass, and the number of iterations of the source."""
        with self._lock:
            return [self._next.epoch, self._moved]

    def catch_up(self, begun: Sequence[Sequence[int]]) -> None:
        """Skips what other ranks have begun: their results of `begun`."""
        with self._lock:
            while self._next.epoch < max(epoch for epoch, _ in begun):
                self._next = self._next.next_epoch()
            self._move_to(max(moved for _, moved in begun))

    def state_dict(self) -> dict[str, Any]:
        """Returns the place of training, for a checkpoint."""
        with self._lock:
            begun = self.stream or self._place.consumed > 0
            moved = self._moved_at.get(self._place.epoch) if begun else None
            place = dataclasses.asdict(self._place)
            return {**place, "moved": self._moved if moved is None else moved}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes to a saved place of training, with any number of ranks.

        Args:
            state: the result of `state_dict`, of this or another process.

        Raises:
            ValueError: the place is within a pass through other data.
        """
        with self._lock:
            place = self._place.saved(state)
            trained, consumed = place.consumed, place.consumed if self.within else 0
            place = place.at(consumed)
            self._place = place.next_epoch() if self._left(place) == 0 else place
            self._next, self._restored = self._place, True
            self._moved_at.clear()
            if trained > consumed and topology.rank() == 0:
                _log.warning(_ANEW, trained // self._batch)
            elif consumed and self._source is not None and topology.rank() == 0:
                _log.warning(_READ, consumed)
            self._move_to(state.get("moved", 0))

    def _begin(self) -> Any:
        """Begins a pass: returns its number and what was trained of it; on threads of tf.data."""
        with self._lock:
            begun = self._next
            self._next = begun.next_epoch()
            self._moved_at[begun.epoch] = self._moved
            if self._source is not None:
                self._moved += 1
            return np.array([begun.epoch, begun.consumed], np.int64)

    def _end_pass(self) -> None:
        if self._place.consumed > 0:
            self._place = self._place.next_epoch()

    def _left(self, place: Cursor) -> int | None:
        """Returns the steps from a place to the end of its pass; None if unknown."""
        if place.samples < 0:
            return None
        return Pass(place, None, self._batch, 0, 1, self._drop).steps

    def _move_to(self, moved: int) -> None:
        if self._source is None:
            return
        for _ in range(moved - self._moved):
            next(iter(self._source), None)  # moves a shuffle in it to a new order
        self._moved = max(moved, self._moved)


def of(data: Any, *, stream: bool, within: bool) -> Passes | None:
    """Returns the passes of the data of `fit`, if the place in them is known.

    It is known if each element of the data is a step of a pass, and the end of a pass is known or
    is that of an epoch.

    Args:
        data: anything.
        stream: whether an iterator goes on over epochs (`steps_per_epoch`), so epochs need not be
            passes.
        within: whether `fit` can end an epoch early, so it can resume within one.
    """
    while isinstance(data, tf.data.Dataset):
        passes: Passes | None = getattr(data, "_tfring_passes", None)
        if passes is not None:
            # Keras would take the remaining batches of the first epoch for the number of all
            # epochs.
            passes.stream, passes.within = stream, within and not passes.ends_unknown
            return None if stream and passes.ends_unknown else passes
        inputs = data._inputs()
        if len(inputs) != 1 or type(data).__name__.lstrip("_") not in _STEP_BY_STEP:
            return None
        [data] = inputs
    return None


def endings(data: tf.data.Dataset, passes: Passes | None) -> tf.data.Dataset:
    """Returns the result of `shard`: read ahead, in the same order on all ranks.

    Keras warns that `fit` does not shuffle such a dataset, because shuffle=True is the default.
    `shard` shuffles, so this hides that warning from now on.

    Args:
        data: this rank's batches.
        passes: through them, if it is data to train on.
    """
    warnings.filterwarnings("ignore", _SHUFFLE, UserWarning)
    data = data.prefetch(tf.data.AUTOTUNE).with_options(options())
    if passes is not None:
        data._tfring_passes = passes
    return data


_registry_lock = threading.Lock()  # guards the registry below
_alive: weakref.WeakValueDictionary[int, Passes] = weakref.WeakValueDictionary()  # by number
_numbers = itertools.count()


def options() -> tf.data.Options:
    """Returns the options of data that ranks iterate in the same order."""
    options = tf.data.Options()
    options.deterministic = True
    # An iterator can be saved, although the place of training is not part of it.
    options.experimental_external_state_policy = tf.data.experimental.ExternalStatePolicy.WARN
    return options


def first(data: tf.data.Dataset) -> list[Any]:
    """Returns the first element of a dataset, in a list, or [].

    Without the thread that tunes an iterator: its destructor may wait seconds for that thread.
    """
    options = tf.data.Options()
    options.autotune.enabled = False
    return list(data.take(1).with_options(options))


def next_number() -> int:
    """Returns a number that this process has not yet given to any data."""
    with _registry_lock:
        return next(_numbers)


def agree_on(numbers: Sequence[int]) -> int:
    """Returns one number for the data that got these numbers, and blocks lower ones.

    Args:
        numbers: the results of `next_number`, by rank.
    """
    global _numbers
    agreed = max(numbers)
    with _registry_lock:
        _numbers = itertools.count(max(agreed + 1, next(_numbers)))
    return agreed


def begun() -> dict[str, list[int]]:
    """Returns the results of `begun` of all data of this rank, by number."""
    with _registry_lock:
        known = list(_alive.values())
    return {str(passes.number): passes.begun() for passes in known}


def catch_up(everywhere: Sequence[Mapping[str, list[int]]]) -> None:
    """Skips what others have begun and this rank has not.

    Call it on all ranks while none iterates.

    Args:
        everywhere: the results of `begun`, by rank.
    """
    with _registry_lock:
        known = list(_alive.values())
    for passes in known:
        everybodys = [each.get(str(passes.number)) for each in everywhere]
        passes.catch_up([each for each in everybodys if each is not None])
