"""The records of one `tfring run` on this host, and the end of a job without a launcher.

The explanation of a failure and the report read them. Modules that need numpy are loaded when there
are records: they take longer than the rest of the start of a job.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from tfring.observe.explain.causes import WELL, Cause, Explanation
from tfring.observe.recorder import catalog
from tfring.observe.recorder.errors import RecordError
from tfring.observe.recorder.places import default_folder, id_of, jobs, short

if TYPE_CHECKING:
    from tfring.observe.recorder.job import JobRecords
    from tfring.observe.report.summary import Report

RECORD_DIR = "TFRING_RECORD_DIR"
_log = logging.getLogger("tfring")
# The kept report has at most this many ranks: the end of a run must not wait.
_MOST_REPORTED = 32


def report_of(records: Sequence[Path]) -> Report | None:
    """Returns the report of records of a job; None if they cannot be read. Never raises."""
    from tfring.observe.recorder.job import join_records
    from tfring.observe.recorder.reader import read_record
    from tfring.observe.report.summary import make_report

    found = []
    for path in records[:_MOST_REPORTED]:
        with contextlib.suppress(OSError, RecordError):  # that rank has left meanwhile
            found.append(read_record(path))
    try:
        return make_report(join_records(found)) if found else None
    except Exception:  # a mistake in a report
        _log.warning("tfring cannot make the report of this job", exc_info=True)
        return None


class RunRecords:
    """The records of one run. Used by one thread, in a `with` statement around the run.

    Records in the user's folder stay. Others are removed at the end if `succeeded` is set.

    Args:
        environment: Of the ranks; TFRING_RECORD_DIR there is the user's folder.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._given = environment.get(RECORD_DIR, "")
        self._job = ""
        self._verdict = ""
        self._began = time.time_ns()
        self.succeeded = False

    def begin(self, job: str, command: Sequence[str]) -> None:
        """Notes that a job begins whose launcher this process is."""
        self._job = job
        base = Path(self._given) if self._given else default_folder()
        with contextlib.suppress(OSError):
            catalog.note_begin(job, command, base, launched=True)
            catalog.remove_old()
        if jobs():
            from tfring.observe.recorder import keeping

            with contextlib.suppress(OSError):
                keeping.throw_away("")

    @property
    def name(self) -> str:
        """The job's id for people."""
        return short(self._job)

    def __enter__(self) -> RunRecords:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        entry = catalog.find_note(self._job)
        if entry is None or not entry.mine:
            return
        with contextlib.suppress(OSError):
            state = "ended" if self.succeeded else "failed"
            catalog.note_end(self._job, state, self._verdict, self._kept())
        if self.succeeded and not self._given and self._folders():
            from tfring.observe.recorder import keeping

            keeping.remove_job(self._job)

    def nobody_joined(self) -> bool:
        """Tells whether no process on this host has called init; False if unknown."""
        if catalog.find_note(self._job) is None or self._folders():
            return False
        if not self._given:
            return True
        with contextlib.suppress(OSError):
            Path(self._given).mkdir(parents=True, exist_ok=True)  # as ranks do
            return os.access(self._given, os.W_OK)
        return False

    def _folders(self) -> list[Path]:
        """Returns the folders of the job's records on this host."""
        base = Path(self._given) if self._given else None
        return [folder for folder in jobs(base) if id_of(folder.name) == self._job]

    def _records(self) -> list[Path]:
        """Returns the records of the job; raises RecordError if there are none."""
        if not self._folders():
            raise RecordError(f"job {self.name} has no records on this host")
        from tfring.observe.recorder.choice import find_job, find_records

        return find_records(find_job(self._job))

    @cached_property
    def job(self) -> JobRecords:
        """The records of this run's job after its end, the newest if it has had several.

        Raises:
            RecordError: Its ranks of this host have left none.
            OSError: One cannot be read.
        """
        records = self._records()
        from tfring.observe.recorder.job import load_job

        job = load_job(records)
        # Ranks that began before this run are another run's.
        if all(r.header["started_wall"] < self._began for r in job.records.values()):
            raise RecordError(f"no rank of job {self.name} has left a record")
        return job

    @cached_property
    def report(self) -> Report | None:
        """The report of the job, after all its ranks have ended."""
        with contextlib.suppress(RecordError):
            return report_of(self._records())
        return None

    def _kept(self) -> dict[str, Any]:
        """Returns what stays of the report if the records are removed; else {}."""
        report = self.report if self.succeeded and not self._given else None
        if report is None:
            return {}
        from tfring.observe.report.answer import keep_report

        return keep_report(report)

    def explanation(self, ended: Collection[int] = ()) -> Explanation | None:
        """Returns why the run failed, after all its ranks have ended; None: unknown. Never raises.

        Args:
            ended: The ranks that the launcher ended: that they are gone explains nothing.
        """
        try:
            job = self.job
            from tfring.observe.explain.explain import explain_job

            found = explain_job(job)
        except (RecordError, OSError):
            return None
        except Exception:  # a mistake in a rule
            _log.warning("tfring cannot explain this failure", exc_info=True)
            return None
        if found.cause in WELL:
            return None
        return None if found.cause is Cause.KILLED and set(found.ranks) <= set(ended) else found

    @property
    def known(self) -> str:
        """The job's id for people if tools find its records on this host; else ""."""
        try:
            return short(self.job.job)
        except (RecordError, OSError):
            return ""

    def last_seen(self, rank: int) -> str:
        """Returns where a rank was last, as "train.py:40, after step 6"; "": unknown."""
        try:
            record = self.job.records[rank]
        except (KeyError, RecordError, OSError):
            return ""
        site = next((call.call_site for call in reversed(record.calls) if call.call_site), "")
        step = int(record.header["step"])
        return ", ".join(filter(None, (site, f"after step {step}" if step > 0 else "")))

    def tell(self, verdict: str) -> None:
        """Keeps the verdict on the failure for the tools."""
        self._verdict = verdict
