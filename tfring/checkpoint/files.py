"""The checkpoints in one folder: publishing, finding, reading and removing them."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import json
import logging
import os
import socket
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from tfring.checkpoint import arrays, manifest
from tfring.checkpoint.errors import CheckpointError, FencedError, InvalidCheckpointError
from tfring.checkpoint.folders import Folder
from tfring.checkpoint.manifest import CheckpointInfo
from tfring.checkpoint.retention import Retention

_log = logging.getLogger("tfring")
_T = TypeVar("_T")
_ATTEMPTS = 3  # at finding a checkpoint while a writer removes old ones


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that has been read, and is as it was written.

    Attributes:
        info: generation, step and metadata.
        state: arrays and blobs of bytes, by name.
    """

    info: CheckpointInfo
    state: dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Draft:
    """What is to become a checkpoint.

    Attributes:
        generation: which generation of the job writes it.
        step: which training step it was taken after.
        state: what `arrays.copied` returned.
        metadata: values of JSON.
        metrics: numbers by which the best checkpoints are kept.
        may_publish: says whether it may still appear; None: it may.
    """

    generation: int
    step: int
    state: Mapping[str, Any]
    metadata: Mapping[str, Any]
    metrics: Mapping[str, float]
    may_publish: Callable[[], bool] | None = None


class _WithheldError(Exception):
    """A draft may not be published any more."""


