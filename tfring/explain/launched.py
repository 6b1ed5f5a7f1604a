"""The records of what one `tfring run` starts on this host: one folder, from its start to its end.

The explanation of a failure and the report read them there.
"""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Collection, Mapping
from pathlib import Path
from types import TracebackType

from tfring.explain.causes import Cause
from tfring.explain.explain import explain_now
from tfring.recorder.job import JobRecords, load_job
from tfring.recorder.places import is_run_folder, jobs, make_run_folder, record_files
from tfring.recorder.reader import RecordError

RECORD_DIR = "TFRING_RECORD_DIR"


class RunRecords:
    """The folder of one run. Used by one thread, in a `with` statement around the run.

    A folder that the user names stays as it is. One of our own is removed at the end if `succeeded`
    says that the run went well, or if nothing is in it.

    Args:
        environment: What the ranks will have; TFRING_RECORD_DIR there is the user's folder.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        given = environment.get(RECORD_DIR, "")
        # A rank that runs `tfring run` has the folder of its own run in its environment.
        self._own = not given or is_run_folder(Path(given))
        self._folder = make_run_folder() if self._own else Path(given)
        self._began = time.time_ns()
        self.succeeded = False

    def __enter__(self) -> RunRecords:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if not self._own or self._folder is None:
            return
        if self.succeeded:
            shutil.rmtree(self._folder, ignore_errors=True)
        with contextlib.suppress(OSError):
            self._folder.rmdir()

    @property
    def variables(self) -> dict[str, str]:
        """What ranks of this host get in their environment."""
        return {} if self._folder is None else {RECORD_DIR: str(self._folder)}

    def nobody_joined(self) -> bool:
        """Tells whether no process on this host has called init; False if that is not known."""
        return self._own and self._folder is not None and not jobs(self._folder)

    def job(self) -> JobRecords:
        """Returns the records of this run's job, the newest if it has had several.

        Raises:
            RecordError: Its ranks of this host have left none.
            OSError: One cannot be read.
        """
        if self._folder is None:
            raise RecordError("no folder for records could be made")
        for folder in jobs(self._folder)[:1]:
            job = load_job(record_files(folder))
            # Ranks that began before this run are another run's.
            if any(r.header["started_wall"] >= self._began for r in job.records.values()):
                return job
        raise RecordError(f"no rank has left a record in {self._folder}")

    def explanation(self, ended: Collection[int] = ()) -> str:
        """Returns why the run has failed, after all its ranks have ended; "" if that is unknown.

        Never raises: the exit code of the run is that of its ranks.

        Args:
            ended: The ranks that the launcher has ended: that they are gone explains nothing.
        """
        try:
            paths = [record.path for record in self.job().records.values()]
            found = explain_now(paths)
        except (RecordError, OSError):
            return ""
        except Exception as error:  # a mistake in a rule
            return f"there is no explanation: {type(error).__name__}: {error}"
        if found.cause in (Cause.NOTHING, Cause.OVER, Cause.SLOW):
            return ""
        if found.cause is Cause.KILLED and set(found.ranks) <= set(ended):
            return ""
        return f"{found.text} The records are in {paths[0].parent}."
