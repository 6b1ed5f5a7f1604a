"""The records of what `tfring run` starts: where they are, and what they say of a failure."""

from __future__ import annotations

import contextlib
import shutil
import time
from pathlib import Path

from tfring.explain.causes import Cause
from tfring.explain.explain import explain_now
from tfring.recorder.job import load_job
from tfring.recorder.places import is_run_folder, make_run_folder
from tfring.recorder.reader import RecordError


class RunRecords:
    """The folder of the records of one run on this host. Used by one thread.

    Args:
        given: The folder that the user wants, where records stay; None or "": one of our own,
            which goes when the run has ended well.
    """

    def __init__(self, given: str | None) -> None:
        # A rank that runs `tfring run` has the folder of its own run in its environment.
        self._own = not given or is_run_folder(Path(given))
        self._folder = make_run_folder() if self._own or not given else Path(given)
        self._began = time.time_ns()

    @property
    def variables(self) -> dict[str, str]:
        """What ranks of this host get in their environment."""
        return {} if self._folder is None else {"TFRING_RECORD_DIR": str(self._folder)}

    def explanation(self) -> str:
        """Returns why the run has failed, after all its ranks have ended; "" if that is unknown."""
        if self._folder is None:
            return ""
        try:
            job = load_job([self._folder])
            if any(r.header["started_wall"] < self._began for r in job.records.values()):
                return ""  # of an earlier run; this one has not got as far as init
            found = explain_now([record.path for record in job.records.values()])
        except (RecordError, OSError):
            return ""
        if found.cause in (Cause.NOTHING, Cause.OVER, Cause.SLOW):
            return ""
        return f"{found.text} The records are in {next(iter(job.records.values())).path.parent}."

    def end(self, *, failed: bool) -> None:
        """Removes the folder; after a failure only if it is empty."""
        if not self._own or self._folder is None:
            return
        if not failed:
            shutil.rmtree(self._folder, ignore_errors=True)
        with contextlib.suppress(OSError):
            self._folder.rmdir()
