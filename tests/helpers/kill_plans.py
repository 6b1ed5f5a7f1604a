"""Which jobs are run to kill their processes, who is killed in them, and when: from a seed."""

from __future__ import annotations

import dataclasses
import random
from pathlib import Path
from typing import NamedTuple

# The programs of jobs, as arguments of Python.
_HERE = Path(__file__).parent
STATIC = [str(_HERE / "killed_training.py")]
ELASTIC = ["-m", "benchmarks.elastic.worker"]
KERAS = [str(_HERE / "killed_keras.py")]
# For each kind of job: its program, and who may be killed.
KINDS: dict[str, tuple[list[str], tuple[str, ...]]] = {
    "static": (STATIC, ("rank", "rank", "agent", "launcher")),
    "static-hosts": (STATIC, ("rank", "agent", "host", "launcher")),
    "static-nodes": (STATIC, ("rank", "agent", "host", "launcher")),
    "elastic": (ELASTIC, ("rank", "rank", "agent", "launcher")),
    "elastic-hosts": (ELASTIC, ("rank", "agent", "host", "launcher")),
    "elastic-nodes": (ELASTIC, ("rank", "agent", "host", "launcher")),
    "static-coordinator": (STATIC, ("rank", "agent", "host", "launcher", "coordinator")),
    "elastic-coordinator": (ELASTIC, ("rank", "agent", "host", "launcher", *["coordinator"] * 2)),
    "keras": (KERAS, ("rank", "rank", "agent", "launcher")),
    "keras-static": (KERAS, ("rank", "rank", "agent", "launcher")),
}
# How many processes of a job are killed.
_COUNTS = (1, 2, 3, 3, 4)


class Kill(NamedTuple):
    """What is killed and when.

    Attributes:
        victim: "rank", "agent", "host", "launcher" or "coordinator".
        moment: "start": `share` of a second after the start; "soon": that after the kill before;
            "step": when this share of the steps is done, and `pause` seconds later.
        share: See `moment`.
        pause: Seconds, see `moment`. A victim that comes back does so after ten times as many.
        choice: Which of several, from 0 to 1.
        silent: Whether a host's network is gone before its processes are.
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
    """One job: all of it follows from the seed and the kind."""

    kind: str
    ranks: int
    steps: int
    kills: tuple[Kill, ...]

    @property
    def program(self) -> list[str]:
        """What the ranks run."""
        return KINDS[self.kind][0]

    @property
    def elastic(self) -> bool:
        """Whether survivors go on; else all ranks start again."""
        return "static" not in self.kind

    @property
    def nodes(self) -> bool:
        """Whether each host has a launcher of its own."""
        return self.kind.endswith("-nodes") or self.apart

    @property
    def apart(self) -> bool:
        """Whether the coordinator is a process of its own, on a host of its own."""
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
    # Nothing comes after the end of the only launcher.
    if not kind.endswith(("-nodes", "-coordinator")):
        kills.sort(key=lambda kill: kill.victim == "launcher")
    # Long enough for the replacements of elastic jobs to join.
    steps = rng.randrange(200, 400) if kind.startswith("elastic") else rng.randrange(60, 120)
    return Plan(kind, rng.randint(2, 4), steps, tuple(kills))
