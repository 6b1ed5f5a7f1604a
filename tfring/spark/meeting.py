"""What the program that starts a job and the tasks of Spark tell each other when they meet.

A task connects to the program and proves to know the job's secret, which Spark has brought to it.
It says who it is (`Task`, as JSON). If the program takes it, it answers with `env`, the variables
of the agent that the task is to start; else with `refused`, why not. What follows is what that
agent and the program send each other, see tfring/launch/agents/protocol.py. All messages carry
MACs.
"""

from __future__ import annotations

from typing import Any, NamedTuple

# Tells a rank which Python its task runs on, and which GPUs Spark has given to the task.
PYTHON, GPUS = "SPARK_TASK_PYTHON", "SPARK_TASK_GPUS"
MAX_BYTES = 1 << 24


class Meeting(NamedTuple):
    """Where tasks find the program.

    Attributes:
        address: Its address, as executors know it.
        port: Its port.
        secret: What the tasks of this job know, and nobody else.
        horovod: Whether `import horovod` means tfring in the ranks.
    """

    address: str
    port: int
    secret: str
    horovod: bool


class Task(NamedTuple):
    """A task that runs.

    Attributes:
        partition: Its number in the job.
        attempt: Tells all tasks of the program's Spark apart, also those that repeat others.
        address: The address of its host.
        gpus: The GPUs that Spark has given to it.
    """

    partition: int
    attempt: int
    address: str
    gpus: tuple[str, ...]

    @property
    def name(self) -> str:
        """As messages and the launcher call it: what follows "@" is its address."""
        return f"task{self.attempt}@{self.address}"

    def message(self) -> dict[str, Any]:
        """Returns it as what JSON can hold."""
        return {**self._asdict(), "gpus": list(self.gpus)}

    @classmethod
    def of(cls, message: dict[str, Any]) -> Task:
        """Returns the task of a message."""
        return cls(**{**message, "gpus": tuple(message["gpus"])})
