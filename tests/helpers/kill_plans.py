"""Draws from a seed which jobs run, which of their processes are killed, and when."""

from __future__ import annotations

import dataclasses
import random
from pathlib import Path
from typing import NamedTuple

# The programs of the jobs, as arguments of Python.
_HERE = Path(__file__).parent
STATIC = [str(_HERE / "killed_training.py")]
ELASTIC = ["-m", "benchmarks.elastic.worker"]
# For each kind of job: its program, and the possible victims.
KINDS: dict[str, tuple[list[str], tuple[str, ...]]] = {
    "static": (STATIC, ("rank", "rank", "agent", "launcher")),
    "static-hosts": (STATIC, ("rank", "agent", "host", "launcher")),
    "static-nodes": (STATIC, ("rank", "agent", "host", "launcher")),
    "elastic": (ELASTIC, ("rank", "rank", "agent", "launcher")),
    "elastic-hosts": (ELASTIC, ("rank", "agent", "host", "launcher")),
    "elastic-nodes": (ELASTIC, ("rank", "agent", "host", "launcher")),
    "static-coordinator": (STATIC, ("rank", "agent", "host", "launcher", "coordinator")),
    "elastic-coordinator": (ELASTIC, ("rank", "agent", "host", "launcher", *["coordinator"] * 2)),
}
# The number of processes killed in a job.
_COUNTS = (1, 2, 3, 3, 4)


class Kill(NamedTuple):
    """One kill: what is killed, and when.

    Attributes:
        victim: "rank", "agent", "host", "launcher" or "coordinator".
        moment: "start": `share` s after the start; "soon": `share` s after the previous kill;
            "step": `pause` s after this share of the steps is done.
        share: See `moment`.
        pause: Seconds, see `moment`. A victim that comes back does so after `10 * pause`.
        choice: Selects one of several possible victims, from 0 to 1.
        silent: Whether a host loses its network before its processes.
        back: Whether a host, a node's launcher or a coordinator comes back.
    """

    victim: str
    moment: str
    share: float
    pause: float
    choice: float
    silent: bool
    back: bool


@dataclasses.dataclass(frozen=True)
class Plan:
    """One job; the seed and the kind determine all of it."""

    kind: str
    ranks: int
    steps: int
    kills: tuple[Kill, ...]

    @property
    def program(self) -> list[str]:
        """The program of the ranks."""
        return KINDS[self.kind][0]

    @property
    def elastic(self) -> bool:
        """Whether survivors go on; otherwise all ranks start again."""
        return "static" not in self.kind

    @property
    def nodes(self) -> bool:
        """Whether each host has a launcher of its own."""
        return self.kind.endswith("-nodes") or self.apart

    @property
    def apart(self) -> bool:
        """Whether the coordinator is a separate process on a separate host."""
        return self.kind.endswith("-coordinator")

    @property
    def hosts(self) -> int:
        """The number of hosts that have ranks."""
        return 2 if self.kind.endswith("-hosts") or self.nodes else 1


def plan_of(seed: int, kind: str) -> Plan:
    """Draws a job."""
    rng = random.Random(f"{kind} {seed}")
    _, victims = KINDS[kind]
    kills: list[Kill] = []
    for number in range(rng.choice(_COUNTS)):
        moments = ("start", "step", "step", "step") if number == 0 else ("soon", "soon", "step")
        kill = Kill(
            victim=rng.choice(victims),
            moment=rng.choice(moments),
            share=rng.uniform(0.0, 0.9),
            pause=rng.uniform(0.0, 0.03),
            choice=rng.random(),
            silent=rng.random() < 0.3,
            back=rng.random() < 0.7,
        )
        kills.append(kill)
    # The end of the only launcher ends the job.
    if not kind.endswith(("-nodes", "-coordinator")):
        kills.sort(key=lambda kill: kill.victim == "launcher")
    # Long enough for the replacements of elastic jobs to join.
    steps = rng.randrange(200, 400) if kind.startswith("elastic") else rng.randrange(60, 120)
    return Plan(kind, rng.randint(2, 4), steps, tuple(kills))
