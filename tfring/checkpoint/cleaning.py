"""Removing checkpoints that are not kept, and what killed writers have left."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Sequence

from tfring.checkpoint import manifest
from tfring.checkpoint.draft import Draft
from tfring.checkpoint.errors import InvalidCheckpointError
from tfring.checkpoint.files import CheckpointFiles
from tfring.checkpoint.manifest import CheckpointInfo
from tfring.checkpoint.retention import Retention

_log = logging.getLogger("tfring")


def clean(
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
