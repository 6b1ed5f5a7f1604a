"""Checkpointer: what programs save and load checkpoints with."""

from __future__ import annotations

import atexit
import logging
import math
import time
from collections.abc import Callable, Container, Mapping
from types import TracebackType
from typing import Any, TypeVar

from tfring.checkpoint import arrays, manifest, retries
from tfring.checkpoint.errors import CheckpointError, CheckpointTimeoutError
from tfring.checkpoint.files import Checkpoint, CheckpointFiles, Draft
from tfring.checkpoint.folders import folder_at
from tfring.checkpoint.manifest import CheckpointInfo
from tfring.checkpoint.publisher import Publisher, Retention
from tfring.checkpoint.shares import Share
from tfring.checkpoint.writer import Writer

_T = TypeVar("_T")
_HURRY = 0.9  # of the time that is left: the rest is for saying what is not written, and for ending
_log = logging.getLogger("tfring")


class Checkpointer:
    """Keeps checkpoints in one folder: writes them beside training, and finds the newest valid one.

    A checkpoint is a set of named arrays with metadata, and has a generation and a step. It appears
    whole or not at all, also when the process is killed or the machine loses its power, and what is
    torn or changed later is noticed and passed over. Of all valid ones that with the highest
    (generation, step) is the newest. Each object reserves a generation that no other has, so two
    jobs in one folder never write or remove a file of each other's. When the one that has begun
    later publishes, the other cannot publish any more.

    One process of a job saves, or several do, each its share (docs/adr/0086): in tfring's callbacks
    the ranks that see the folder of rank 0. Making an object of this class touches no storage, so
    all ranks may do it. To be used by one thread; as a context manager it closes itself.

    Attributes:
        asynchronous: whether `save` returns before the checkpoint is written.
        timeout: seconds for which the storage may fail before that is an error.
        skipped: how many checkpoints were not saved because an earlier one was being written.
        saved: generation and step of the last one that was saved; None if none was.
        writers: the ranks that write shares. Set by the code that divides a checkpoint; otherwise
            None.
    """

    def __init__(
        self,
        path: Any,
        *,
        keep_last: int = 3,
        keep_best: int = 0,
        metric: str | None = None,
        mode: str = "min",
        asynchronous: bool = True,
        timeout: float = 3600.0,
        lease_check: Callable[[], bool] | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        """Sets where checkpoints are, and which are kept.

        Args:
            path: a folder, which is made when it is first written to, or a URL that fsspec knows
                ("s3://bucket/folder").
            keep_last: how many of the newest are kept, at least 1.
            keep_best: how many of the best by `metric` are kept besides.
            metric: the name of the metric, one of those that `save` gets.
            mode: "min" if low values of the metric are good ones, "max" if high ones are.
            asynchronous: whether `save` returns before the checkpoint is written.
            timeout: seconds for which the storage may refuse all checkpoints before that is an
                error, and that `wait` and `close` wait for it. Until then failures are warnings.
            lease_check: says whether this process may still publish; is asked, by the writing
                thread, before anything is written and right before a checkpoint appears.
            storage_options: for the file system of fsspec: credentials, endpoint.

        Raises:
            ValueError: an empty path, an impossible number or mode, keep_best without a metric.
            ImportError: a URL needs a package that is not installed.
        """
        retention = Retention(keep_last, keep_best, metric, mode)
        self._files = CheckpointFiles(folder_at(path, **(storage_options or {})))
        self.asynchronous, self.timeout = asynchronous, timeout
        publisher = Publisher(self._files, retention, lease_check, lambda: self.hurries)
        self._writer = Writer(publisher.publish, timeout, str(self))
        self._generation: int | None = None
        self._buffers: dict[str, Any] = {}  # the arrays that were copied last
        self._metric = metric  # until it is there, or is said to be missing
        self.skipped = 0
        self.saved: tuple[int, int] | None = None
        self.writers: Any = None
        self._deadline: float | None = None

    def __str__(self) -> str:
        return str(self._files.folder)

    def save(
        self,
        state: Mapping[str, Any],
        step: int,
        generation: int | None = None,
        *,
        metadata: Mapping[str, Any] | None = None,
        metrics: Mapping[str, float] | None = None,
        copy: bool = True,
        must: bool = False,
        share: Share | None = None,
        may_publish: Callable[[], bool] | None = None,
    ) -> str | None:
        """Copies the state and has it written; returns at once if `asynchronous`.

        While a checkpoint is being written others are skipped and counted: a slow storage gets
        fewer checkpoints, training never waits for it, and memory holds one copy of the state. What
        the storage refuses is tried again after 1, 2, 4 to 60 s, until a newer one takes its place.

        Args:
            state: arrays, numbers or bytes, by name. Arrays of bfloat16 and its like, too.
            step: which training step the state was taken after, at least 0.
            generation: which generation of the job saves, at least 0. None: what `reserve` returned
                last; it is called if it never was.
            metadata: more values to keep, of types that JSON can hold.
            metrics: numbers; that of `metric` decides which checkpoints are the best.
            copy: False if nobody changes the arrays after this call.
            must: for the last one of a training: it waits for an earlier one and is not skipped.
            share: which part of the checkpoint the state is, where several processes call this
                with the same step and generation; see `new_data`. None: it is all of it.
            may_publish: says whether this checkpoint may still appear; is asked when `lease_check`
                is. If not, nothing of it is left but a warning in the log, and saving goes on.

        Returns:
            The checkpoint's name, or None if it was skipped.

        Raises:
            CheckpointError: the state cannot be kept; FencedError if a newer generation has taken
                over, in which case this process must end; CheckpointTimeoutError if an earlier one
                is not written in time.
            OSError: the storage has failed for `timeout` seconds, now or at an earlier checkpoint.
            ValueError: a negative number, one of 19 digits, or the object is closed.
        """
        self.raise_failure()
        if not self._has_room(must):
            self.skip(step)
            return None
        if generation is None:
            generation = self.reserve() if self.generation is None else self.generation
        if not (0 <= step < manifest.LARGEST and 0 <= generation < manifest.LARGEST):
            raise ValueError(
                f"save: step={step}, generation={generation}: both are at least 0 and less than "
                "10**18"
            )
        if self.saved is not None and self.saved[0] < generation:
            self._writer.forget_error()  # the earlier one was fenced by this generation
        if copy:
            owned = self._buffers = arrays.copied(state, self._buffers)
        else:
            owned = arrays.uncopied(state)
        kept = manifest.as_json(dict(metadata or {}), "metadata")
        whole = Share(self.new_data(step, generation), 0, 1)
        draft = Draft(
            int(generation),
            int(step),
            owned,
            kept,
            {name: float(value) for name, value in (metrics or {}).items()},
            whole if share is None else share,
            may_publish,
        )
        self._look_for_metric(draft)
        self._writer.submit(draft)
        self.saved = draft.generation, draft.step
        # A program that ends without close() publishes its last checkpoint all the same.
        atexit.unregister(self._close_at_exit)
        atexit.register(self._close_at_exit)
        if not self.asynchronous:
            self.wait(math.inf)
        return manifest.checkpoint_name(generation, step)

    def new_data(self, step: int, generation: int) -> str:
        """Returns the `data` of all shares of a checkpoint that is about to be saved.

        The process that writes share 0 asks for it and tells the others: only that one removes old
        checkpoints. The checkpoint is there as soon as the last share is, whichever comes last.
        """
        return self._files.new_data(manifest.checkpoint_name(generation, step))

    def leave_sign(self) -> str:
        """Makes a small file, by which another process can tell whether it sees this folder."""
        return self._files.leave_sign()

    def sees(self, sign: str) -> bool:
        """Returns whether a sign of another process is here, and this one can write here."""
        return self._files.sees(sign)

    def remove_sign(self, sign: str) -> None:
        """Removes what `leave_sign` has made."""
        self._files.remove_sign(sign)

    @property
    def busy(self) -> bool:
        """Whether a checkpoint is being written, so that another one would be skipped."""
        return self._writer.busy

    def skip(self, step: int) -> None:
        """Counts a checkpoint that is not saved, and says so in the log."""
        self.skipped += 1
        _log.info(
            "the checkpoint of step %d is skipped, the %d. one: an earlier one is being written "
            "to %s",
            step,
            self.skipped,
            self,
        )

    def make_room(self) -> None:
        """Waits until nothing is being written, and gives up a draft that waits for a retry.

        It does nothing if others write this process's share. CheckpointTimeoutError: the storage
        is too slow.
        """
        if not self._writer.replaced:
            self._writer.make_room(self._patience())

    def give_up(self) -> None:
        """Tries nothing again that was saved, and raises no failure of it: others write now.

        What is being written just now may still appear.
        """
        self._writer.give_up()

    @property
    def trouble(self) -> str:
        """What keeps the storage from taking what was saved; "" if it works."""
        return self._writer.trouble

    def mark_replaced(self) -> bool:
        """Marks this process as replaced: others write its share from now on.

        Returns False if it was marked before. Failed writes are still retried, to see whether the
        storage works again.
        """
        new = not self._writer.replaced
        self._writer.mark_replaced()
        return new

    def hurry(self, seconds: float | None) -> None:
        """Says in how many seconds this process is killed; None: it is not.

        From now on `save` and `wait` give up before that. They do not read back what they have
        written, and remove nothing.
        """
        margin = None if seconds is None else seconds * _HURRY
        self._deadline = None if margin is None else time.monotonic() + margin

    @property
    def hurries(self) -> bool:
        """Whether `hurry` has said when this process is killed."""
        return self._deadline is not None

    def _patience(self) -> float:
        deadline = self._deadline
        left = math.inf if deadline is None else max(0.0, deadline - time.monotonic())
        return min(self.timeout, left)

    def raise_failure(self) -> None:
        """Raises what an earlier checkpoint was given up for, once; `save` does so, too."""
        self._writer.raise_error()

    def fail(self, error: Exception) -> None:
        """Keeps an error: the next `raise_failure`, `save`, `wait` or `close` raises it, once."""
        self._writer.fail(error)

    def wait(self, timeout: float | None = None) -> None:
        """Waits until everything that was saved is published, `timeout` seconds or the object's.

        Raises:
            CheckpointTimeoutError: The storage does not finish in time. It goes on trying.
            CheckpointError, OSError: A checkpoint was given up; once.
        """
        self._writer.wait(self._patience() if timeout is None else timeout)

    def abandon(self) -> None:
        """Lets the process end without waiting for what is being written.

        Readers skip a checkpoint that is incomplete.
        """
        atexit.unregister(self._close_at_exit)

    def close(self, timeout: float | None = None) -> None:
        """Waits as `wait` does, and lets nothing be saved any more; raises what `wait` raises."""
        atexit.unregister(self._close_at_exit)
        self._writer.close(self.timeout if timeout is None else timeout)

    def __enter__(self) -> Checkpointer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def all(self) -> list[CheckpointInfo]:
        """Returns all checkpoints, the oldest first; their arrays are not read."""
        return self._files.infos()

    def latest(self) -> CheckpointInfo | None:
        """Returns the newest checkpoint whose manifest is valid; None if there is none.

        Its arrays are not read: `load` does, and passes over one whose arrays are damaged.

        Raises:
            CheckpointError: there are checkpoints, and none has a valid manifest.
            OSError: the storage cannot be read.
        """
        return self.newest(lambda info: info)

    def newest(self, use: Callable[[CheckpointInfo], _T]) -> _T | None:
        """Returns what a function returns for the newest checkpoint that is valid; None if none is.

        Args:
            use: raises InvalidCheckpointError to pass over a checkpoint, with a warning.

        Raises:
            CheckpointError: there are checkpoints, and none is valid.
            OSError: the storage cannot be read.
        """
        return self._files.newest(use)

    def info(self, name: str) -> CheckpointInfo:
        """Returns the manifest of a checkpoint; InvalidCheckpointError if it is damaged."""
        return self._files.use(manifest.manifest_file(name), lambda info: info)

    @property
    def generation(self) -> int | None:
        """What `reserve` has returned last; None if it never was called."""
        return self._generation

    def reserve(self, patience: float = 0.0) -> int:
        """Reserves a generation that no process has had, for what is saved from now on.

        It makes a small file, so a folder that cannot be written to is noticed before training. In
        a loop of an elastic job the rank that saves calls it at the beginning of each generation.

        Args:
            patience: seconds; a storage that fails is tried for so long, and at least 4 times.

        Raises:
            OSError: the storage cannot be read or written to.
            CheckpointError: no number is left.
        """
        what = f"to reserve a generation in {self}"
        self._generation = retries.persistently(self._files.reserve, what, patience)
        return self._generation

    def load(self, name: str | None = None) -> Checkpoint | None:
        """Reads a checkpoint and checks it against its manifest.

        Args:
            name: which, as `save` returned it; None is the newest valid one.

        Returns:
            The checkpoint; None if there is none at all and none was named.

        Raises:
            CheckpointError: there are checkpoints, and none is valid; InvalidCheckpointError if
                that was named and is missing, torn or changed.
            OSError: the storage cannot be read.
        """
        if name is None:
            return self.newest(self._files.read)
        file = manifest.manifest_file(name)
        return self._files.use(file, self._files.read)

    def parts(self, info: CheckpointInfo) -> dict[str, manifest.Part]:
        """Returns what a checkpoint holds, by name, in all its shares."""
        return {
            name: part for share in self._files.shares(info) for name, part in share.parts.items()
        }

    def read(self, info: CheckpointInfo, names: Container[str]) -> dict[str, Any]:
        """Reads some arrays of a checkpoint; raises what `parts` does."""
        what = f"to read {info.name} in {self}"
        return retries.persistently(lambda: self._files.read(info, names).state, what)

    def _has_room(self, must: bool) -> bool:
        """Returns whether nothing is being written; raises what `make_room` does if it must be."""
        try:
            self._writer.make_room(self._patience() if must else 0.0)
        except CheckpointTimeoutError:
            if must:
                raise
            return False
        return True

    def _look_for_metric(self, draft: Draft) -> None:
        """Says once if what the best are chosen by is not there."""
        if not draft.metrics or draft.share.index > 0:
            return
        wanted, self._metric = self._metric, None
        if wanted is not None and wanted not in draft.metrics:
            _log.warning(
                "checkpoint %s is none of the best in %s: it has no metric %r, by which they are "
                "chosen. It has %s. Give Checkpointer(metric=) one of these",
                draft.name,
                self,
                wanted,
                ", ".join(sorted(draft.metrics)),
            )

    def _close_at_exit(self) -> None:
        try:
            self.close()
        except (CheckpointError, OSError):
            _log.exception("the last checkpoint of %s was not written", self)
