"""What elastic training keeps when ranks are lost or join: Horovod's State and ObjectState."""

from __future__ import annotations

import copy
import inspect
import logging
import pickle
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tfring.elastic import process as processes
from tfring.elastic.copies import Copies, Part, part_of
from tfring.elastic.errors import HostsUpdatedInterrupt
from tfring.elastic.messages import NO_UPDATE, REMOVED, HostMessages, strongest
from tfring.elastic.progress import Progress, compare
from tfring.elastic.records import Position
from tfring.runtime.exceptions import described
from tfring.runtime.topology import is_initialized, rank

_log = logging.getLogger("tfring")

_OURS = __name__.partition(".")[0] + "."


class State:
    """What a training consists of. `elastic.run` restores it after a failure and syncs it then.

    A subclass says what is kept: `save`, `restore` and `sync`. A `sync` of its own that does not
    call the one of ObjectState is free to choose whose state counts; it is called on all ranks.
    """

    def __init__(self, **kwargs: Any) -> None:
        """Begins without a commit. Arguments are for subclasses."""
        del kwargs
        self._host_messages = HostMessages()
        self._last_updated_timestamp = 0.0
        self._reset_callbacks: list[Callable[[], Any]] = []
        self._progress = Progress()
        self._compared = False  # since elastic.run has called sync
        self._copies: Copies | None = None  # while elastic.run runs in an elastic job

    def register_reset_callbacks(self, callbacks: Sequence[Callable[[], Any]]) -> None:
        """Adds functions without arguments that are called when the number of ranks has changed.

        They run before `sync`, with the new size, on the ranks that were there before: not on those
        that have just joined, which stay out of the collectives that they call.
        """
        self._reset_callbacks.extend(callbacks)

    def on_reset(self) -> None:
        """Is called when a new generation has begun: calls `reset` and the reset callbacks."""
        self._host_messages = HostMessages()
        self._last_updated_timestamp = 0.0  # this host's time may have been set back meanwhile
        self.reset()
        for callback in self._reset_callbacks:
            callback()

    def on_hosts_updated(self, timestamp: float, update_res: int) -> None:
        """Says that hosts came or went; the next `check_host_updates` raises on all ranks.

        A timestamp that is not newer than the last one is ignored. `update_res` is 1 if hosts were
        removed, 2 if they were added, 3 for both.
        """
        self._host_messages.put((timestamp, update_res))

    def commit(self) -> None:
        """Saves the state, and lets ranks come and go. A collective.

        Raises:
            HostsUpdatedInterrupt: Ranks are about to come or go; `elastic.run` handles it.
            CoreError: A rank was lost; the state was saved here before.
        """
        self._commit_here()
        update = self._host_update()
        self._settle(update)
        if update != NO_UPDATE:
            raise HostsUpdatedInterrupt(update == REMOVED)

    def check_host_updates(self) -> None:
        """Lets ranks come and go without saving the state first. A collective.

        Raises:
            HostsUpdatedInterrupt: Ranks are about to come or go. The state was saved, because
                training continues with it.
            CoreError: A rank was lost.
        """
        update = self._host_update()
        if update != NO_UPDATE:
            self._commit_here()
            self._settle(update)
            raise HostsUpdatedInterrupt(update == REMOVED)

    def mark_step(self, steps: int = 1) -> None:
        """Says that steps were done since the last call, so that the coordinator sees it.

        Without it a commit counts as one step.
        """
        self._progress.live_step += steps
        self._progress.counted = True
        process = processes.present()
        if process is not None:
            process.link.step(self._progress.live_step)

    def save(self) -> None:
        """Keeps the state as it is now, for `restore`. No collective."""
        raise NotImplementedError

    def restore(self) -> None:
        """Goes back to what was saved last. No collective."""
        raise NotImplementedError

    def sync(self) -> None:
        """Gives all ranks the same state. A collective."""
        raise NotImplementedError

    def reset(self) -> None:
        """Is called when a new generation has begun, before the reset callbacks."""

    def _host_update(self) -> int:
        """Returns what has happened to the hosts; the same on all ranks."""
        return strongest(self._heard())

    def _heard(self) -> int:
        """Returns what this rank has heard of the hosts since it was last asked."""
        update, messages = NO_UPDATE, self._host_messages
        while not messages.empty():
            timestamp, kind = messages.get()
            if timestamp > self._last_updated_timestamp:
                self._last_updated_timestamp = timestamp
                update |= kind
        return update

    def _commit_here(self) -> None:
        self.save()
        self._progress.commit_now()
        if self._copies is not None:
            self._copies.keep(self)
        process = processes.present()
        if process is not None and self._progress.lineage:
            process.position = position_of(self)
            process.link.committed(process.position)
            process.link.step(process.position.step)

    def _settle(self, update: int) -> None:
        """Is called when all ranks have begun a commit; `update` says whether any may leave."""

    def _finish(self) -> None:
        """Counts the end of the training as a commit; no collective."""
        self._commit_here()

    def _describe(self) -> list[str]:
        """Says what the state consists of: the same on all ranks."""
        return [type(self).__name__]

    def _pack(self) -> list[Part] | None:
        """Returns what the last commit holds; None: this class cannot say it.

        It is asked right after a commit, when the live state still is that.
        """
        return None

    def _unpack(self, parts: Iterator[bytearray]) -> None:
        """Takes what `_pack` has returned, perhaps in another process, as the live state."""
        raise NotImplementedError

    def _synchronize(self, send: Callable[[int], None], root: int | None = None) -> None:
        """Compares the ranks and, if one is behind, sends the state of the one that is ahead.

        `send` sends the state of a rank to all, a collective. `root` says whose; None: of the rank
        that is ahead, or of rank 0 where the class is the program's own and so is its `sync`: what
        that sends besides is most likely rank 0's, as with Horovod, and belongs to one step with
        this.
        """
        if root is None and not type(self).sync.__module__.startswith(_OURS):
            root = 0
        ahead = compare(self._progress, self._describe(), root)
        if ahead.behind:
            send(ahead.root)
            self.save()
        self._progress = ahead.progress
        self._compared = True


