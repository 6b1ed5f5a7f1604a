"""Publisher: writes checkpoints, and removes those that are not kept."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import logging
import math
from collections.abc import Callable, Sequence

from tfring.checkpoint import manifest, retries
from tfring.checkpoint.errors import InvalidCheckpointError
from tfring.checkpoint.files import CheckpointFiles, Draft
from tfring.checkpoint.manifest import CheckpointInfo

_log = logging.getLogger("tfring")


@dataclasses.dataclass(frozen=True)
class Retention:
    """The last `last` checkpoints, and the best `best` by a metric."""

    last: int = 3  # at least 1
    best: int = 0
    metric: str | None = None  # the name of what the best are chosen by
    mode: str = "min"  # or "max": which values are good ones

    def __post_init__(self) -> None:
        if self.last < 1 or self.best < 0:
            raise ValueError(
                f"keep_last={self.last}, keep_best={self.best}: at least the last checkpoint is "
                "kept, and no negative number"
            )
        if self.mode not in ("min", "max"):
            raise ValueError(f"mode={self.mode!r}: it is 'min' or 'max'")
        if self.best and self.metric is None:
            raise ValueError(f"keep_best={self.best} needs metric=, the name of a metric")

    def expired(self, found: Sequence[CheckpointInfo]) -> list[CheckpointInfo]:
        """Returns those that are not kept, in the order of `found`.

        A checkpoint without the metric, or with NaN, is none of the best. Of equal ones the newer
        is better.
        """
        newest_first = sorted(found, key=lambda info: info.order, reverse=True)
        kept = {info.order for info in newest_first[: self.last]}
        if self.best and self.metric is not None:
            values = [(info.metrics.get(self.metric, math.nan), info) for info in newest_first]
            measured = [(value, info) for value, info in values if not math.isnan(value)]
            measured.sort(key=lambda pair: pair[0] if self.mode == "min" else -pair[0])
            kept |= {info.order for _, info in measured[: self.best]}
        return [info for info in found if info.order not in kept]


class Publisher:
    """Publishes drafts, and keeps room for them. Used by one thread."""

    def __init__(
        self,
        files: CheckpointFiles,
        retention: Retention,
        lease_check: Callable[[], bool] | None,
        hurries: Callable[[], bool],
    ) -> None:
        """Sets the folder and which of its checkpoints are kept.

        `lease_check` says whether this process may still publish. `hurries` says whether it is
        killed soon: nothing is read back or removed then.
        """
        self._files, self._retention = files, retention
        self._lease_check, self._hurries = lease_check, hurries
        self._begun: int | None = None  # the generation that has written

    def publish(self, draft: Draft) -> None:
        """Writes a draft, reads it back, and removes what is not kept any more.

        FencedError: this process may not publish. OSError: the storage failed; trying again may
        help.
        """
        if self._begun != draft.generation:
            if draft.share.index == 0:
                self._clean(draft, None)  # what a killed writer has left may be what fills the disk
            self._begun = draft.generation
        try:
            published = self._files.publish(draft, self._lease_check)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            fewer = max(1, self._retention.last - 1)
            self._clean(draft, dataclasses.replace(self._retention, last=fewer), verify=True)
            published = self._files.publish(draft, self._lease_check)
        if published and not self._hurries():
            self._files.verify(draft, self._hurries)
        if published and not self._hurries() and draft.share.index == 0:
            self._clean(draft, self._retention)

    def _clean(self, draft: Draft, retention: Retention | None, *, verify: bool = False) -> None:
        """Removes what is not kept. Its failure costs space, and no checkpoint."""
        try:
            _remove_unkept(self._files, draft, retention, verify=verify)
        except Exception as error:
            text = "nothing is cleaned up in %s: %s. It is tried again after the next checkpoint"
            _log.warning(text, self._files.folder, retries.described(error))


def _remove_unkept(
    checkpoints: CheckpointFiles,
    draft: Draft,
    retention: Retention | None,
    *,
    verify: bool = False,
) -> None:
    """Removes what is not kept, and what killed writers have left.

    It touches only files older than the draft, and of an older generation or of the draft's owner.
    A checkpoint of several shares is kept besides those that are counted until the next one is
    there: other processes may still write their shares, or read them back. Without `retention` all
    checkpoints are kept. With `verify` only those are removed that are older than one that can be
    read back.
    """
    files = checkpoints.folder.names()
    infos, unreadable = checkpoints.survey(files)
    theirs = draft.name if draft.share.count > 1 else ""
    counted = [i for i in infos if i.name != theirs]
    expired = [] if retention is None else retention.expired(counted)
    expired = [info for info in expired if _may_remove(checkpoints, info.data, draft)]
    if verify and expired:
        sound = _newest_sound(checkpoints, infos)
        expired = [info for info in expired if info.order < sound]
    for info in expired:
        for file in info.files:  # the first one names the others
            checkpoints.folder.remove(file)
    kept = {file for i in infos if i not in expired for file in i.files}
    stays = tuple(f"{name}{sign}" for name in [*unreadable, theirs] if name for sign in "-.")
    for file in files:
        if file in kept or file.startswith(stays):
            continue
        if _may_remove(checkpoints, file, draft):
            checkpoints.folder.remove(file)


def _newest_sound(checkpoints: CheckpointFiles, infos: Sequence[CheckpointInfo]) -> tuple[int, int]:
    """Returns the order of the newest one that can be read back; (0, 0) if none can."""
    for info in reversed(infos):
        try:
            for share in checkpoints.shares(info):
                checkpoints.read_back(share, lambda: False)
        except (InvalidCheckpointError, OSError) as error:
            _log.warning("%s in %s cannot be read back: %s", info.name, checkpoints.folder, error)
        else:
            return info.order
    return 0, 0


def _may_remove(checkpoints: CheckpointFiles, file: str, draft: Draft) -> bool:
    """Whether a file is older than the draft, and of an older generation or the same owner."""
    place = manifest.place_of(file)
    if place is None or place > (draft.generation, draft.step):
        return False
    if place[0] < draft.generation:
        return True
    if manifest.order_of(file) is not None:
        with contextlib.suppress(InvalidCheckpointError):  # one whose shares are missing
            file = checkpoints.manifest_of(file).data
    return manifest.owner_of(file) == manifest.owner_of(draft.share.data)
