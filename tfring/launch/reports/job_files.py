"""The files that a job writes beside its ranks: their output, events, the exit report."""

from __future__ import annotations

import contextlib
import functools
import json
import time
from collections.abc import Callable
from pathlib import Path

from tfring.launch.agents.host import Host
from tfring.launch.agents.rank import RankProcess
from tfring.launch.hosts.errors import UsageError
from tfring.launch.options.job_options import JobOptions
from tfring.launch.output.files import RankFiles, RotatingFile
from tfring.launch.output.writer import BackgroundWriter, QueuedFile
from tfring.launch.reports.exit_report import ExitReport
from tfring.launch.signals import signal_name


class JobFiles:
    """The files of one job; those that nobody asked for are not there.

    Once they are open, no trouble with them ends the job or holds it up. Used by one thread.
    """

    def __init__(self, options: JobOptions) -> None:
        self._options = options
        self._writer = BackgroundWriter()
        self._output: RankFiles | None = None
        self._event_file: RotatingFile | None = None
        self._events: QueuedFile | None = None
        self._report: ExitReport | None = None
        self._trouble: list[str] = []

    def open(self) -> None:
        """Makes the files; UsageError if one cannot be made."""
        options, option = self._options, ""
        try:
            if options.output_folder is not None:
                option = "--output-filename"
                self._output = RankFiles(
                    self._writer,
                    options.output_folder,
                    len(options.slots),
                    options.output_max_mb,
                    options.output_keep,
                )
                for slot in options.slots:
                    self._output.add(slot.rank)
            if options.events is not None:
                option = "--events"
                self._event_file = RotatingFile(Path(options.events))
                self._events = QueuedFile(self._writer, self._event_file, "the events")
            if options.exit_report is not None:
                option = "--exit-report"
                report = ExitReport(options.exit_report, options)
                report.begin()
                self._report = report
        except OSError as error:
            raise UsageError(f"{option}: a file cannot be made: {error}") from None

    def begin(self, host: Host | None) -> None:
        """Says that the job begins; the agent of this host finishes the report if we are killed."""
        self.event(
            "job_started",
            job_id=self._options.job_id,
            command=self._options.argv,
            ranks=len(self._options.slots) or None,
            hosts=list(dict.fromkeys(slot.host for slot in self._options.slots)) or None,
        )
        if self._report is not None and host is not None:
            host.keep_report(self._report.order())

    def add_worker(self, worker: int) -> None:
        """Makes the files for the output of a worker, whose id stands for its rank in copier()."""
        if self._output is not None:
            try:
                self._output.add(worker, f"worker.{worker}")
            except OSError as error:
                self._trouble.append(
                    f"tfring run: the output of worker {worker} is in no file: {error}"
                )

    def copier(self, rank: int) -> Callable[[str, bytes], None] | None:
        """Returns what takes copies of a rank's output; None if nobody asked for them."""
        return None if self._output is None else functools.partial(self._output.write, rank)

    def event(self, event: str, **facts: object) -> None:
        """Adds an event of `tfring help launcher`; facts that are None are left out."""
        if self._events is None:
            return
        known = {name: value for name, value in facts.items() if value is not None}
        line = {"time": time.time(), "event": event, **known}
        self._events.write(json.dumps(line).encode() + b"\n")
        self._events.flush()

    def rank_ended(self, process: RankProcess) -> None:
        """Adds the event of the end of a rank."""
        code = process.code
        self.event(
            "rank_failed" if process.failed() else "rank_ended",
            rank=process.rank,
            host=process.slot.host,
            exit_code=process.exit_code(),
            signal=signal_name(-code) if code is not None and code < 0 else None,
            reason=process.describe_end(),
            oom=process.out_of_memory() or None,
            ended_by_launcher=process.ended_by_launcher,
        )

    def restarted(self, restarts: int, reason: str) -> None:
        """Says that all ranks start again, and how often they have by now."""
        self.event("restart", restart=restarts, reason=reason)
        if self._report is not None:
            with contextlib.suppress(OSError):  # else its end says so
                self._report.restarted(restarts)
        if self._output is not None:
            for slot in self._options.slots:  # a worker has files of its own
                self._output.mark(slot.rank, f"restart {restarts} of all ranks: {reason}")

    def end(
        self, processes: list[RankProcess], code: int, stopped_by: int | None, explanation: str
    ) -> None:
        """Says that the job has ended, and writes the exit report, with the ranks that started."""
        name = None if stopped_by is None else signal_name(stopped_by)
        self.event("job_ended", exit_code=code, signal=name, explanation=explanation or None)
        if self._report is not None:
            try:
                self._report.end(processes, code, stopped_by=stopped_by, explanation=explanation)
            except OSError as error:
                self._trouble.append(f"tfring run: the exit report cannot be written: {error}")

    def close(self) -> list[str]:
        """Writes what is left, and closes the files; returns what could not be written."""
        if not self._writer.close():
            return [
                *self._trouble,
                "tfring run: the end of some files is missing: their disk hangs",
            ]
        trouble = list(self._trouble)
        if self._events is not None and (text := self._events.left_out()):
            trouble.append(text)
        if self._output is not None:
            trouble += self._output.left_out()
            self._output.close()
        if self._event_file is not None:
            self._event_file.close()
        return trouble
