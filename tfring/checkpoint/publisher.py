"""Publisher: what the thread that writes checkpoints does with each."""

from __future__ import annotations

import dataclasses
import errno
import logging
from collections.abc import Callable

from tfring.checkpoint import cleaning, retries
from tfring.checkpoint.draft import Draft
from tfring.checkpoint.files import CheckpointFiles
from tfring.checkpoint.retention import Retention

_log = logging.getLogger("tfring")


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
            cleaning.clean(self._files, draft, retention, verify=verify)
        except Exception as error:
            text = "nothing is cleaned up in %s: %s. It is tried again after the next checkpoint"
            _log.warning(text, self._files.folder, retries.described(error))
