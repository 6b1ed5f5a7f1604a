"""How the ranks that still run are ended: politely, then by force, at last with their agents."""

from __future__ import annotations

import signal

from tfring.launch.agents.rank import RankProcess

# After the first failure the other ranks have so long to print their own errors, and then, after
# SIGTERM, to clean up.
REPORT_SECONDS = 2.0
TERMINATE_SECONDS = 3.0
# After SIGKILL has had that long, too, the agents are told to end, and have so long for it.
_AGENTS_END_SECONDS = 8.0
# What stands for a signal: see RankAgent.give_up().
_END_AGENTS = 0
_KILL_AGENTS = -1


class Escalation:
    """What is to be done, and when. Used by one thread."""

    def __init__(self) -> None:
        self._steps: list[tuple[float, int]] = []

    def __bool__(self) -> bool:
        return bool(self._steps)

    def after_failure(self, now: float) -> None:
        """Begins because a rank failed.

        Args:
            now: The time (time.monotonic).
        """
        terminate_at = now + REPORT_SECONDS
        self.kill(terminate_at + TERMINATE_SECONDS)
        self._steps.insert(0, (terminate_at, signal.SIGTERM))

    def kill(self, when: float) -> None:
        """Begins, or begins anew, with SIGKILL.

        Args:
            when: The time for it (time.monotonic).
        """
        agents_at = when + TERMINATE_SECONDS
        self._steps = [
            (when, signal.SIGKILL),
            (agents_at, _END_AGENTS),
            (agents_at + _AGENTS_END_SECONDS, _KILL_AGENTS),
        ]

    def due(self) -> list[float]:
        """Returns when something is to be done next, as a list; empty if nothing is."""
        return [when for when, _ in self._steps[:1]]

    def work(self, now: float, running: list[RankProcess]) -> None:
        """Does what is due.

        Args:
            now: The time (time.monotonic).
            running: The ranks that still run.
        """
        while self._steps and now >= self._steps[0][0]:
            _, number = self._steps.pop(0)
            for process in running:
                process.ended_by_launcher = True
                if number > 0:
                    process.signal(number)
                else:  # it does not react; perhaps its host is gone
                    process.agent.give_up(at_once=number == _KILL_AGENTS)
