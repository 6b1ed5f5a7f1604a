"""One worker of an elastic job from the launcher's side."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from dataclasses import dataclass, field

from tfring.launch.agents.rank import RankProcess
from tfring.launch.elastic.orders import StartWorker
from tfring.launch.exit_codes import DISMISSED
from tfring.launch.options.environment import job_variables
from tfring.launch.options.job_options import JobOptions
from tfring.launch.reports.text import MOST_CAUSE, exception_of

TERMINATE_SECONDS = 3.0
# In the place of signals: the agent of the host ends all its workers; it is killed itself.
_GIVE_UP, AT_ONCE = 0, -1


@dataclass
class Worker:
    """A worker that was started. `process` names it by its id, where others have a rank."""

    start: StartWorker
    process: RankProcess
    rank: int = -1  # in the last generation that it was in; -1: in none
    generation: int = 0
    told: bool = False  # to leave, as the job was over, before it ended
    # When to send which signal, in order; then to give up the agents above it.
    escalation: list[tuple[float, int]] = field(default_factory=list)

    def name(self) -> str:
        """Returns ``worker 3 (rank 1, host node1, slot 0)``."""
        rank = f"rank {self.rank}, " if self.rank >= 0 else ""
        return f"worker {self.start.worker} ({rank}host {self.start.host}, slot {self.start.slot})"

    def end_at(self, when: float) -> None:
        """Ends its process: with SIGTERM, and with more if it does not end.

        Args:
            when: The time for SIGTERM (time.monotonic).
        """
        if not self.escalation or self.escalation[0][0] > when:
            self.escalation = [
                (when, signal.SIGTERM),
                (when + TERMINATE_SECONDS, signal.SIGKILL),
                *given_up_after(when + TERMINATE_SECONDS),
            ]

    def escalate(self, now: float, *, over: bool) -> None:
        """Sends the signals that are due.

        Args:
            now: The time (time.monotonic).
            over: Whether the job is: then what does not end takes the others of its host with it.
        """
        while self.escalation and now >= self.escalation[0][0]:
            if self.escalation[0][1] <= 0 and not over:
                self.escalation = given_up_after(now)
                return
            _, number = self.escalation.pop(0)
            self.process.ended_by_launcher = True
            if number <= 0:
                self.process.agent.give_up(at_once=number == AT_ONCE)
                continue
            self.process.signal(number)
            if number == signal.SIGTERM:
                self.process.signal(signal.SIGCONT)  # one that stands still cannot end

    def cause(self) -> str:
        """Returns what ended its process, if that was a failure of the program; "" if unknown.

        That is the exception; or, where it has not joined yet, its last line, as of `sys.exit`.
        """
        code = self.process.code
        if not code or code < 0 or code == DISMISSED:
            return ""
        text = self.process.tail.decode(errors="replace")
        if (found := exception_of(text)) or self.rank >= 0:
            return found
        return next((line[:MOST_CAUSE] for line in reversed(text.splitlines()) if line.strip()), "")


def given_up_after(when: float) -> list[tuple[float, int]]:
    """Returns what follows after SIGKILL was sent to a worker.

    Args:
        when: It was sent (time.monotonic).
    """
    return [(when + TERMINATE_SECONDS, _GIVE_UP), (when + 2 * TERMINATE_SECONDS, AT_ONCE)]


def worker_variables(
    options: JobOptions,
    start: StartWorker,
    environ: Mapping[str, str],
    *,
    remote: bool,
    records: Mapping[str, str],
) -> dict[str, str]:
    """Returns the variables of a worker, but for those that say where its coordinator is.

    HOROVOD_RANK and the like are what Horovod's launcher sets for scripts that read them before
    `init`: what the rank is likely to be. The truth comes with the generation.

    Args:
        options: The job.
        start: The worker.
        environ: The launcher's environment.
        remote: Whether it is on another host.
        records: What workers on this host get so that the launcher finds their records.
    """
    return {
        **job_variables(options, environ, remote=remote, records=records),
        "TFRING_ELASTIC_WORKER": str(start.worker),
        "TFRING_ELASTIC_HOST": start.host,
        "TFRING_ELASTIC_SLOT": str(start.slot),
        "TFRING_ELASTIC_FIRST": str(int(start.first)),
        "HOROVOD_ELASTIC": "1",
        "HOROVOD_HOSTNAME": start.host,
        "TFRING_RESTART_COUNT": str(start.restarts),
        "HOROVOD_RANK": str(start.rank),
        "HOROVOD_SIZE": str(start.size),
        "HOROVOD_LOCAL_RANK": str(start.slot),
    }