def sync(state: State) -> None:
    """Syncs a state of any class, so that afterwards all ranks are equally far. A collective."""
    state._compared = False
    state.sync()
    if not state._compared:  # a class with a sync of its own, of rank 0's state most likely
        state._progress = compare(state._progress, [type(state).__name__], 0).progress


def restore(state: State) -> None:
    """Goes back to the last commit."""
    state.restore()
    state._progress.roll_back()


def finish(state: State) -> None:
    """Counts what the training has come to as a commit."""
    state._finish()


def position_of(state: State) -> Position:
    """Returns how far a state is, as of its last commit."""
    return Position(state._progress.commit, state._progress.step)


class ObjectState(State):
    """Attributes of any kind, which are copied at a commit and sent as pickles.

    An attribute with `state_dict` and `load_state_dict` stays the same object: these are called for
    it, and its `sync` and `resize` where it has them, as those of `tfring.data`.
    """

    def __init__(
        self, bcast_object: Callable[..., Any], get_rank: Callable[[], int], **kwargs: Any
    ) -> None:
        """Makes each of `kwargs` an attribute.

        Args:
            bcast_object: Sends an object to all ranks: from the rank that its parameter
                `root_rank` says, as `tfring.broadcast_object`; from rank 0 if it has none, so that
                a step of training may be lost where rank 0 is behind another.
            get_rank: Returns our rank; for Horovod's sake.
            **kwargs: Names and first values of the attributes.
        """
        super().__init__(**kwargs)
        del get_rank
        self._bcast_object = bcast_object
        self._any_root = "root_rank" in inspect.signature(bcast_object).parameters
        self._names = sorted(kwargs)
        self._saved_state: dict[str, Any] = {}
        self._not_copied: set[str] = set()  # attributes that were warned of
        for name, value in kwargs.items():
            setattr(self, name, value)
        ObjectState.save(self)

    def save(self) -> None:
        """See `State.save`."""
        contents = {name: _content(getattr(self, name)) for name in self._names}
        self._saved_state = {name: self._copy(name, value) for name, value in contents.items()}

    def restore(self) -> None:
        """See `State.restore`."""
        for name, value in self._saved_state.items():
            self._put(name, self._copy(name, value))

    def sync(self) -> None:
        """Gives all ranks the state of the rank that has the most commits. A collective."""
        self._synchronize(self._send, None if self._any_root else 0)
        values = [getattr(self, name) for name in self._names]
        together = [v for v in values if has_content(v) and hasattr(v, "sync")]
        for value in together:
            value.sync()
            if hasattr(value, "resize"):
                value.resize()
        if together:
            ObjectState.save(self)

    def _describe(self) -> list[str]:
        return [*super()._describe(), *(f"attribute {name}" for name in self._names)]

    def _pack(self) -> list[Part] | None:
        ours = (type(self).save, type(self).restore, type(self).sync)
        if not all(one.__module__.startswith(_OURS) for one in ours):
            return None  # a class of the program may keep more
        arrays: list[Any] = []
        pickled = pickle.dumps(
            self._saved_state, protocol=5, buffer_callback=lambda array: arrays.append(array.raw())
        )
        return [part_of(pickled), *map(part_of, arrays)]

    def _unpack(self, parts: Iterator[bytearray]) -> None:
        pickled, *arrays = parts
        for name, value in pickle.loads(pickled, buffers=arrays).items():
            self._put(name, value)

    def _send(self, root: int) -> None:
        if self._names:
            mine = {name: _content(getattr(self, name)) for name in self._names}
            more = {"root_rank": root} if self._any_root else {}
            received = self._bcast_object(mine, **more)
            if received is not mine:
                for name, value in received.items():
                    self._put(name, value)

    def _copy(self, name: str, value: Any) -> Any:
        """Returns a copy; the object itself if it cannot be copied (a generator, a lock)."""
        try:
            return copy.deepcopy(value)
        except Exception as error:  # a copy is made by code of the object's class
            if name not in self._not_copied:
                self._not_copied.add(name)
                _log.warning(
                    "%sattribute %r of an elastic state is a %s and cannot be copied (%s). Commits "
                    "do not save it: after a failure it keeps its current value. Remove it from "
                    "the state, or give its class state_dict and load_state_dict.",
                    f"rank {rank()}: " if is_initialized() else "",
                    name,
                    type(value).__name__,
                    described(error),
                )
            return value

    def _put(self, name: str, value: Any) -> None:
        present: Any = getattr(self, name, None)
        if has_content(present):
            present.load_state_dict(value)
        else:
            setattr(self, name, value)


def has_content(value: Any) -> bool:
    """Returns whether an attribute with this value stays the same object."""
    return hasattr(value, "state_dict") and hasattr(value, "load_state_dict")


def _content(value: Any) -> Any:
    return value.state_dict() if has_content(value) else value
