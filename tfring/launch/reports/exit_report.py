"""The exit report: how a job ended, as a file of JSON."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path
from typing import Any

from tfring.launch.agents.last_words import RUNNING, write_report
from tfring.launch.agents.rank import RankProcess
from tfring.launch.hosts.placement import Slot
from tfring.launch.options.job_options import JobOptions
from tfring.launch.reports.text import end_of_output, first_failure
from tfring.launch.signals import signal_name

FORMAT = 1
ENDED = "ended"


class ExitReport:
    """The report of one job. It is there from the start, whole at any time.

    OSError: it cannot be written.
    """

    def __init__(self, path: Path, options: JobOptions) -> None:
        self._path = path.absolute()
        self._options = options
        self._began = time.time()
        self._restarts = 0  # how often all ranks have started again
        # An elastic job has no slots: its processes are workers, each with an id of its own.
        self._kind = "rank" if options.slots else "worker"

    def begin(self) -> None:
        """Writes the report of a job that has not ended."""
        write_report(self._path, self._report(RUNNING, []))

    def restarted(self, restarts: int) -> None:
        """Writes how often all ranks have started again: an agent may have to finish the report."""
        self._restarts = restarts
        self.begin()

    def order(self) -> dict[str, object]:
        """Returns what an agent needs that is to finish the report: see last_words.py."""
        return {"path": str(self._path), "job_id": self._options.job_id}

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
        write_report(self._path, report)

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
            "restarts": self._restarts,
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
