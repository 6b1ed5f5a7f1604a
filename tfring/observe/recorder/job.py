"""The records of a job: of all its ranks, as far as they are known."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tfring.observe.recorder.choice import choose_job, find_job, find_records, known_jobs
from tfring.observe.recorder.clocks import Clock, find_clock
from tfring.observe.recorder.layout import EventType
from tfring.observe.recorder.places import id_of, record_files
from tfring.observe.recorder.reader import Record, RecordError, read_record

# Process sets as the runtime writes them: "0: 0-3; 1: 0, 2".
_SETS = re.compile(r"\d+: \d[\d, -]*(; \d+: \d[\d, -]*)*")


@dataclass(frozen=True)
class JobRecords:
    """The records of one job by rank, and the clocks of these ranks."""

    records: dict[int, Record]
    clocks: dict[int, Clock]

    @property
    def size(self) -> int:
        """The number of ranks of the job."""
        return next(iter(self.records.values())).size

    @property
    def job(self) -> str:
        """The id of the job."""
        return id_of(str(next(iter(self.records.values())).header["job"]))

    @property
    def missing(self) -> list[int]:
        """The ranks without a record."""
        return [rank for rank in range(self.size) if rank not in self.records]

    def common(self, rank: int, time: int) -> int:
        """Returns a time of a rank on the clock of the lowest rank; 0 stays 0."""
        return self.clocks[rank].common(time)


def load_job(given: Sequence[Path | str] = (), base: Path | None = None) -> JobRecords:
    """Reads the records of the newest generation of one job.

    Args:
        given: Files, or folders with files, of all hosts; or the id of a job of this host, or its
            beginning; or nothing: see `choice.choose_job`.
        base: The folder above the folders of jobs; None: the default folder.

    Raises:
        RecordError: There is no record, a file is no record, the files are of several jobs, or it
            is unclear which job is meant.
        OSError: A file cannot be read.
    """
    records = [read_record(path) for path in find_files(given, base)]
    if not records:
        raise RecordError(f"there is no record of a job in {', '.join(map(str, given))}")
    return join_records(records)


def join_records(records: Sequence[Record]) -> JobRecords:
    """Returns the newest generation among records, at least one, of one job.

    Raises:
        RecordError: They are of several jobs.
    """
    names = sorted({str(record.header["job"]) for record in records})
    if len(names) > 1:
        raise RecordError(f"these are records of several jobs: {', '.join(names)}")
    newest: dict[int, Record] = {}
    for record in records:
        before = newest.get(record.rank)
        if before is None or before.header["started_wall"] < record.header["started_wall"]:
            newest[record.rank] = record
    ordered = dict(sorted(newest.items()))
    first = next(iter(ordered.values()))
    return JobRecords(ordered, {rank: find_clock(first, r) for rank, r in ordered.items()})


def find_files(given: Sequence[Path | str], base: Path | None = None) -> list[Path]:
    """Returns the files that `load_job` reads."""
    if not given:
        return find_records(choose_job(base))
    files: list[Path] = []
    for one in map(Path, given):
        if one.is_file():
            files.append(one)
        elif one.is_dir():
            known = [] if (here := record_files(one)) else known_jobs(one)
            files += find_records(known[0]) if known else here
        else:
            files += find_records(find_job(str(one), base))
    return files


def find_members(job: JobRecords) -> dict[int, tuple[int, ...]]:
    """Returns the ranks of each process set that was used, ascending, by the set's number.

    If the records have only calls of a set, these are the ranks that called.
    """
    members: dict[int, set[int]] = {}
    for rank, record in job.records.items():
        for call in record.calls:
            members.setdefault(call.process_set, set()).add(rank)
    for record in job.records.values():
        for event in record.events:
            if event.type == EventType.PROCESS_SETS:
                members.update(_parse(event.text))
    members[0] = set(range(job.size))
    return {number: tuple(sorted(ranks)) for number, ranks in sorted(members.items())}


def _parse(text: str) -> dict[int, set[int]]:
    if not _SETS.fullmatch(text):
        return {}  # cut, because there are very many
    sets = {}
    for one in text.split("; "):
        number, _, ranks = one.partition(": ")
        sets[int(number)] = {rank for part in ranks.split(", ") for rank in _range(part)}
    return sets


def _range(text: str) -> range:
    first, _, last = text.partition("-")
    return range(int(first), int(last or first) + 1)
