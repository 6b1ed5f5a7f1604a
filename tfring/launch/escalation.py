"""How processes that still run are ended: politely, then by force, at last with their agents."""

from __future__ import annotations

import signal
from collections.abc import Iterable

from tfring.launch.agents.rank import RankProcess

# Between SIGTERM and SIGKILL, and from there to the end of the agents.
TERMINATE_SECONDS = 3.0
# As long after SIGKILL the launcher asks the agents to end. They have this long for it.
_AGENTS_END_SECONDS = 8.0
# In place of a signal: the agent ends its host's ranks and itself, or is killed.
_END_AGENTS = 0
_KILL_AGENTS = -1


class Escalation:
    """The next signals for processes that must end, and their times. Used by one thread."""

    def __init__(self) -> None:
        self._steps: list[tuple[float, int]] = []

    def terminate(self, when: float, grace: float = TERMINATE_SECONDS) -> None:
        """Begins with SIGTERM at a time (time.monotonic), unless something is due before that.

        SIGKILL follows after `grace` seconds.
        """
        if not self._steps or self._steps[0][0] > when:
            self.kill(when + grace)
            self._steps.insert(0, (when, signal.SIGTERM))

    def kill(self, when: float) -> None:
        """Goes on with SIGKILL at a time (time.monotonic), if it is not due before."""
        due = [at for at, number in self._steps if number == signal.SIGKILL]
        when = min([when, *due])
        self._steps = [(when, signal.SIGKILL), *_agents_after(when)]

    def give_up(self, when: float) -> None:
        """Goes on with the end of the agent alone: nothing was started there."""
        self._steps = [(when, _KILL_AGENTS)]

    def postpone(self, seconds: float) -> None:
        """Delays all steps by this much time."""
        self._steps = [(when + seconds, number) for when, number in self._steps]

    def due(self) -> list[float]:
        """Returns the time of the next step, in a list; an empty list if there is none."""
        return [when for when, _ in self._steps[:1]]

    def work(
        self, now: float, running: Iterable[RankProcess], *, spares_agents: bool = False
    ) -> None:
        """Does what is due. With `spares_agents` other processes of the hosts go on."""
        while self._steps and now >= self._steps[0][0]:
            number = self._steps[0][1]
            if number <= 0 and spares_agents:
                self._steps = _agents_after(now)
                return
            self._steps.pop(0)
            for process in running:
                process.ended_by_launcher = True
                if number > 0:
                    process.signal(number)
                    process.signal(signal.SIGCONT)  # one that stands still cannot end
                elif number == _END_AGENTS:  # it does not react; perhaps its host is gone
                    process.connection.end_ranks()
                else:
                    process.connection.process.kill()


def _agents_after(killed_at: float) -> list[tuple[float, int]]:
    agents_at = killed_at + TERMINATE_SECONDS
    return [(agents_at, _END_AGENTS), (agents_at + _AGENTS_END_SECONDS, _KILL_AGENTS)]
