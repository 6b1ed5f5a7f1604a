"""StateParts: sharded states (shard_states=True) of an elastic training, and copies of the parts.

With each commit a rank sends its part to the rank that holds its copy (training/shard_moves.py).
All ranks take part in this exchange, and a commit counts on a rank only after it. So when a rank
has completed the exchange of a commit, all others have that of the commit before: it keeps the
versions of these two.

When the ranks change they compare what they have, go on with the newest complete version, and send
each other what is missing. The optimizers then get new variables for the new number of ranks.
"""

from __future__ import annotations

import math
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfring.collectives import objects
from tfring.collectives.alltoall import alltoall
from tfring.elastic import process as processes
from tfring.elastic.progress import Progress
from tfring.keras import facts
from tfring.keras.gradient_hook import find_hook
from tfring.keras.model_optimizers import sharded_hooks
from tfring.keras.sharded_state import ShardedState
from tfring.keras.state_shards import StateShards
from tfring.runtime import memory, topology
from tfring.runtime.settings.environment import read_settings
from tfring.training import shard_moves
from tfring.training.shard_moves import Choice, Held, Move, Offer, Range, Version, Versions

_NAME = "tfring.elastic.states"

Part = list[Any]  # a vector for each state, without the zeros behind the last one


class StateParts:
    """This rank's parts of the sharded states of a model, and its copies of other ranks' parts."""

    def __init__(self, model: Any, optimizer: Any) -> None:
        """Takes a model, and an optimizer or None. `find` looks for all optimizers."""
        self._model, self._optimizer = model, optimizer
        self._shards: list[StateShards] = []
        self._states: list[ShardedState] = []
        self._versions: Versions[Part] = Versions()
        self._lineage = 0  # of the training that they belong to
        self._steps: int | None = None  # that the optimizers had done at the newest version
        self._built = 0  # optimizers that had states when they were searched
        self._holders: list[list[int]] = []  # for each rank, those that have copies of its part

    def find(self) -> None:
        """Finds the sharded states, which takes longer than to copy them."""
        hooks = sharded_hooks(self._model)
        given = find_hook(self._optimizer)
        if given is not None and given.shards is not None and given not in hooks:
            hooks.append(given)
        self._shards = [hook.shards for hook in hooks]
        self._states = [state for one in self._shards for state in one.states().values()]
        self._built = self._count_built()

    def _count_built(self) -> int:
        return sum(shards.built for shards in self._shards)

    def __bool__(self) -> bool:
        """Whether the model has an optimizer with sharded states, in an elastic job."""
        return bool(self._shards) and processes.present() is not None

    @property
    def steps(self) -> int:
        """How many steps the optimizers have done."""
        return sum(shards.steps for shards in self._shards)

    def describe(self) -> list[str]:
        """Says what the states are: the same on all ranks."""
        return [f"sharded state {s.dtype} {s.shape}" for s in self._states]

    def exchange(self, progress: Progress) -> None:
        """Makes a version of the present states, for the commit after `progress`. A collective.

        Before the first `take` the ranks have no copies, and go on with what they have.

        Raises:
            RuntimeError: the states are not divided among the present ranks yet.
        """
        if not self._holders:
            return
        count, rank = topology.size(), topology.rank()
        if any(shards.divided != (count, rank) for shards in self._shards):
            raise RuntimeError(
                f"rank {rank}: this commit comes before the optimizer states are divided among "
                f"the {count} present ranks (shard_states=True).\nDo not commit in a reset "
                "callback: the function that you gave to hvd.elastic.run may, when it begins."
            )
        if self._count_built() != self._built:  # another optimizer has done its first step
            self.find()
        parts = self._with_copies({rank: self._own()}, self._holders)
        self._begin(progress.lineage)
        self._versions.add(Version(progress.commit + 1, _generation(), count), parts)
        self._steps = self.steps

    def settle(self) -> None:
        """Forgets all versions but the newest, which all ranks have."""
        self._versions.settle()
        self._note_memory()

    def spread(self) -> None:
        """Gives all ranks all parts of the newest version: any rank may leave. A collective."""
        ranks = range(topology.size())
        if self._versions.kept:
            _, parts = self._versions.kept[-1]
            everyone = [[other for other in ranks if other != rank] for rank in ranks]
            parts.update(self._with_copies(parts, everyone))

    def refuse_other_steps(self, steps: int) -> None:
        """Raises RuntimeError if the weights that were saved are not of the newest version.

        Args:
            steps: that the optimizers had done when the weights were saved.
        """
        if self._steps not in (None, steps):
            raise RuntimeError(
                f"rank {topology.rank()}: state.save() has kept weights after {steps} steps, and "
                f"the optimizer states (shard_states=True) are those after {self._steps}.\nCall "
                "state.commit(), which keeps both."
            )

    def choose(self, progress: Progress) -> Choice:
        """Compares what the ranks have. A collective."""
        self._begin(progress.lineage)
        if not self._versions.kept and (progress.lineage == 0 or progress.copied):
            # Only then the live states belong to the weights.
            count, index = self._shards[0].divided
            self._versions.add(Version(progress.commit, 0, count), {index: self._own()})
        mine = Offer(progress.lineage, progress.commit, self.steps, self._versions.held())
        offers = objects.allgather_json(mine, f"{_NAME}.offers")
        return shard_moves.choose([_offer_of(each) for each in offers])

    def take(self, choice: Choice, progress: Progress) -> bool:
        """Divides the states among the present ranks, and takes those of a version. A collective.

        Args:
            choice: what `choose` has returned.
            progress: of the weights, which belong to it.

        Returns:
            Whether functions that were traced before are of no use any more.
        """
        self._holders = _present_holders()
        before = choice.version
        if choice.lost:  # versions stay: if the next ranks compare, these parts are lost still
            return self._divide()
        self._lineage, self._steps = progress.lineage, None
        if before is None:
            self._versions.kept = []
            changed = self._divide()
            for shards in self._shards:
                shards.begin()
            return changed
        if not choice.held[topology.rank()]:
            self._versions.kept = []  # it would be of another training
        parts = self._move(before, choice.held, self._versions.parts_of(before))
        changed = self._divide()
        self._assign(parts[topology.rank()])
        made = Version(before.commit, _generation(), topology.size())
        self._versions.move(before, made, parts)
        self._note_memory()
        return changed

    def _note_memory(self) -> None:
        """Tells the record what the versions take."""
        kept = [part for _, parts in self._versions.kept for part in parts.values()]
        size = sum(facts.bytes_of(value) for part in kept for value in part)
        memory.note(self, memory.Held(0, 0, size))

    def _begin(self, lineage: int) -> None:
        """Forgets versions of another training."""
        if self._lineage != lineage:
            self._versions.kept, self._lineage = [], lineage

    def whole(self) -> Part:
        """Returns the states of a rank that is alone."""
        return self._own()

    def take_whole(self, parts: Iterator[bytearray]) -> None:
        """Takes the states of a rank that was alone; this one is new, and alone so far.

        RuntimeError: it is not.
        """
        if any(shards.divided[0] != 1 for shards in self._shards):
            raise RuntimeError("it has whole states, and this rank has a part")
        for state, part in zip(self._states, parts, strict=False):
            dtype = tf.as_dtype(state.dtype).as_numpy_dtype
            state.own.assign(np.frombuffer(part, dtype).reshape(tuple(state.own.shape)))

    def _assign(self, part: Part) -> None:
        """Gives this rank's part of the states these values."""
        for state, value in zip(self._states, part, strict=True):
            missing = math.prod(state.own.shape) - int(value.shape[0])
            padded = tf.pad(value, [[0, missing]]) if missing else value
            state.own.assign(tf.reshape(padded, state.own.shape))

    def _divide(self) -> bool:
        changed = [shards.divide() for shards in self._shards]
        self.find()
        return any(changed)

    def _own(self) -> Part:
        """Returns this rank's part, which later updates do not change."""
        values = []
        with tf.device("CPU:0"):
            for state in self._states:
                first, last = state.shards.ranges(math.prod(state.shape))[state.shards.index]
                value = tf.reshape(tf.identity(state.own.value.read_value()), [-1])
                values.append(value[: last - first])
        return values

    def _with_copies(
        self, parts: Mapping[int, Part], receivers: Sequence[Sequence[int]]
    ) -> dict[int, Part]:
        """Sends each rank's part to some ranks; returns this rank's part, and those sent to it."""
        rank = topology.rank()
        own = list(enumerate(parts[rank]))
        senders = [sender for sender, to in enumerate(receivers) if rank in to]
        received = self._swap(
            dict.fromkeys(receivers[rank], own),
            {sender: list(enumerate(self._lengths(sender))) for sender in senders},
        )
        return {rank: parts[rank], **received}

    def _lengths(self, rank: int) -> list[int]:
        """Returns how many elements of each state a rank has."""
        ranges = [s.shards.ranges(math.prod(s.shape))[rank] for s in self._states]
        return [last - first for first, last in ranges]

    def _ranges(self, count: int) -> list[list[Range]]:
        return [ranges for shards in self._shards for ranges in shards.ranges(count)]

    def _move(
        self, version: Version, held: Sequence[Collection[int]], parts: Mapping[int, Part]
    ) -> dict[int, Part]:
        """Returns this rank's new part, and the new parts of others that it keeps a copy of.

        Args:
            version: the one that the ranks have.
            held: which parts of it each rank has.
            parts: those of this rank.
        """
        count, rank = topology.size(), topology.rank()
        before, after = self._ranges(version.ranks), self._ranges(count)
        wanted = [
            [own, *(r for r, to in enumerate(self._holders) if own in to)] for own in range(count)
        ]
        moves = shard_moves.plan(before, after, held, wanted)

        def piece(move: Move) -> Any:
            start = before[move.state][move.source][0]
            return parts[move.source][move.state][move.first - start : move.last - start]

        sends: dict[int, list[tuple[int, Any]]] = {}
        receives: dict[int, list[tuple[int, int]]] = {}
        for move in moves:
            if move.sender == rank != move.receiver:
                sends.setdefault(move.receiver, []).append((move.state, piece(move)))
            if move.receiver == rank != move.sender:
                receives.setdefault(move.sender, []).append((move.state, move.last - move.first))
        received = {sender: iter(got) for sender, got in self._swap(sends, receives).items()}
        pieces: dict[tuple[int, int], list[Any]] = {}
        for move in moves:
            if move.receiver == rank:
                got = piece(move) if move.sender == rank else next(received[move.sender])
                pieces.setdefault((move.target, move.state), []).append(got)
        return {
            target: [
                _joined(pieces.get((target, number), []), state.dtype)
                for number, state in enumerate(self._states)
            ]
            for target in wanted[rank]
        }

    def _swap(
        self,
        sends: Mapping[int, Sequence[tuple[int, Any]]],
        receives: Mapping[int, Sequence[tuple[int, int]]],
    ) -> dict[int, list[Any]]:
        """Sends vectors to other ranks. A collective, also where nothing is sent.

        Args:
            sends: by receiver, numbers of states and vectors.
            receives: by sender, in the order in which it sends them, numbers of states and lengths.

        Returns:
            By sender, the vectors.
        """
        count = topology.size()
        if count == 1:
            return {}
        dtypes = [tf.as_dtype(state.dtype) for state in self._states]
        received: dict[int, list[Any]] = {s: [None] * len(each) for s, each in receives.items()}
        with tf.device("CPU:0"):
            for dtype in sorted(set(dtypes), key=lambda one: one.name):
                to = [
                    [vector for state, vector in sends.get(rank, ()) if dtypes[state] == dtype]
                    for rank in range(count)
                ]
                vectors = [vector for each in to for vector in each]
                rows = tf.concat(vectors, 0) if vectors else tf.zeros([0], dtype)
                splits = [sum(int(vector.shape[0]) for vector in each) for each in to]
                name = f"{_NAME}.{dtype.name}"
                got, _ = alltoall(rows, tf.constant(splits, tf.int64), name, ignore_name_scope=True)
                at = 0
                for sender in sorted(receives):
                    for position, (state, length) in enumerate(receives[sender]):
                        if dtypes[state] == dtype:
                            received[sender][position] = got[at : at + length]
                            at += length
                if at != int(got.shape[0]):
                    raise RuntimeError(
                        f"rank {topology.rank()} has got {int(got.shape[0])} numbers of sharded "
                        f"states of dtype {dtype.name}, and expected {at}.\nSet "
                        "TFRING_COMMIT_COPIES to the same value on all ranks."
                    )
        return received


def _joined(pieces: Sequence[Any], dtype: Any) -> Any:
    if len(pieces) == 1:
        return pieces[0]
    return tf.concat(pieces, 0) if pieces else tf.zeros([0], dtype)


def _present_holders() -> list[list[int]]:
    """Returns for each rank those that have copies of its part."""
    process = processes.present()
    assert process is not None and process.record is not None
    hosts = [member.host for member in process.record.members]
    if read_settings(os.environ).commit_copies == "off":
        return [[] for _ in hosts]
    return shard_moves.holders(hosts)


def _generation() -> int:
    process = processes.present()
    assert process is not None
    return process.generation


def _offer_of(value: Sequence[Any]) -> Offer:
    """Returns the offer that JSON has made a list."""
    lineage, commit, steps, held = value
    return Offer(lineage, commit, steps, [Held(Version(*v), parts) for v, parts in held])
