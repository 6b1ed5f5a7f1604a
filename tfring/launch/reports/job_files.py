"""The files that a job writes beside its ranks: their output, events, the exit report."""

from __future__ import annotations

import functools
import json
import os
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tfring.job.security.files import make_file, replace_file
from tfring.launch.agents.rank import RankProcess
from tfring.launch.hosts.errors import UsageError
from tfring.launch.hosts.placement import Slot
from tfring.launch.options.job_options import JobOptions
from tfring.launch.output.files import RankFiles
from tfring.launch.output.writer import BackgroundWriter, Descriptor, QueuedFile
from tfring.launch.reports.text import end_of_output, first_failure
from tfring.launch.signals import signal_name

FORMAT = 1
RUNNING, ENDED = "running", "ended"


class JobFiles:
    """The files of one job; those that nobody asked for are not there.

    Once they are open, no trouble with them ends the job or holds it up. Used by one thread.
    """

    def __init__(self, options: JobOptions) -> None:
        self._options = options
        self._writer = BackgroundWriter()
        self._output: RankFiles | None = None
        self._events: QueuedFile | None = None
        self._report: ExitReport | None = None
        self._trouble: list[str] = []

    def open(self) -> None:
        """Makes the files; UsageError if one cannot be made."""
        options, option = self._options, ""
        try:
            if options.output_folder is not None:
                option = "--output-filename"
                self._output = RankFiles(self._writer, options.output_folder, len(options.slots))
                for slot in options.slots:
                    self._output.add(slot.rank)
            if options.events is not None:
                option = "--events"
                target = Descriptor(make_file(options.events))
                self._events = QueuedFile(self._writer, target, "the events")
            if options.exit_report is not None:
                option = "--exit-report"
                report = ExitReport(options.exit_report, options)
                report.begin()
                self._report = report
        except OSError as error:
            raise UsageError(f"{option}: a file cannot be made: {error}") from None

    def begin(self) -> None:
        """Says that the job begins."""
        self.event(
            "job_started",
            job_id=self._options.job_id,
            command=self._options.argv,
            ranks=len(self._options.slots) or None,
            hosts=list(dict.fromkeys(slot.host for slot in self._options.slots)) or None,
        )

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
            try:
                self._report.restarted(restarts)
            except OSError as error:
                self._trouble.append(f"tfring run: the exit report cannot be written: {error}")
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
        if self._events is not None:
            trouble += filter(None, [self._events.left_out()])
            os.close(self._events.fileno())
        if self._output is not None:
            trouble += self._output.left_out()
            self._output.close()
        return trouble


class ExitReport:
    """How a job ended, as a file of JSON. It is there from the start, whole at any time.

    OSError: it cannot be written.
    """

    def __init__(self, path: Path, options: JobOptions) -> None:
        self._path = path.absolute()
        self._options = options
        self._began = time.time()
        self.restarts = 0  # how often all ranks have started again
        # An elastic job has no slots: its processes are workers, each with an id of its own.
        self._kind = "rank" if options.slots else "worker"

    def begin(self) -> None:
        """Writes the report of a job that has not ended."""
        self._write(self._report(RUNNING, []))

    def restarted(self, restarts: int) -> None:
        """Writes how often all ranks have started again."""
        self.restarts = restarts
        self.begin()

    def end(
        self,
        processes: list[RankProcess],
        exit_code: int,
        *,
        stopped_by: int | None,
        explanation: str,
    ) -> None:
        """Writes the report of a job that has ended, with the ranks that were started."""
        report = self._report(ENDED, processes)
        first = first_failure(processes)
        report["ended"] = time.time()
        report["exit_code"] = exit_code
        report["signal"] = None if stopped_by is None else signal_name(stopped_by)
        report["explanation"] = explanation
        if first is not None:
            report["first_failure"] = {
                self._kind: first.rank,
                "host": first.slot.host,
                "reason": first.describe_end(),
            }
        self._write(report)

    def _write(self, report: dict[str, Any]) -> None:
        """Writes the file; readers never see a part of it."""
        replace_file(self._path, json.dumps(report, indent=2) + "\n")

    def _report(self, state: str, processes: list[RankProcess]) -> dict[str, Any]:
        started = {process.rank: process for process in processes}
        slots = self._options.slots or [process.slot for process in processes]
        return {
            "format": FORMAT,
            "state": state,
            "job_id": self._options.job_id,
            "launcher": {"host": socket.gethostname(), "pid": os.getpid()},
            "command": self._options.argv,
            "began": self._began,
            "ended": None,
            "exit_code": None,
            "signal": None,
            "restarts": self.restarts,
            "first_failure": None,
            "explanation": "",
            f"{self._kind}s": [self._facts(slot, started.get(slot.rank)) for slot in slots],
        }

    def _facts(self, slot: Slot, process: RankProcess | None) -> dict[str, Any]:
        facts = {self._kind: slot.rank, "host": slot.host, **_facts(process)}
        if self._kind == "worker":
            facts["replaces"] = None if process is None else process.replaces
        return facts


def _facts(process: RankProcess | None) -> dict[str, Any]:
    """Returns what the report says of a rank, which may not have been started."""
    facts = process.facts if process is not None else {}
    ended = process is not None and process.code is not None
    return {
        "pid": facts.get("pid"),
        "cores": facts.get("cores"),
        "exit_code": process.exit_code() if process is not None and ended else None,
        "signal": -process.code if process and process.code and process.code < 0 else None,
        "oom": process.out_of_memory() if process is not None else "",
        "reason": process.describe_end() if process is not None and ended else "",
        "ended_by_launcher": process is not None and process.ended_by_launcher,
        "last_lines": end_of_output(process) if process is not None else [],
    }
