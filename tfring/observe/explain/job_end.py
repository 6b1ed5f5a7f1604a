"""Notes the end of a job without a launcher on this host: its last rank here does this.

It imports all that it needs with the module. Python forgets that Ctrl-C ends the program if a
module with a dataclass or a NamedTuple is imported after that: the exit code would be 1, not 130.
"""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path

from tfring.observe.explain.launched import report_of
from tfring.observe.recorder import catalog, keeping
from tfring.observe.recorder.errors import RecordError
from tfring.observe.recorder.layout import RankState
from tfring.observe.recorder.places import id_of, record_files
from tfring.observe.recorder.reader import read_header
from tfring.observe.report.answer import keep_report


def note_end(folder: Path, *, stays: bool) -> None:
    """Notes how a job ended, with its report, and removes the records of one that went well.

    Each rank that has left calls it. It does nothing while another rank of this host, or a
    launcher, is alive.

    Args:
        folder: Of the records of this generation.
        stays: Whether the records stay in any case, because the user named the folder.
    """
    job = id_of(folder.name)
    if keeping.launched(job) or not keeping.is_over(folder):
        return
    with contextlib.suppress(OSError, RecordError):  # another one that leaves now has removed them
        files = record_files(folder)
        well = all(read_header(file)["state"] == RankState.LEFT for file in files)
        if stays or not well:
            catalog.note_end(job, "ended" if well else "failed", "", {})
            return
        (folder / "over").touch(exist_ok=False)  # of several that leave at once, one goes on
        report = report_of(files)
        catalog.note_end(job, "ended", "", keep_report(report) if report is not None else {})
        shutil.rmtree(folder, ignore_errors=True)
