"""One worker of an elastic job from the launcher's side."""

from __future__ import annotations

from dataclasses import dataclass, field

from tfring.launch.agents.rank import RankProcess
from tfring.launch.elastic.orders import StartWorker
from tfring.launch.escalation import Escalation
from tfring.launch.exit_codes import DISMISSED
from tfring.launch.reports.text import MOST_CAUSE, error_of


@dataclass
class Worker:
    """A worker that was started. `process` names it by its id, where others have a rank."""

    start: StartWorker
    process: RankProcess
    rank: int = -1  # in the last generation that it was in; -1: in none
    generation: int = 0
    told: bool = False  # to leave, as the job was over, before it ended
    unwanted: bool = False  # the coordinator has had it ended
    escalation: Escalation = field(default_factory=Escalation)

    def name(self) -> str:
        """Returns ``worker 3 (rank 1, host node1, slot 0)``."""
        rank = f"rank {self.rank}, " if self.rank >= 0 else ""
        return f"worker {self.start.worker} ({rank}host {self.start.host}, slot {self.start.slot})"

    def cause(self) -> str:
        """Returns what ended its process, if that was a failure of the program; "" if unknown.

        That is the exception; or, if it has not joined yet, its last line, as of `sys.exit`; or
        that there is none, so that a program that always fails without a word is known. What ssh
        says of a lost host is no failure of the program.
        """
        code = self.process.code
        if not code or code < 0 or code == DISMISSED or self.process.lost():
            return ""
        if (error := error_of(self.process)) is not None:
            return error.line()[:MOST_CAUSE]
        if self.rank >= 0:
            return ""
        text = self.process.tail.decode(errors="replace")
        lines = (line[:MOST_CAUSE] for line in reversed(text.splitlines()) if line.strip())
        return next(lines, "" if self.process.ended_by_launcher else "no error output")
