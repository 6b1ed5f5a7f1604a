"""Finds the job that the user means: by its id, by folder or terminal, or the only one running."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tfring.observe.recorder import catalog
from tfring.observe.recorder.catalog import JobNote
from tfring.observe.recorder.layout import RankState
from tfring.observe.recorder.places import id_of, jobs, record_files, short
from tfring.observe.recorder.processes import own_terminal, process_state
from tfring.observe.recorder.reader import RecordError, read_header
from tfring.runtime.texts.plain import plain

# The interpreter and the script.
_WITHOUT_FOLDERS = 2


class NoJobError(RecordError):
    """This host knows no job."""


@dataclass(frozen=True)
class Generation:
    """The records of one generation of a job on this host: folder, and headers by rank."""

    folder: Path
    headers: list[dict[str, Any]]

    @property
    def present(self) -> list[dict[str, Any]]:
        """The headers of ranks whose processes take part in it now."""
        states = (RankState.RUNNING, RankState.FAILED)
        here = [one for one in self.headers if one["state"] in states]
        return [one for one in here if process_state(one) in ("running", "stopped", None)]

    @property
    def size(self) -> int:
        """The number of its ranks, on all hosts."""
        return max((int(header["size"]) for header in self.headers), default=0)


@dataclass(frozen=True)
class KnownJob:
    """A job that this host knows.

    Attributes:
        job: Its id.
        entry: What was noted when it began and ended.
        generations: Those with records. The first is the one that tools show: generations with live
            ranks come first, then those with more ranks, then the newest.
    """

    job: str
    entry: JobNote | None
    generations: list[Generation]

    @property
    def runs(self) -> bool:
        """Whether its launcher or one of its ranks on this host is alive."""
        return any(one.present for one in self.generations) or (
            self.entry is not None and self.entry.launched and self.entry.lives
        )

    @property
    def began(self) -> float:
        """When it began, in seconds since 1970."""
        if self.entry is not None:
            return self.entry.began
        return min(int(h["started_wall"]) for one in self.generations for h in one.headers) / 1e9

    @property
    def folder(self) -> str:
        """The folder where its program was started; "": unknown."""
        return self.entry.folder if self.entry is not None else ""

    @property
    def terminal(self) -> int:
        """The terminal where it was started, while what noted it lives; 0: unknown."""
        return self.entry.terminal if self.entry is not None and self.entry.lives else 0

    @property
    def program(self) -> str:
        """The program and its arguments for people; "?": unknown."""
        command = self.entry.command if self.entry is not None else []
        first = [os.path.basename(word) or word for word in command[:_WITHOUT_FOLDERS]]
        return plain(" ".join([*first, *command[_WITHOUT_FOLDERS:]])) or "?"


def known_jobs(base: Path | None = None) -> list[KnownJob]:
    """Returns the jobs of this user on this host, the newest first.

    Args:
        base: The folder of their records; None: the default folder, and each folder that a noted
            job uses.
    """
    noted = {entry.job: entry for entry in catalog.read_notes()} if base is None else {}
    folders = jobs(base)
    for place in {entry.records for entry in noted.values()}:
        folders += [one for one in jobs(Path(place)) if one not in folders]
    found: dict[str, list[Generation]] = {job: [] for job in noted}
    for folder in folders:
        generation = Generation(folder, _headers(folder))
        if generation.headers:
            found.setdefault(id_of(folder.name), []).append(generation)
    for generations in found.values():
        generations.sort(key=_rank_of, reverse=True)
    known = [KnownJob(job, noted.get(job), some) for job, some in found.items()]
    return sorted(known, key=lambda one: one.began, reverse=True)


def find_job(name: str, base: Path | None = None) -> KnownJob:
    """Returns the job whose id begins with `name`.

    Raises:
        RecordError: There is none, or there are several.
    """
    known = known_jobs(base)
    found = [one for one in known if one.job == name] or [
        one
        for one in known
        if one.job.startswith(name) or any(g.folder.name.startswith(name) for g in one.generations)
    ]
    if len(found) == 1:
        return found[0]
    what = "the id of several jobs begins with" if found else "no file, folder or job has the name"
    raise RecordError(f"{what} {name}; jobs here:{_known_text(found or known)}")


def choose_job(base: Path | None = None) -> KnownJob:
    """Returns the job that is meant where the user names none.

    It is the job that runs. Of several it is the one started in this folder, else the one started
    from this terminal, else the newest that ended in this folder. If none runs, it is the job that
    ended last.

    Raises:
        RecordError: No job has left anything, or several run.
    """
    known = known_jobs(base)
    if not known:
        raise NoJobError("no job on this host has left a record, and none is running")
    running = [one for one in known if one.runs]
    if not running:
        return known[0]
    folder = _own_folder()
    here = [one for one in running if folder and one.folder == folder]
    terminal = own_terminal()
    from_here = [one for one in here or running if one.terminal == terminal != 0]
    for found in (running, here, from_here):
        if len(found) == 1:
            return found[0]
    ended = [one for one in known if folder and one.folder == folder and not one.runs]
    if ended and not here:
        return ended[0]
    where = "here" if here else "on this host, none of them started in this folder"
    raise RecordError(
        f"{len(here or running)} jobs run {where}: name one by its id."
        f"{_known_text(here or running)}"
    )


def find_records(job: KnownJob) -> list[Path]:
    """Returns the records of a job that tools show.

    Raises:
        RecordError: There are none.
    """
    if not job.generations:
        begun = "no rank of it has come to init yet" if job.runs else "they were removed at its end"
        raise RecordError(f"job {short(job.job)} has no records on this host: {begun}")
    return record_files(job.generations[0].folder)


def _own_folder() -> str:
    """Returns the working folder; "" if it was removed."""
    with contextlib.suppress(OSError):
        return os.getcwd()
    return ""


def _headers(folder: Path) -> list[dict[str, Any]]:
    headers = []
    for path in record_files(folder):
        with contextlib.suppress(OSError, RecordError):  # it is being made, or was removed
            headers.append(read_header(path))
    return headers


def _rank_of(one: Generation) -> tuple[bool, int, int]:
    return bool(one.present), one.size, max(int(header["started_wall"]) for header in one.headers)


def _known_text(known: Sequence[KnownJob]) -> str:
    if not known:
        return " none"
    return "\n" + "\n".join(
        f"  {short(one.job)}  {one.program}  in {plain(one.folder) or '?'}" for one in known
    )
