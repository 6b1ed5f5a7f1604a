"""The checkpoints in one folder: publishing, finding and reading them."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import json
import logging
import os
import socket
import time
from collections.abc import Callable, Collection, Container, Mapping
from typing import Any, TypeVar

from tfring.checkpoint import arrays, manifest, retries
from tfring.checkpoint.errors import CheckpointError, FencedError, InvalidCheckpointError
from tfring.checkpoint.folders import Folder
from tfring.checkpoint.manifest import CheckpointInfo
from tfring.checkpoint.shares import Share

_log = logging.getLogger("tfring")
_T = TypeVar("_T")


@dataclasses.dataclass(frozen=True)
class Draft:
    """A checkpoint, or a share of one, before it is written."""

    generation: int
    step: int
    state: Mapping[str, Any]  # what `arrays.copied` returned
    metadata: Mapping[str, Any]  # values of JSON
    metrics: Mapping[str, float]  # by which the best checkpoints are kept
    share: Share
    may_publish: Callable[[], bool] | None = None  # whether it may still appear; None: it may

    @property
    def name(self) -> str:
        """The name of the checkpoint."""
        return manifest.checkpoint_name(self.generation, self.step)

    @property
    def manifest(self) -> str:
        """The file name of the manifest."""
        data, index = self.share.data, self.share.index
        if index == 0:
            return manifest.manifest_file(self.name)
        return manifest.share_manifest(data, index)

    @property
    def data(self) -> str:
        """The name of the file of arrays."""
        return manifest.share_data(self.share.data, self.share.index)


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that has been read, and is as it was written."""

    info: CheckpointInfo
    state: dict[str, Any]  # arrays and blobs of bytes, by name


class _WithheldError(Exception):
    """A draft may not be published any more."""


