"""DataCursor: the place of this rank in the data of a job, and its next samples."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sized
from typing import Any

import numpy as np

from tfring.data.cursor import SAME, Cursor, Pass
from tfring.data.policies import Policy, Ramp
from tfring.runtime import _native, topology
from tfring.runtime.exceptions import tf_errors

_WHOLE = (*SAME, "epoch", "consumed")

PLAIN = "plain"  # weights for an average in which ranks weigh the same


def check_weights(weights: Any) -> None:
    """Raises ValueError unless `weights` is valid for ElasticDataset and index_dataset."""
    if weights not in (None, True, False, PLAIN):
        raise ValueError(f'weights must be True, False, None or "{PLAIN}", not {weights!r}')


class DataCursor:
    """Divides the samples of every epoch among the ranks, and knows which were trained on.

    Reading does not move it; `commit` does, after a step. Samples that were read but not committed
    are read again after `load_state_dict`, by the ranks of that time. Several threads may use it.

    Attributes:
        samples: the number of samples.
        policy: of batch and learning rate.
        applied: the factor in the optimizer's learning rate, set by CursorCallback.
    """

    def __init__(
        self,
        samples: int | Sized,
        policy: Policy | int,
        *,
        shuffle: bool = True,
        seed: int = 0,
        drop_remainder: bool = False,
        rank: int | None = None,
        size: int | None = None,
    ) -> None:
        """Begins at epoch 0. All arguments but `rank` must be equal on all ranks.

        Args:
            samples: the number of samples, or the data itself, whose length is used.
            policy: of batch and learning rate; a number means samples of a step on all ranks.
            shuffle: whether to shuffle each epoch, in a different order each time.
            seed: of the shuffle.
            drop_remainder: leave out the last samples of an epoch if they do not fill a batch;
                different ones in every epoch.
            rank: the rank whose part this is; by default this process's.
            size: the number of ranks; by default the job's.

        Raises:
            ValueError: there are no samples, or less than a batch with `drop_remainder`; or the
                seed is negative.
            NotInitializedError: no size was given, and tfring is not initialized.
        """
        self.samples = samples if isinstance(samples, int) else len(samples)
        self.policy = Policy(policy) if isinstance(policy, int) else policy
        if self.samples < 1 or seed < 0:
            raise ValueError(
                f"data needs at least one sample and a seed of at least 0, not {self.samples} and "
                f"{seed}"
            )
        self.applied = 1.0
        self._drop = drop_remainder
        self._lock = threading.RLock()  # guards the attributes below
        self._position = Cursor(self.samples, seed, shuffle)
        self._ramp = Ramp()
        self._pass: Pass | None = None  # the current pass, unless it was given up
        self._committed = 0  # its committed steps
        self._read = False  # whether it was read to its end
        self._order: tuple[int, Any] = (-1, None)  # of an epoch
        self._rank, self._size = 0, 1
        self.resize(rank, size)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _lock=threading.RLock())

    @property
    def epoch(self) -> int:
        """The epoch of the next sample to be committed, counted from 0."""
        with self._lock:
            return self._position.epoch

    @property
    def consumed(self) -> int:
        """How many samples of this epoch are in committed steps."""
        with self._lock:
            return self._position.consumed

    @property
    def rank(self) -> int:
        """The rank whose part this is."""
        return self._rank

    @property
    def size(self) -> int:
        """The number of ranks."""
        return self._size

    @property
    def steps_per_epoch(self) -> int:
        """The number of batches of a whole epoch with the current ranks."""
        with self._lock:
            return self._dealt(self._position.at(0), None).steps

    @property
    def pass_is_done(self) -> bool:
        """Whether all steps of the current pass are committed."""
        with self._lock:
            return self._pass is not None and self._committed == self._pass.steps

    @property
    def rate_factor(self) -> float:
        """The factor of the learning rate in the next step."""
        with self._lock:
            return self._ramp.factor

    def begin(self) -> Pass:
        """Returns what to read next: the rest of this epoch, or the whole next one.

        If a pass was read to its end without any commit, it counts as trained when the next one
        begins. So a loop that commits nothing goes through all epochs.
        """
        with self._lock:
            self.end()
            self._position = self._with_steps(self._position)
            self._pass = self._dealt(self._position, self._order_of(self._position))
            self._committed, self._read = 0, False
            return self._pass

    def whole_epoch(self) -> Pass:
        """Returns the whole epoch of the cursor, without moving it."""
        with self._lock:
            return self._dealt(self._position.at(0), self._order_of(self._position))

    def read_to_the_end(self, passed: Pass) -> None:
        """Notes that the last batch of a pass was read; ignores a pass that was given up."""
        with self._lock:
            self._read = self._read or passed is self._pass

    def commit(self, steps: int = 1) -> None:
        """Counts steps as done. Call it on every rank after the weights were updated.

        Args:
            steps: how many; steps beyond the end of the epoch are ignored.

        Raises:
            RuntimeError: nothing was read since the cursor was made, loaded or resized.
        """
        with self._lock:
            if self._pass is None:
                raise RuntimeError(
                    f"rank {self._rank}: a step was committed, but no batch was read since the "
                    "data was loaded or resized. Start a new iteration first"
                )
            before = self._committed
            self._committed = min(before + steps, self._pass.steps)
            self._position = self._pass.after(self._committed)
            self._ramp = self._ramp.after(self._committed - before)

    def end(self) -> None:
        """Notes that a loop has read to its end; see `begin`."""
        with self._lock:
            if self._read and self._committed == 0 and self._pass is not None:
                self.commit(self._pass.steps)

    def resize(self, rank: int | None = None, size: int | None = None) -> None:
        """Divides the uncommitted samples among other ranks. Start a new iteration afterwards.

        Args:
            rank: this process's; by default the current `tfring.rank()`.
            size: the number of ranks; by default the current `tfring.size()`.

        Raises:
            ValueError: there is no such rank, or too few samples for a batch.
            NotInitializedError: no size was given, and tfring is not initialized.
        """
        size = topology.size() if size is None else size
        rank = topology.rank() if rank is None else rank
        batch = self.policy.global_batch(size)
        if not 0 <= rank < size:
            raise ValueError(f"there is no rank {rank} among {size} ranks")
        if self._drop and self.samples < batch:
            raise ValueError(
                f"rank {rank}: {self.samples} samples do not fill a batch of {batch}, so with "
                "drop_remainder=True nothing is left to train on"
            )
        with self._lock:
            self._rank, self._size, self._pass = rank, size, None
            self._ramp = self._ramp.toward(self.policy.factor(size), self.policy.ramp_steps)

    def state_dict(self) -> dict[str, Any]:
        """Returns the state to save, as numbers and lists: only what is committed."""
        with self._lock:
            now, ramp = self._position, self._ramp
            return {
                "samples": now.samples,
                "seed": now.seed,
                "shuffle": now.shuffle,
                "epoch": now.epoch,
                "consumed": now.consumed,
                "ramp": [ramp.start, ramp.goal, ramp.steps, ramp.done],
                "applied": self.applied,
            }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes to the place of a cursor of this job or another, with any number of ranks.

        Args:
            state: the result of `state_dict`.

        Raises:
            ValueError: the place is within an epoch of other data: a different number of samples,
                seed or shuffle.
        """
        with self._lock:
            self._position = self._with_steps(self._position.saved(state))
            if "ramp" in state:  # data of `shard` has no ramp
                self._ramp, self.applied = Ramp(*state["ramp"]), state["applied"]
            self.resize(self._rank, self._size)

    def sync(self) -> None:
        """Goes to the place of the rank that is furthest ahead. A collective.

        Raises:
            ValueError: on every rank: the ranks differ in samples, seed or shuffle.
            tf.errors.FailedPreconditionError: tfring is not initialized.
        """
        mine = _packed(self.state_dict())
        with tf_errors():
            _native.note_call_site()
            together = _native.core.allgather(mine, name="tfring.data.cursor")
        states = [_unpacked(numbers) for numbers in together.reshape(-1, mine.size)]
        for name in SAME:
            values = [state[name] for state in states]
            if len(set(values)) > 1:
                listed = ", ".join(f"rank {rank}: {value}" for rank, value in enumerate(values))
                raise ValueError(
                    f"rank {self._rank}: the ranks' data differ in {name} ({listed}). Give all "
                    "ranks the same samples, seed and shuffle"
                )
        self.load_state_dict(max(states, key=lambda state: (state["epoch"], state["consumed"])))

    def _with_steps(self, place: Cursor) -> Cursor:
        """Returns the place, or the next epoch if this one has no batch left."""
        return place if self._dealt(place, None).steps else place.next_epoch()

    def _dealt(self, start: Cursor, order: Any) -> Pass:
        batch = self.policy.global_batch(self._size)
        return Pass(start, order, batch, self._rank, self._size, self._drop)

    def _order_of(self, place: Cursor) -> Any:
        """Returns the order of an epoch; keeps the last one."""
        if self._order[0] != place.epoch:
            self._order = place.epoch, place.order()
        return self._order[1]


def _packed(state: Mapping[str, Any]) -> Any:
    """Returns a state_dict as int64; floats keep their bits."""
    begin, goal, steps, done = state["ramp"]
    whole = [*(state[name] for name in _WHOLE), steps, done]
    bits = np.array([begin, goal, state["applied"]], dtype=np.float64).view(np.int64)
    return np.concatenate([np.array(whole, dtype=np.int64), bits])


def _unpacked(numbers: Any) -> dict[str, Any]:
    *whole, steps, done = (int(number) for number in numbers[: len(_WHOLE) + 2])
    begin, goal, applied = numbers[len(_WHOLE) + 2 :].view(np.float64).tolist()
    ramp = [begin, goal, steps, done]
    return {**dict(zip(_WHOLE, whole, strict=True)), "ramp": ramp, "applied": applied}