class CheckpointFiles:
    """All checkpoints in one folder. Its attributes never change, so any thread may use it.

    Attributes:
        folder: where they are; it need not exist.
        owner: in the names of all files of arrays that this object writes.
    """

    def __init__(self, folder: Folder) -> None:
        """Sets the folder."""
        self.folder = folder
        self.owner = manifest.new_owner()

    def publish(self, draft: Draft, lease_check: Callable[[], bool] | None = None) -> bool:
        """Writes a checkpoint: its arrays first, then, after the last checks, its manifest.

        Args:
            draft: what to write.
            lease_check: says whether this process may still publish.

        Returns:
            Whether it is published; not if the draft's `may_publish` is against it.

        Raises:
            FencedError: it may not, or a newer generation has published.
            OSError: the storage has failed.
        """
        name = manifest.checkpoint_name(draft.generation, draft.step)

        def may_publish() -> None:
            if draft.may_publish is not None and not draft.may_publish():
                raise _WithheldError
            self._refuse_old(name, draft.generation)
            if lease_check is not None and not lease_check():
                raise FencedError(
                    f"checkpoint {name} is not published in {self.folder}: this process has lost "
                    "its lease, so a newer generation of the job may have taken over. It must end"
                )

        data = manifest.new_data_file(name, self.owner)
        parts: dict[str, manifest.Part] = {}
        try:
            may_publish()  # before anything large is written
            self.folder.write(data, lambda file: parts.update(arrays.write(file, draft.state)))
            size = self.folder.size(data)
            info = CheckpointInfo(
                generation=draft.generation,
                step=draft.step,
                metadata=draft.metadata,
                metrics=draft.metrics,
                created=time.time(),
                data=data,
                nbytes=size,
                parts=parts,
            )
            content = manifest.encode(info)
            self.folder.publish(manifest.manifest_file(name), content, may_publish)
            return True
        except _WithheldError:
            self._remove_unless_published(name, data)
            _log.warning(
                "checkpoint %s is not published in %s: its generation of the job is over, or this "
                "process may be taken for lost. The job goes on from an older one if it ends now",
                name,
                self.folder,
            )
            return False
        except Exception:
            self._remove_unless_published(name, data)
            self._refuse_old(name, draft.generation)  # it has removed what this process wrote
            raise

    def reserve(self) -> int:
        """Makes the file of a generation that no process has had; of several one gets each.

        Returns:
            The generation, higher than all that are reserved or have published.

        Raises:
            OSError: the storage cannot be read or written to.
            CheckpointError: no number is left.
        """
        newest = self.newest_generation()
        number = -1 if newest is None else newest
        while True:
            number = max([number, *map(manifest.reserved_by, self.folder.names())]) + 1
            if number >= manifest.LARGEST:
                raise CheckpointError(
                    f"no generation above {number - 1} is left in {self.folder}: remove "
                    f"{manifest.reservation_file(number - 1)}, which tfring has not made"
                )
            if self._create(manifest.reservation_file(number)):
                return number

    def newest_generation(self, above: int = -1) -> int | None:
        """Returns the highest generation that has published; None if there is no checkpoint.

        A manifest that can be read counts, also where its arrays are damaged.

        Args:
            above: generations up to this one do not count.
        """
        files = {f: o for f in self.folder.names() if (o := manifest.order_of(f)) is not None}
        for file in sorted(files, key=lambda name: files[name], reverse=True):
            if files[file][0] <= above:
                break
            with contextlib.suppress(InvalidCheckpointError):
                return self._manifest(file).generation
        return None

    def infos(self) -> list[CheckpointInfo]:
        """Returns the checkpoints whose manifests and sizes are right, the oldest first."""
        found = []
        for file in self.folder.names():
            if manifest.order_of(file) is not None:
                try:
                    found.append(self.info(file))
                except InvalidCheckpointError as error:
                    _log.debug("%s in %s is no checkpoint: %s", file, self.folder, error)
        return sorted(found, key=lambda info: info.order)

    def info(self, file: str) -> CheckpointInfo:
        """Returns what a manifest says, if the arrays have the size that it says.

        Args:
            file: name of the manifest.

        Raises:
            InvalidCheckpointError: the checkpoint is torn, changed or incomplete.
            OSError: the storage cannot be read.
        """
        try:
            info = self._manifest(file)
            size = self.folder.size(info.data)
        except FileNotFoundError as error:
            raise InvalidCheckpointError(f"{file}: a file is missing: {error}") from error
        if size != info.nbytes:
            raise InvalidCheckpointError(f"{info.data} has {size} bytes instead of {info.nbytes}")
        return info

    def read(self, info: CheckpointInfo) -> Checkpoint:
        """Reads the arrays of a checkpoint.

        Raises:
            InvalidCheckpointError: they are not what was written.
        """
        try:
            with self.folder.open(info.data) as stream:
                return Checkpoint(info, dict(arrays.read(stream, info.parts)))
        except FileNotFoundError as error:
            raise InvalidCheckpointError(f"{info.name}: {info.data} is missing") from error
        except InvalidCheckpointError as error:
            raise InvalidCheckpointError(f"{info.name}: {error}") from error

    def verify(self, info: CheckpointInfo) -> None:
        """Reads a checkpoint and keeps nothing; raises as `read` does."""
        try:
            with self.folder.open(info.data) as stream:
                for _ in arrays.read(stream, info.parts):
                    pass
        except FileNotFoundError as error:
            raise InvalidCheckpointError(f"{info.name}: {info.data} is missing") from error

    def newest(self, use: Callable[[CheckpointInfo], _T]) -> _T | None:
        """Uses the checkpoint with the highest (generation, step) that is valid.

        Logs a warning for each invalid one that is passed over.

        Args:
            use: reads it; InvalidCheckpointError if it is not what was written.

        Returns:
            What `use` returns; None if there is no checkpoint at all.

        Raises:
            CheckpointError: there are checkpoints, and none is valid.
        """
        reasons: list[str] = []
        for _ in range(_ATTEMPTS):
            files = {f: o for f in self.folder.names() if (o := manifest.order_of(f)) is not None}
            reasons = []
            for file in sorted(files, key=lambda name: files[name], reverse=True):
                try:
                    return use(self.info(file))
                except InvalidCheckpointError as error:
                    reasons.append(f"{file}: {error}")
                    _log.warning("checkpoint in %s passed over: %s", self.folder, reasons[-1])
            if not files:
                return None
        raise CheckpointError(
            f"{self.folder} has checkpoints, and none of them is valid: {'; '.join(reasons)}. "
            "Delete them to begin anew, or give another folder"
        )

    def clean(self, generation: int, retention: Retention) -> None:
        """Removes what is not kept, and what killed writers have left.

        Only what is of an older generation, or was written by this object, is touched. Where
        reading costs little, nothing is removed before the newest checkpoint has been read back.

        Args:
            generation: of the process that cleans; it writes nothing meanwhile.
            retention: what is kept.

        Raises:
            InvalidCheckpointError: the newest one is not what was written; nothing is removed.
        """
        files = self.folder.names()
        infos = self.infos()
        expired = [i for i in retention.expired(infos) if self._may_remove(i.data, generation)]
        if expired and self.folder.rereads:
            self.verify(infos[-1])
        for info in expired:
            self.folder.remove(manifest.manifest_file(info.name))  # first: it names the arrays
            self.folder.remove(info.data)
        kept = {i.data for i in infos if i not in expired}
        oldest = min((i.order for i in infos if i not in expired), default=(0, 0))
        for file in files:
            if file in kept or not self._may_remove(file, generation):
                continue
            # A manifest that cannot be read stays while it may be among the newest.
            order = manifest.order_of(file)
            if order is None or order < oldest:
                self.folder.remove(file)

    def _may_remove(self, file: str, generation: int) -> bool:
        theirs = manifest.generation_of(file)
        if theirs is None or theirs > generation:
            return False
        return theirs < generation or manifest.owner_of(file) == self.owner

    def _create(self, file: str) -> bool:
        who = {"owner": self.owner, "host": socket.gethostname(), "pid": os.getpid()}
        content = json.dumps({**who, "created": time.time()}).encode()
        try:
            return self.folder.create(file, content)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            return self.folder.create(file, b"")  # a file without content needs no space

    def _manifest(self, file: str) -> CheckpointInfo:
        try:
            with self.folder.open(file) as stream:
                return manifest.decode(stream, file)
        except (FileNotFoundError, IsADirectoryError) as error:
            raise InvalidCheckpointError(f"{file}: a file is missing: {error}") from error

    def _remove_unless_published(self, name: str, data: str) -> None:
        """Frees the space of arrays whose manifest did not come to be, which may be what it lacks.

        The storage may have failed after the manifest was there.
        """
        file = manifest.manifest_file(name)
        with contextlib.suppress(OSError):
            try:
                published = self._manifest(file).data == data
            except InvalidCheckpointError:
                published = False
            if not published:
                self.folder.remove(data)

    def _refuse_old(self, name: str, generation: int) -> None:
        newest = self.newest_generation(above=generation)
        if newest is not None:
            raise FencedError(
                f"checkpoint {name} is not published in {self.folder}: generation {newest} has "
                f"published there, and this process is of generation {generation}. It must end"
            )