class CheckpointFiles:
    """All checkpoints in one folder. Its attributes never change, so any thread may use it."""

    def __init__(self, folder: Folder) -> None:
        """Sets the folder, which need not exist."""
        self.folder = folder
        self.owner = manifest.new_owner()  # in the names of all files that this object writes

    def publish(self, draft: Draft, lease_check: Callable[[], bool] | None = None) -> bool:
        """Writes a share of a checkpoint: its arrays, then, after the last checks, its manifest.

        Returns whether it is published; not if the draft's `may_publish` is against it.
        `lease_check` says whether this process may still publish.

        FencedError: it may not, or a newer generation has published. OSError: the storage failed.
        """
        name, data = draft.name, draft.data

        def may_publish() -> None:
            if draft.may_publish is not None and not draft.may_publish():
                raise _WithheldError
            self._refuse_old(name, draft.generation)
            if parts:  # a newer generation that has not published yet may have removed them
                self.folder.size(data)
            if lease_check is not None and not lease_check():
                raise FencedError(
                    f"checkpoint {name} is not published in {self.folder}: this process has lost "
                    "its lease, so a newer generation of the job may have taken over. It must end"
                )

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
                shares=draft.share.count,
            )
            content = manifest.encode(info)
            self.folder.publish(draft.manifest, content, may_publish)
            return True
        except _WithheldError:
            self._remove_unless_published(draft)
            _log.warning(
                "checkpoint %s is not published in %s: its generation of the job is over, or this "
                "process may be regarded as lost. The job goes on from an older one if it ends now",
                name,
                self.folder,
            )
            return False
        except Exception:
            self._remove_unless_published(draft)
            self._refuse_old(name, draft.generation)  # it has removed what this process wrote
            raise

    def new_data(self, name: str) -> str:
        """Returns a name for the file of arrays of a checkpoint; see `Share`."""
        return manifest.new_data_file(name, self.owner)

    def reserve(self) -> int:
        """Makes the file of a generation that no process has had, and returns that generation."""
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

    def leave_sign(self) -> str:
        """Makes a file without content; the next generation removes it if nobody has before."""
        name = self.new_data(manifest.checkpoint_name(0, 0))
        self.folder.write(name, lambda file: None)
        return name

    def sees(self, sign: str) -> bool:
        """Returns whether another process has left a sign here, and this one can do so."""
        try:
            self.folder.size(sign)
            self.remove_sign(self.leave_sign())
        except Exception as error:
            _log.debug(
                "%s is not what the other process sees, or not writable: %s", self.folder, error
            )
            return False
        return True

    def remove_sign(self, sign: str) -> None:
        """Removes a sign; if the storage fails it stays until the next generation."""
        with contextlib.suppress(OSError):
            self.folder.remove(sign)

    def newest_generation(self, above: int = -1) -> int | None:
        """Returns the highest published generation that is greater than `above`, or None.

        Every manifest counts that can be read, even if its arrays are damaged, and every manifest
        that the storage fails to return.
        """
        files = {f: o for f in self.folder.names() if (o := manifest.order_of(f)) is not None}
        for file in sorted(files, key=lambda name: files[name], reverse=True):
            if files[file][0] <= above:
                break
            with contextlib.suppress(InvalidCheckpointError):
                try:
                    return self.manifest_of(file).generation
                except OSError:
                    return files[file][0]
        return None

    def infos(self) -> list[CheckpointInfo]:
        """Returns the checkpoints whose manifests and sizes are right, the oldest first."""
        return self.survey(self.folder.names())[0]

    def survey(self, files: Collection[str]) -> tuple[list[CheckpointInfo], list[str]]:
        """Returns the checkpoints, the oldest first, and the names of those that cannot be read.

        `files` is what `folder.names()` returned.
        """
        found, unreadable = [], []
        for file in files:
            if manifest.order_of(file) is not None:
                try:
                    found.append(self.info(file, files))
                except InvalidCheckpointError as error:
                    _log.debug("%s in %s is no checkpoint: %s", file, self.folder, error)
                except OSError as error:
                    _log.warning("%s in %s cannot be read: %s", file, self.folder, error)
                    unreadable.append(file.removesuffix(".json"))
        return sorted(found, key=lambda info: info.order), unreadable

    def manifest_of(self, file: str) -> CheckpointInfo:
        """Returns what one manifest says; InvalidCheckpointError if it is missing or not valid."""
        try:
            with self.folder.open(file) as stream:
                return manifest.decode(stream, file)
        except (FileNotFoundError, IsADirectoryError) as error:
            raise InvalidCheckpointError(f"{file}: a file is missing: {error}") from error

    def info(self, file: str, names: Collection[str] | None = None) -> CheckpointInfo:
        """Returns what a manifest says, if the arrays have the size that it says.

        `names` is what `folder.names()` has just returned, if it was asked.

        InvalidCheckpointError: the checkpoint is torn, changed or incomplete.
        """
        info = self._share(file)
        present = set(self.folder.names() if names is None and info.shares > 1 else names or ())
        missing = [each for each in info.manifests[1:] if each not in present]
        if missing:
            raise InvalidCheckpointError(
                f"{info.name} is not complete: {len(missing)} of its {info.shares} shares were not "
                f"written, or not yet, such as {missing[0]}"
            )
        return info

    def shares(self, info: CheckpointInfo) -> list[CheckpointInfo]:
        """Returns the manifests of all shares; InvalidCheckpointError if one is torn or missing."""
        found = [info, *(self._share(file) for file in info.manifests[1:])]
        for index, share in enumerate(found):
            data = manifest.share_data(info.data, index)
            if (share.order, share.shares, share.data) != (info.order, info.shares, data):
                raise InvalidCheckpointError(f"{share.data} is no share of {info.name}")
        return found

    def read(self, info: CheckpointInfo, wanted: Container[str] | None = None) -> Checkpoint:
        """Reads the arrays of a checkpoint, all or the wanted ones.

        InvalidCheckpointError: they are not what was written.
        """
        state: dict[str, Any] = {}
        try:
            for share in self.shares(info):
                of_all = share.parts
                parts = {n: of_all[n] for n in of_all if wanted is None or n in wanted}
                if parts or wanted is None:
                    with self.folder.open(share.data) as stream:
                        state.update(arrays.read(stream, parts))
        except FileNotFoundError as error:
            raise InvalidCheckpointError(f"{info.name}: a file is missing: {error}") from error
        except InvalidCheckpointError as error:
            raise InvalidCheckpointError(f"{info.name}: {error}") from error
        return Checkpoint(info, state)

    def read_back(self, share: CheckpointInfo, stop: Callable[[], bool]) -> None:
        """Reads and checks the arrays of a share, until `stop` says so after one of them.

        InvalidCheckpointError: they are not what was written.
        """
        with self.folder.open(share.data) as stream:
            for _ in arrays.read(stream, share.parts):
                if stop():
                    break

    def verify(self, draft: Draft, stop: Callable[[], bool]) -> None:
        """Reads back what `publish` has written, where that costs little, or removes it.

        OSError: it is not what was written: the storage has failed, and may not the next time.
        """
        if not self.folder.rereads:
            return
        try:
            self.read_back(self._share(draft.manifest), stop)
        except (InvalidCheckpointError, OSError) as error:
            for file in (draft.manifest, draft.data):
                with contextlib.suppress(OSError):
                    self.folder.remove(file)
            raise OSError(errno.EIO, f"it cannot be read back: {error}") from error

    def use(
        self, file: str, use: Callable[[CheckpointInfo], _T], names: Collection[str] | None = None
    ) -> _T:
        """Uses the checkpoint of a manifest, again if the storage fails; arguments as elsewhere."""
        what = f"to read {file} in {self.folder}"
        return retries.persistently(lambda: use(self.info(file, names)), what)

    def newest(self, use: Callable[[CheckpointInfo], _T]) -> _T | None:
        """Returns what `use` returns for the newest valid checkpoint; None if there is none at all.

        It logs a warning for each that is invalid or cannot be read. `use` raises
        InvalidCheckpointError for such a one; a mistake in its code is no reason to take an older
        one.

        CheckpointError: there are checkpoints, and none is valid. OSError: the folder cannot be
        read.
        """
        reasons: list[str] = []
        seen: dict[str, tuple[int, int]] | None = None
        while True:
            names = retries.persistently(self.folder.names, f"to list {self.folder}")
            files = {f: o for f in names if (o := manifest.order_of(f)) is not None}
            if not files:
                return None
            if files == seen:  # no writer has removed any meanwhile
                break
            seen, reasons = files, []
            for file in sorted(files, key=lambda name: files[name], reverse=True):
                try:
                    return self.use(file, use, names)
                except retries.MISTAKES:
                    raise
                except Exception as error:
                    reasons.append(f"{file}: {retries.described(error)}")
                    text = "checkpoint in %s is passed over for an older one: %s"
                    _log.warning(text, self.folder, reasons[-1])
        raise CheckpointError(
            f"{self.folder} has checkpoints, and none of them is valid: {'; '.join(reasons)}. "
            "Delete them to begin anew, or give another folder"
        )

    def _create(self, file: str) -> bool:
        who = {"owner": self.owner, "host": socket.gethostname(), "pid": os.getpid()}
        content = json.dumps({**who, "created": time.time()}).encode()
        try:
            return self.folder.create(file, content)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            return self.folder.create(file, b"")  # a file without content needs no space

    def _share(self, file: str) -> CheckpointInfo:
        """Returns what one manifest says, if its arrays have the size that it says."""
        try:
            info = self.manifest_of(file)
            size = self.folder.size(info.data)
        except FileNotFoundError as error:
            raise InvalidCheckpointError(f"{file}: a file is missing: {error}") from error
        if size != info.nbytes:
            raise InvalidCheckpointError(f"{info.data} has {size} bytes instead of {info.nbytes}")
        return info

    def _remove_unless_published(self, draft: Draft) -> None:
        """Frees the space of arrays whose manifest did not come to be, which may be what it lacks.

        The storage may have failed after the manifest was there.
        """
        with contextlib.suppress(OSError):
            try:
                published = self.manifest_of(draft.manifest).data == draft.data
            except InvalidCheckpointError:
                published = False
            if not published:
                self.folder.remove(draft.data)

    def _refuse_old(self, name: str, generation: int) -> None:
        newest = self.newest_generation(above=generation)
        if newest is not None:
            raise FencedError(
                f"checkpoint {name} is not published in {self.folder}: generation {newest} has "
                f"published there, and this process is of generation {generation}. It must end"
            )
