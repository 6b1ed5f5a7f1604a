"""Follows the ranks of one job."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from tfring.observe.live.hosts import OtherHosts
from tfring.observe.live.overview import Overview, make_overview
from tfring.observe.live.rows import Row, make_row, parse_row
from tfring.observe.recorder.job import load_job
from tfring.observe.recorder.layout import RankState
from tfring.observe.recorder.places import record_files
from tfring.observe.recorder.reader import Record, RecordError, read_header, read_record
from tfring.runtime.gpu.usage import gpu_use

# Rates are over this time: `fit` notes samples and times a few times a second.
_RATE_NANOSECONDS = 10_000_000_000


class Watch:
    """The ranks of one job, of this host and of others.

    Args:
        given: The job, as for `load_job`.
        others: Other hosts where `tfring top --json` runs; None: only this host's ranks.

    Raises:
        RecordError: No such job has a record here, and none is expected from others.
    """

    def __init__(self, given: Sequence[str], others: OtherHosts | None = None) -> None:
        self._others = others
        self._files: dict[int, Path] = {}
        self._rows: dict[tuple[str, int], Row] = {}  # by host and rank
        self._earlier: deque[list[Row]] = deque()  # the same at earlier looks, the oldest first
        self._size = 0
        self.given = list(given)  # names the same job from now on
        try:
            job = load_job(given)
        except RecordError:
            if others is None:
                raise
            return
        self._files = {rank: record.path for rank, record in job.records.items()}
        self._size = job.size
        folders = {path.parent for path in self._files.values()}
        if len(folders) == 1:
            self.given = [str(next(iter(folders)))]

    def records(self) -> dict[int, Record]:
        """Returns the records of this host's ranks that still exist, by rank."""
        if 0 < len(self._files) < self._size:
            self._look_for_more()
        found = {}
        for rank, path in self._files.items():
            try:
                found[rank] = read_record(path)
            except (FileNotFoundError, RecordError):
                continue  # it has left, or begins a new generation
        return found

    def _look_for_more(self) -> None:
        """Finds the records of ranks that came later."""
        for folder in {path.parent for path in self._files.values()}:
            for path in set(record_files(folder)) - set(self._files.values()):
                with contextlib.suppress(OSError, RecordError):
                    self._files[int(read_header(path)["rank"])] = path

    def look(self) -> Overview:
        """Returns the job as of now, with rates over the last ten seconds.

        Raises:
            RecordError: There is nothing yet, or the hosts show different jobs.
        """
        rows = self._new_rows()
        before = list(self._rows.values())
        if before:
            self._earlier.append(before)
        # A rank whose record is gone stays as it was last.
        self._rows.update({(row.host, row.rank): row for row in rows})
        left = {(row.host, row.rank) for row in before} - {(row.host, row.rank) for row in rows}
        for key in left:
            self._rows[key] = _after_the_end(self._rows[key])
        if not self._rows:
            troubles = self._others.troubles() if self._others else []
            raise RecordError("; ".join(troubles) or "no host has answered yet")
        jobs = sorted({str(row.record["job"]) for row in self._rows.values()})
        if len(jobs) > 1:
            raise RecordError(f"the hosts show different jobs: {', '.join(jobs)}; name one")
        found = list(self._rows.values())
        newest = max(row.time for row in found)
        while len(self._earlier) > 1 and newest - _newest(self._earlier[0]) > _RATE_NANOSECONDS:
            self._earlier.popleft()
        return make_overview([row for rows in reversed(self._earlier) for row in rows], found)

    def _new_rows(self) -> list[Row]:
        gpus = gpu_use()
        rows = [make_row(record, gpus) for record in self.records().values()]
        for answer in self._others.newest() if self._others else []:
            rows += [parse_row(values.get("row", {})) for values in answer["ranks"]]
        return rows


def _newest(rows: list[Row]) -> int:
    return max(row.time for row in rows)


def _after_the_end(row: Row) -> Row:
    """Returns the row of a rank whose record was removed, because the rank has left."""
    record = {**row.record, "state": int(RankState.LEFT)}
    return replace(row, record=record, process="gone", memory=0)
