"""One file per job of this user on this host, beside the records, kept for a day.

The launcher writes it; without a launcher the first rank of the host does. At the end the same
process adds how the job ended.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tfring.job.security.files import replace_file
from tfring.observe.recorder.places import check_own, default_folder
from tfring.observe.recorder.processes import (
    own_boot,
    own_pid_space,
    own_terminal,
    process_state,
    stat_fields,
)

_SUFFIX = ".job"
_DAY = 24 * 3600.0
_MOST = 50


@dataclass(frozen=True)
class JobNote:
    """What is known of a job without its records.

    Attributes:
        job: Its id.
        command: The program and its arguments.
        folder: Where it was started.
        records: The folder above the folders of its records.
        launched: Whether a launcher of tfring wrote this, and not a rank.
        terminal: The number of the terminal from which it was started; 0 if there is none.
        began: Seconds since 1970.
        process: The process that wrote this, as `process_state` reads it.
        end: What `note_end` noted; {} before.
    """

    job: str
    command: list[str]
    folder: str
    records: str
    launched: bool
    terminal: int
    began: float
    process: dict[str, Any]
    end: dict[str, Any] = field(default_factory=dict)

    @property
    def lives(self) -> bool:
        """Whether the process that wrote this is alive and has not noted the end of the job."""
        return not self.end and process_state(self.process) != "gone"

    @property
    def mine(self) -> bool:
        """Whether this process wrote it."""
        return self.process == _own_process()


def note_begin(job: str, command: Sequence[str], records: Path, *, launched: bool) -> None:
    """Notes that a job begins, unless another live process has done so.

    Raises:
        OSError: The default folder cannot be written.
    """
    base = default_folder()
    base.mkdir(mode=0o700, exist_ok=True)
    check_own(base)
    known = find_note(job)
    if known is not None and known.lives:
        return
    entry = JobNote(
        job=job,
        command=list(command),
        folder=os.getcwd(),
        records=str(records.absolute()),
        launched=launched,
        terminal=own_terminal(),
        began=time.time(),
        process=_own_process(),
    )
    _write(entry)


def note_end(job: str, state: str, verdict: str, report: Mapping[str, Any]) -> None:
    """Notes how a job ended. If the job has a launcher on this host, only the launcher does.

    Args:
        job: Its id.
        state: "ended" or "failed".
        verdict: What was wrong, in a paragraph; "": nothing.
        report: For `tfring report`; {} keeps what was noted before.

    Raises:
        OSError: The file cannot be written.
    """
    entry = find_note(job)
    if entry is not None and (entry.mine or not entry.launched):
        known = dict(report) or entry.end.get("report", {})
        end = {"time": time.time(), "state": state, "verdict": verdict, "report": known}
        _write(dataclasses.replace(entry, end=end))


def find_note(job: str) -> JobNote | None:
    """Returns what is known of the job with this id."""
    with contextlib.suppress(OSError):
        base = default_folder()
        check_own(base)
        return _read(base / f"{job}{_SUFFIX}")
    return None


def read_notes() -> list[JobNote]:
    """Returns what is known of all jobs, the newest first."""
    base = default_folder()
    with contextlib.suppress(OSError):
        check_own(base)
        found = [_read(path) for path in base.glob(f"*{_SUFFIX}")]
        known = [entry for entry in found if entry is not None]
        return sorted(known, key=lambda entry: entry.began, reverse=True)
    return []


def remove_old() -> None:
    """Removes files of jobs that ended more than a day ago, and all but the newest 50."""
    for place, entry in enumerate(read_notes()):
        if entry.lives:
            continue
        ended = float(entry.end.get("time", entry.began))
        if place >= _MOST or time.time() - ended > _DAY:
            with contextlib.suppress(OSError):
                (default_folder() / f"{entry.job}{_SUFFIX}").unlink()


def _own_process() -> dict[str, Any]:
    return {
        "pid": os.getpid(),
        "pid_started": int(stat_fields("self")[19]),
        "pid_space": own_pid_space(),
        "boot": own_boot(),
    }


def _read(path: Path) -> JobNote | None:
    with contextlib.suppress(OSError, ValueError, TypeError):
        return JobNote(**json.loads(path.read_text(encoding="utf-8")))
    return None


def _write(entry: JobNote) -> None:
    path = default_folder() / f"{entry.job}{_SUFFIX}"
    replace_file(path, json.dumps(dataclasses.asdict(entry)))
